"""Files that output nodes delivered and no history entry names: what they were seen to write, what lies where
they asked to write, and what is new in the output folder since they began."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

from stagexec.delivery import pulse
from stagexec.delivery.artifacts import COARSE_NS, TICK_NS, is_within
from stagexec.record import clock
from stagexec.record.run import Run
from stagexec.record.trail import Asked

MOST_ENTRIES = 50_000
MOST_SECONDS = 2.0
MOST_DEPTH = 6
"""Of a look through the output folder: a larger one is not looked through to the end."""

LARGE_FOLDER = 5_000
"""In a folder of more entries, files are asked for their times only if its own time says that one is new."""

MOST_FILES = 10_000

Found = tuple[str, str, str]
"""(node id, absolute path, how it was found: written, saver or folder)"""


def files_of(
    run: Run, silent: set[str], named: set[str], output: str | None, temp: str | None
) -> list[Found]:
    """What the nodes of `silent` delivered, which history says nothing of; a file once, by its first finding.

    `silent` are nodes that were executed to their end; `named` the keys of paths that are known already;
    `output` and `temp` the host's folders.
    """
    found: dict[str, Found] = {}
    for one in _all(run, silent, output, temp):
        key = os.path.normcase(one[1])
        if key not in named and len(found) < MOST_FILES:
            found.setdefault(key, one)
    return list(found.values())


def _all(run: Run, silent: set[str], output: str | None, temp: str | None) -> Iterator[Found]:
    done: set[str] = set()
    for written in run.trail.written:
        if written.node_id not in silent or written.node_id is None or not os.path.isfile(written.path):
            continue
        inside = output is not None and is_within(output, written.path)
        is_temp = temp is not None and is_within(temp, written.path)
        # A node in mid-graph that keeps something for itself somewhere delivers nothing.
        if inside or (written.node_id in run.trail.output_nodes and not is_temp):
            done.add(written.node_id)
            yield written.node_id, written.path, "written"
    asked = [
        one
        for one in run.trail.asked
        if one.node_id in silent and not (temp is not None and is_within(temp, os.path.abspath(one.folder)))
    ]
    for node_id, path in _where_asked(run, asked):
        done.add(node_id)
        yield node_id, path, "saver"
    left = [node for node in silent if node in run.trail.output_nodes and node not in done]
    if left and output is not None:
        yield from _new_in(run, left, output)


def _where_asked(run: Run, asked: list[Asked]) -> Iterator[tuple[str, str]]:
    """Each file that a saver left where it had asked to write: (node, path). Of two savers with one name the
    number tells, else who asked last before the file was written."""
    for folder in dict.fromkeys(one.folder for one in asked):
        mine = [one for one in asked if one.folder == folder]
        for entry in _files_in(folder):
            fitting = [one for one in mine if _begins(entry.name, one.stem)]
            stamp = _stamp(entry) if fitting else None
            if stamp is None:
                continue
            numbered = [one for one in fitting if _has_number(entry.name, one)]
            past = [one for one in numbered if _since(run, one.at_ns, stamp)] or [
                one
                for one in fitting
                if _since(run, one.at_ns, stamp)
                and stamp <= clock.wall_ns(run.trail.last_end(one.node_id, clock.now_ns()))
            ]
            if past and past[-1].node_id is not None:
                yield past[-1].node_id, os.path.abspath(entry.path)


def _begins(name: str, stem: str) -> bool:
    """Is it the stem and something that is no part of a longer word?"""
    return name.startswith(stem) and not name[len(stem) : len(stem) + 1].isalnum()


def _has_number(name: str, asked: Asked) -> bool:
    if asked.counter is None:
        return False
    rest = name[len(asked.stem) :]
    digits = rest.lstrip("_-.")
    number = digits[: len(digits) - len(digits.lstrip("0123456789"))]
    return number.isdigit() and int(number) == asked.counter


def _since(run: Run, at_ns: int, stamp: int) -> bool:
    granularity = COARSE_NS if stamp % 1_000_000_000 == 0 else TICK_NS
    return stamp >= clock.wall_ns(at_ns) - granularity


def _new_in(run: Run, nodes: list[str], output: str) -> Iterator[Found]:
    """Files of the output folder that were written while one of `nodes` was at work."""
    known = run.trail.times
    times = [(node, known[node][0], known[node][1]) for node in nodes if node in known]
    if not times:
        return
    times.sort(key=lambda one: one[1])
    begin = min(clock.wall_ns(start) for _, start, _ in times)
    for entry, stamp in _young(output, begin - TICK_NS):
        for node, start, end in reversed(times):
            if _since(run, start, stamp) and stamp <= clock.wall_ns(end):
                yield node, os.path.abspath(entry.path), "folder"
                break


def _young(root: str, since_wall_ns: int) -> Iterator[tuple[os.DirEntry[str], int]]:
    """Files below `root` that were written since, with their times, as far as the bounds let."""
    until = time.monotonic() + MOST_SECONDS
    waiting: list[tuple[str, int]] = [(root, 0)]
    seen: set[str] = set()
    left = MOST_ENTRIES
    while waiting and left > 0 and time.monotonic() < until:
        folder, depth = waiting.pop()
        real = os.path.realpath(folder)
        if real in seen:  # a link that leads back
            continue
        seen.add(real)
        pulse.beat()
        entries = list(_entries(folder, left))
        left -= len(entries)
        quiet = len(entries) > LARGE_FOLDER and not _is_young(folder, since_wall_ns)
        for entry in entries:
            if _is_folder(entry):
                if depth < MOST_DEPTH:
                    waiting.append((entry.path, depth + 1))
            elif not quiet:
                stamp = _stamp(entry)
                if stamp is not None and stamp >= since_wall_ns:
                    yield entry, stamp


def _is_young(folder: str, since_wall_ns: int) -> bool:
    try:
        return os.stat(folder).st_mtime_ns >= since_wall_ns
    except OSError:
        return False


def _files_in(folder: str) -> Iterable[os.DirEntry[str]]:
    return (entry for entry in _entries(folder, MOST_ENTRIES * 4) if not _is_folder(entry))


def _entries(folder: str, most: int) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if count >= most:
                    return
                yield entry
    except (OSError, ValueError):
        return


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _stamp(entry: os.DirEntry[str]) -> int | None:
    """When the file was written, wall ns; None for what is no file, is hidden, or is gone by now."""
    try:
        if entry.name.startswith(".") or not entry.is_file():
            return None
        return entry.stat().st_mtime_ns
    except OSError:
        return None
