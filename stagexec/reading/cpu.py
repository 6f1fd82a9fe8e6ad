"""CPU time by stage: what the run's own process had, and what other programs took of the machine meanwhile.

Readings lie some 0.2 s apart; between two of them each is taken to have gone on evenly.
"""

from __future__ import annotations

import bisect
import itertools
from typing import Any, NamedTuple

from stagexec.reading.runs import Run


class Stretch(NamedTuple):
    """What happened between two readings. `others_ns` and `cores` are None where the machine does not say."""

    start_ns: int
    end_ns: int
    own_ns: int
    others_ns: int | None
    cores: int | None


def stretches(run: Run) -> list[Stretch]:
    """The time between each two readings, in order."""
    rows = sorted(
        row
        for event in run.cpu_events
        for row in zip(event.at_ns, event.own_ns, event.busy_ns, event.cores, strict=True)
    )
    found = []
    for (at, own, busy, _), (end, own_then, busy_then, cores) in itertools.pairwise(rows):
        if end <= at:
            continue
        spent = own_then - own
        others = None if busy is None or busy_then is None else busy_then - busy - spent
        found.append(Stretch(at, end, spent, others, cores))
    return found


def by_stage(run: Run) -> dict[str, dict[str, Any]]:
    """Stage -> {covered_ns, own_ns, others_share}: of so much of its time readings are there; CPU time of the
    process and its children in that; share of all CPUs that other programs had (0 to 1; None: not known)."""
    found: dict[str, list[float]] = {}
    known = stretches(run)
    ends = [one.end_ns for one in known]
    for stage, _, start, end, _, _ in run.segments.rows():
        place = bisect.bisect_right(ends, start)
        while place < len(known) and known[place].start_ns < end:
            one = known[place]
            lap = min(end, one.end_ns) - max(start, one.start_ns)
            _add(found.setdefault(stage, [0, 0, 0, 0]), one, lap)
            place += 1
    return {
        stage: {
            "covered_ns": int(covered),
            "own_ns": round(own),
            # The machine counts in ticks of 10 ms, we exactly: a quiet one can come out below nothing.
            "others_share": max(0.0, others / capacity) if capacity else None,
        }
        for stage, (covered, own, others, capacity) in found.items()
        if covered
    }


def _add(sums: list[float], one: Stretch, lap: int) -> None:
    part = lap / (one.end_ns - one.start_ns)
    sums[0] += lap
    sums[1] += one.own_ns * part
    if one.others_ns is not None and one.cores:
        sums[2] += one.others_ns * part
        sums[3] += one.cores * lap


def machine_busy(run: Run, stage: str) -> float | None:
    """The share of all CPUs that other programs had during a stage; None where it is not known."""
    found = by_stage(run).get(stage)
    share: float | None = found["others_share"] if found else None
    return share
