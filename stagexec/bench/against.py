"""Regression mode: one result against an older one, which fails only when a slow-down is shown."""

from __future__ import annotations

from typing import Any

import msgspec

from stagexec.answers.explain import COMPLETE
from stagexec.bench import launches, stats
from stagexec.bench.tables import Tables, comparable


class NotComparable(Exception):
    """The two results must not be compared; one line says why."""


class Change(msgspec.Struct):
    """One cell now, against the same cell before. `too_slow`: a slow-down beyond the limit is shown."""

    unit: str
    position: str
    arm: str
    ratio: stats.Ratio | None
    too_slow: bool
    why: str


def compare(now: Tables, before: Tables, over: float) -> list[Change]:
    """Every cell that both results measured. `over` is a share: 0.05 lets a slow-down of 5% pass.

    Raises NotComparable for other plans' cells alone, other machines, other timing modes.
    """
    found = []
    for cell in now.cells:
        place = (cell.unit, cell.position, cell.arm)
        ours, theirs = (_good(side, *place) for side in (now, before))
        if not ours or not theirs:
            continue
        if reason := comparable([*ours, *theirs]):
            raise NotComparable(f"{cell.unit}, {cell.arm}: {reason}")
        if cell.status != "measured":
            found.append(Change(*place, None, False, f"{cell.status}: {cell.reason}"))
            continue
        values, few = _independent(ours, theirs)
        one = _judge(place, stats.unpaired_ratio(*values), over)
        if few:
            one.why += f"; with {few}, what two launches differ in is not in the interval"
        found.append(one)
    if not found:
        raise NotComparable("the two results have no unit and arm in common that both measured")
    return found


def _good(tables: Tables, unit: str, position: str, arm: str) -> list[dict[str, Any]]:
    return [run for run in tables.runs(unit, position, arm).values() if run["outcome"] in COMPLETE]


def _independent(
    ours: list[dict[str, Any]], theirs: list[dict[str, Any]]
) -> tuple[tuple[list[float], list[float]], str]:
    """A value a launch on each side; where one has too few launches, a value a run, and words for it.

    A bench of one arm stays on one server: its regressions can be told by runs alone.
    """
    sides = []
    for runs in (ours, theirs):
        by_launch: dict[Any, list[float]] = {}
        for run in runs:
            by_launch.setdefault(run["session"], []).append(run["total_ns"])
        sides.append([launches.geometric(values) for values in by_launch.values()])
    if all(len(side) >= stats.LEAST_PAIRS for side in sides):
        return (sides[0], sides[1]), ""
    few = min(len(side) for side in sides)
    told = f"{few} launch{'es' if few > 1 else ''} on one side"
    return ([r["total_ns"] for r in ours], [r["total_ns"] for r in theirs]), told


def _judge(place: tuple[str, str, str], ratio: stats.Ratio | None, over: float) -> Change:
    if ratio is None or ratio.low is None or ratio.high is None:
        return Change(*place, ratio, False, "too few runs to show anything")
    told = f"ratio {ratio.ratio:.3f}, 95% interval {ratio.low:.3f} to {ratio.high:.3f}"
    if ratio.shown == "slower" and ratio.low > 1 + over:
        return Change(*place, ratio, True, f"slower by more than {over:.0%}: {told}")
    if ratio.shown == "slower":
        return Change(*place, ratio, False, f"slower, but not shown to be by more than {over:.0%}: {told}")
    return Change(*place, ratio, False, f"{ratio.shown}: {told}")
