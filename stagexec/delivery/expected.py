"""All files that are to be looked at for a run: those that history and nodes name, one by one, and those that
nothing names and that were delivered all the same."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from stagexec.delivery import found, identity, late, patterns
from stagexec.delivery.artifacts import COARSE_NS, DirectoryOf, count_values
from stagexec.record import clock
from stagexec.record.run import Run


class Promised(msgspec.Struct):
    """A file to look at. `state` is null where it is to be looked at, else what it is said to be, with the
    `reason`. `via`: history, node (it named the file itself), written, saver, folder, or cache."""

    node_id: str | None
    path: str
    state: str | None = None
    reason: str | None = None
    via: str = "history"


def complete(
    run: Run, outputs: dict[str, Any], named: list[Promised], directory_of: DirectoryOf
) -> list[Promised]:
    """`named`, with patterns as their files, what nothing names added, and who lost a file to whom."""
    promised = [each for one in named for each in _each(run, one)]
    promised += _unnamed(run, outputs, promised, directory_of)
    identity.settle(run, promised)
    return promised


def _each(run: Run, one: Promised) -> Iterator[Promised]:
    """The files that an entry stands for: itself, or those of its pattern."""
    if one.state is not None or not patterns.is_pattern(os.path.basename(one.path)):
        yield one
        return
    if os.path.lexists(one.path):
        yield one
        return
    files = _of_pattern(run, one)
    for path in files:
        yield Promised(one.node_id, path, via=one.via)
    if not files:
        yield one


def _of_pattern(run: Run, one: Promised) -> list[str]:
    """The files of a pattern; where its node has just been executed, once no more seem to come."""
    executed = one.node_id in run.executed_nodes
    times = run.trail.times.get(one.node_id or "")
    since = clock.wall_ns(times[0]) - COARSE_NS if executed and times is not None else None
    files = patterns.files_of(one.path, since)
    if not executed:
        return files
    ended = clock.wall_ns(run.trail.last_end(one.node_id, run.stopped_ns or clock.now_ns()))
    patience, still = late.Patience(), time.monotonic()
    while (
        (not files and patience.left_to_come())
        or (files and time.monotonic() - still < late.STILL_S and _is_late(files, ended))
    ) and patience.left_to_grow():
        patience.look_again_later()
        now = patterns.files_of(one.path, since)
        if now != files:
            files, still = now, time.monotonic()
    return files


def _is_late(files: list[str], ended_wall_ns: int) -> bool:
    try:
        return max(os.stat(path).st_mtime_ns for path in files) > ended_wall_ns + late.SLACK_NS
    except OSError:
        return True


def _unnamed(
    run: Run, outputs: dict[str, Any], promised: list[Promised], directory_of: DirectoryOf
) -> list[Promised]:
    told = {one.node_id for one in promised} | set(count_values(outputs, directory_of)) | set(run.trail.sent)
    files_only = {one.node_id for one in promised}
    blocked = {row["node_id"] for row in run.blocked}
    writers = {one.node_id for one in run.trail.written} | {one.node_id for one in run.trail.asked}
    silent = {
        node
        for node in run.executed_nodes
        if node not in blocked
        and (
            (node in run.trail.output_nodes and node not in told)
            or (node in writers and node not in files_only)
        )
    }
    more: list[Promised] = []
    if silent:
        keys = {os.path.normcase(one.path) for one in promised}
        output, temp = directory_of("output"), directory_of("temp")
        more += [Promised(*one[:2], via=one[2]) for one in found.files_of(run, silent, keys, output, temp)]
    for node, kept in run.trail.recalled.items():
        if node not in files_only and node not in run.executed_nodes:
            more += [Promised(node, path, via="cache") for path, _ in kept.files.values()]
    return more
