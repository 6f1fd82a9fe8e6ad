"""Whose file it is: one path may be written by two nodes of a run, or again by a later run or by a program.

A file is a node's own when nothing else was seen to write it afterwards, and its content is what the run that
made it found there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stagexec.delivery.artifacts import TICK_NS
from stagexec.record import clock
from stagexec.record.run import Run
from stagexec.record.trail import Kept, key_of, writer_of

if TYPE_CHECKING:
    from stagexec.delivery.expected import Promised

_folders: dict[str, str] = {}


def key(path: str) -> str:
    """One key for all spellings of a file's path. Looks at the disk: links in its folder are followed."""
    folder, name = os.path.split(os.path.abspath(path))
    real = _folders.get(folder)
    if real is None:
        if len(_folders) > 1000:
            _folders.clear()
        real = _folders[folder] = os.path.realpath(folder)
    return key_of(os.path.join(real, name))


def settle(run: Run, promised: list[Promised]) -> None:
    """Of files that several nodes of the run name: which of these nodes lost theirs to another."""
    _folders.clear()
    by_key: dict[str, list[Promised]] = {}
    for one in promised:
        if one.state is None and one.node_id in run.executed_nodes:
            by_key.setdefault(key(one.path), []).append(one)
    shared = {k: them for k, them in by_key.items() if len({one.node_id for one in them}) > 1}
    if not shared:
        return
    wrote: dict[str, list[tuple[int, str | None]]] = {}
    for written in run.trail.written:
        place = key(written.path)
        if place in shared:
            wrote.setdefault(place, []).append((written.at_ns, written.node_id))
    for place, them in shared.items():
        last = max(wrote[place])[1] if place in wrote else _last_by_time(run, them)
        if last is None:
            continue
        since = _began(run, last)
        for one in them:
            # A node that names the file after it was written last only shows it.
            if one.node_id != last and _began(run, one.node_id) < since:
                one.state, one.reason = (
                    "overwritten",
                    f"node {last} of this run wrote the same file afterwards",
                )


def _began(run: Run, node_id: str | None) -> int:
    times = run.trail.times.get(node_id or "")
    return times[0] if times is not None else 0


def _last_by_time(run: Run, them: list[Promised]) -> str | None:
    """Who wrote the file last, by its own time: the last that had begun by then. A file system's time lags by
    a tick: within it, a node of the same class is taken to have done the same."""
    try:
        stamp = os.stat(them[0].path).st_mtime_ns
    except OSError:
        return None
    order = sorted({one.node_id for one in them if one.node_id is not None}, key=lambda n: _began(run, n))
    last: str | None = None
    for node in order:
        began = clock.wall_ns(_began(run, node))
        alike = last is not None and run.class_of.get(last) == run.class_of.get(node)
        if last is None or stamp >= began or (alike and stamp >= began - TICK_NS):
            last = node
    return last


def replaced(run: Run, one: Promised, sha256: str | None) -> str | None:
    """Why the file that is there now is not the one that the node delivered; None where it is."""
    kept = run.trail.recalled.get(one.node_id or "")
    if one.node_id in run.executed_nodes:
        writer = writer_of(key_of(one.path))
        if writer is not None and writer.run_id != run.run_id:
            ended = run.trail.last_end(one.node_id, run.stopped_ns or clock.now_ns())
            if writer.at_ns > ended:
                return f"node {writer.node_id} of a later run wrote the same file before it was checked"
        return None
    if kept is None:
        return None
    known = kept.files.get(key(one.path))
    if known is None or sha256 is None or known[1] == sha256:
        return None
    if known[1] is None:
        return "another node wrote the same file after the run that made it"
    return "since the run that made it, another file has taken its place: its content is not the same"


def keep(run: Run, one: Promised, state: str | None, sha256: str | None) -> None:
    """Remember with the node's cache entry which file it delivered, for runs that are served from it."""
    kept: Kept | None = run.trail.kept.get(one.node_id or "")
    if kept is None or one.node_id not in run.executed_nodes:
        return
    if state == "overwritten":
        kept.files[key(one.path)] = (one.path, None)
    elif state != "missing" and sha256 is not None:
        kept.files[key(one.path)] = (one.path, sha256)
