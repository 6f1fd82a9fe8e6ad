"""Readers in processes of their own, one a core, for ledgers that are too large for one."""

from __future__ import annotations

import contextlib
import os
import pathlib
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence

import msgspec

from stagexec.reading.scan import Found, Job, work

HERE_UP_TO = 24 * 1024**2
"""Bytes below which starting processes costs more than it saves."""


def read_all(jobs: Sequence[Job], workers: int | None = None) -> list[Found]:
    """What each job found, in the order of `jobs`; the rows are in the files that the jobs name.

    `workers`: processes; by default one a core, and none at all for little work. What a process that died
    leaves undone is read here.
    """
    count = os.cpu_count() or 1 if workers is None else workers
    if count < 2 or sum(job.end - job.start for job in jobs) <= HERE_UP_TO:
        return [work(job) for job in jobs]
    todo: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    for at in sorted(range(len(jobs)), key=lambda at: jobs[at].start - jobs[at].end):
        todo.put(at)
    found: list[Found | None] = [None] * len(jobs)
    threads = []
    for _ in range(min(count, len(jobs))):
        todo.put(None)
        thread = threading.Thread(target=_serve, args=(jobs, todo, found), daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()
    return [work(job) if one is None else one for job, one in zip(jobs, found, strict=True)]


def _serve(
    jobs: Sequence[Job],
    todo: queue.SimpleQueue[int | None],
    found: list[Found | None],
) -> None:
    """Feed one process with jobs until none is left, or it dies."""
    decode = msgspec.json.Decoder(Found).decode
    command = [sys.executable, "-m", "stagexec.reading.scan"]
    ours = str(pathlib.Path(__file__).parents[2])  # where this very package was found
    path = os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            while (at := todo.get()) is not None:
                worker.stdin.write(msgspec.json.encode(jobs[at]) + b"\n")
                worker.stdin.flush()
                answer = worker.stdout.readline()
                if not answer:
                    return
                found[at] = decode(answer)
        except OSError:
            return  # its pipe is broken: it is dead
        finally:
            with contextlib.suppress(OSError):
                worker.stdin.close()
