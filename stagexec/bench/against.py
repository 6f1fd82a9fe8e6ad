"""Regression mode: one result against an older one, which fails only when a slow-down is shown."""

from __future__ import annotations

from typing import Any

import msgspec

from stagexec.answers.explain import COMPLETE
from stagexec.bench import stats
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
        ratio = stats.unpaired_ratio([r["total_ns"] for r in ours], [r["total_ns"] for r in theirs])
        found.append(_judge(place, ratio, over))
    if not found:
        raise NotComparable("the two results have no unit and arm in common that both measured")
    return found


def _good(tables: Tables, unit: str, position: str, arm: str) -> list[dict[str, Any]]:
    return [run for run in tables.runs(unit, position, arm).values() if run["outcome"] in COMPLETE]


def _judge(place: tuple[str, str, str], ratio: stats.Ratio | None, over: float) -> Change:
    if ratio is None or ratio.low is None or ratio.high is None:
        return Change(*place, ratio, False, "too few runs to show anything")
    told = f"ratio {ratio.ratio:.3f}, 95% interval {ratio.low:.3f} to {ratio.high:.3f}"
    if ratio.shown == "slower" and ratio.low > 1 + over:
        return Change(*place, ratio, True, f"slower by more than {over:.0%}: {told}")
    if ratio.shown == "slower":
        return Change(*place, ratio, False, f"slower, but not shown to be by more than {over:.0%}: {told}")
    return Change(*place, ratio, False, f"{ratio.shown}: {told}")
