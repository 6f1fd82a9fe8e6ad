"""What is one independent measure: a pair of runs on one server, or a pair of launches.

Two launches of one arm differ from each other, and all runs of a launch share that. So where arms have
servers of their own, runs of the same servers are one measure, their geometric mean; only where all arms ran
in the same process is every pair of runs a measure by itself, because what that launch was like is in both
sides. It is told by the recorded session of each run, so that resumed benches, deaths and old result folders
need no rule of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from stagexec.bench.results import Record


def blocks(sides: Sequence[Sequence[Record]]) -> list[list[int]]:
    """Indices of the pairs that make one measure. `sides`: each arm's runs, pair by pair, equally many."""
    count = len(sides[0])
    sessions = [[side[index].get("session") for side in sides] for index in range(count)]
    if all(len(set(numbers)) == 1 for numbers in sessions):
        return [[index] for index in range(count)]
    first_seen: dict[Any, int] = {}
    group = list(range(count))
    for index, numbers in enumerate(sessions):
        joined = {group[first_seen[number]] for number in numbers if number in first_seen}
        if joined:
            least = min(joined)
            group = [least if one in joined else one for one in group]
            group[index] = least
        for number in numbers:
            first_seen.setdefault(number, index)
    return [[index for index in range(count) if group[index] == one] for one in dict.fromkeys(group)]


def collapse(
    ours: Sequence[Record],
    theirs: Sequence[Record],
    groups: Sequence[Sequence[int]],
    value: Callable[[Record], float],
) -> tuple[list[float], list[float]]:
    """One value a side for each measure: the geometric mean over its pairs that have two positive values."""
    sides: tuple[list[float], list[float]] = ([], [])
    for group in groups:
        pairs = [(value(ours[index]), value(theirs[index])) for index in group]
        pairs = [pair for pair in pairs if pair[0] > 0 and pair[1] > 0]
        if pairs:
            for side, values in zip(sides, zip(*pairs, strict=True), strict=True):
                side.append(geometric(values))
    return sides


def mean_of(
    runs: Sequence[Record], groups: Sequence[Sequence[int]], value: Callable[[Record], float | None]
) -> list[float | None]:
    """The plain mean of a figure for each measure; None where one of its runs does not have it."""
    found: list[float | None] = []
    for group in groups:
        values = [value(runs[index]) for index in group]
        known = [one for one in values if one is not None]
        found.append(sum(known) / len(known) if len(known) == len(values) else None)
    return found


def geometric(values: Sequence[float]) -> float:
    """The geometric mean of positive values."""
    return math.exp(sum(map(math.log, values)) / len(values))
