"""Readers in processes of their own, one a core, for ledgers that are too large for one."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence

import msgspec

from stagexec.reading.scan import Found, Job, scan, write_rows

HERE_UP_TO = 24 * 1024**2
"""Bytes below which starting processes costs more than it saves."""


class WorkerDied(RuntimeError):
    """A reading process ended before its work."""


def read_all(jobs: Sequence[Job], workers: int | None = None) -> list[Found]:
    """What each job found, in the order of `jobs`; the rows are in the files that the jobs name.

    `workers`: processes; by default one a core, and none at all for little work. Raises OSError, WorkerDied.
    """
    count = os.cpu_count() or 1 if workers is None else workers
    if count < 2 or sum(job.end - job.start for job in jobs) <= HERE_UP_TO:
        return [_here(job) for job in jobs]
    todo: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    for at in sorted(range(len(jobs)), key=lambda at: jobs[at].start - jobs[at].end):
        todo.put(at)
    found: list[Found | None] = [None] * len(jobs)
    problems: list[BaseException] = []
    threads = []
    for _ in range(min(count, len(jobs))):
        todo.put(None)
        thread = threading.Thread(target=_serve, args=(jobs, todo, found, problems), daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    return [one for one in found if one is not None]


def _here(job: Job) -> Found:
    found, rows = scan(job)
    write_rows(job.rows_file, rows)
    return found


def _serve(
    jobs: Sequence[Job],
    todo: queue.SimpleQueue[int | None],
    found: list[Found | None],
    problems: list[BaseException],
) -> None:
    """Feed one process with jobs until none is left."""
    decode = msgspec.json.Decoder(Found).decode
    command = [sys.executable, "-m", "stagexec.reading.scan"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            while (at := todo.get()) is not None:
                worker.stdin.write(msgspec.json.encode(jobs[at]) + b"\n")
                worker.stdin.flush()
                answer = worker.stdout.readline()
                if not answer:
                    raise WorkerDied(f"the reader of {jobs[at].file} died")
                found[at] = decode(answer)
        except (OSError, WorkerDied) as problem:
            problems.append(problem)
        finally:
            worker.stdin.close()
