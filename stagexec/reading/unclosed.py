"""The runs that one journal leaves open, found without folding the rest of it."""

from __future__ import annotations

import pathlib
import time
from typing import NamedTuple

from stagexec.reading import lean, progress, scan
from stagexec.reading.fold import Alive, Fold, fold
from stagexec.reading.journal import Source
from stagexec.reading.runs import Process, Run

PACE_BYTES = 2 * 1024**2
PACE_S = 0.005
"""Rest after so many bytes: who reads beside a working server must not take its time."""


class Left(NamedTuple):
    """The process, None where the head of its journal cannot be read, and its runs that no line closes."""

    process: Process | None
    runs: list[Run]


def process_of(path: pathlib.Path) -> Process:
    """The process of a journal, by its first lines. Raises OSError."""
    return lean.folded(str(path), [line.encode() for line in progress.start(path).head], []).process


def of(source: Source, now_wall_ns: int, is_alive: Alive) -> Left:
    """What a journal leaves open, each run closed as of now if its process is dead. Raises OSError."""
    path = source.paths[0]
    known = progress.start(path)
    if len(source.paths) > 1:
        runs = fold(source, now_wall_ns, is_alive)
        left = [run for run in runs if run.closed is None]
        return Left(runs[0].process if runs else None, left)
    head = [line.encode() for line in known.head]
    lines, last_ns = _open_lines(path, known.head_end)
    folded: Fold = lean.folded(str(path), head, lines)
    process = folded.process
    process.last_ns = max(process.last_ns, last_ns)
    found = folded.finish(now_wall_ns, is_alive)
    for run in found:
        run.startup = None  # the runs before it are not here
    return Left(process if process.start is not None else None, [run for run in found if run.closed is None])


def _open_lines(path: pathlib.Path, begin: int) -> tuple[list[bytes], int]:
    """The lines after `begin` of runs that are not closed, and of the process; and the file's last time."""
    runs: dict[bytes, list[tuple[int, bytes]]] = {}
    of_process: list[tuple[int, bytes]] = []
    ended: set[bytes] = set()
    last_ns, at, rested = 0, begin, begin
    with path.open("rb") as stream:
        stream.seek(begin)
        for line in stream:
            if line[-1:] != b"\n":
                break
            at += len(line)
            if at - rested > PACE_BYTES:
                rested = at
                time.sleep(PACE_S)
            ordered = line if line.startswith(lean.PREFIX) else lean.in_order(line) or b""
            last_ns = max(last_ns, scan.last_time(ordered))
            kind_end = ordered.find(b'"', len(lean.PREFIX))
            id_start = kind_end + len(lean.RUN_ID)
            kind = ordered[len(lean.PREFIX) : kind_end]
            if ordered[kind_end:id_start] != lean.RUN_ID:
                if kind in (b"heartbeat", b"process_end") or scan.RESTART in ordered:
                    of_process = [*of_process[-scan.MAX_HEARTBEATS :], (at, ordered)]
                continue
            run_id = ordered[id_start : ordered.find(b'"', id_start)]
            if kind == b"run_closed":
                runs.pop(run_id, None)
                ended.add(run_id)
            elif run_id not in ended:
                runs.setdefault(run_id, []).append((at, ordered))
    places = sorted([*of_process, *(one for some in runs.values() for one in some)])
    return [line for _, line in places], last_ns
