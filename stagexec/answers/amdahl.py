"""What a faster stage would bring: shares, and both of Amdahl's bounds."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import Any

from stagexec import stages as sets
from stagexec.answers.explain import COMPLETE
from stagexec.answers.words import human
from stagexec.reading import derive, named, parts
from stagexec.reading.runs import Run
from stagexec.reading.table import stages_of

RESIDENCY = "model_load_residency"


@dataclasses.dataclass(slots=True)
class StageShare:
    """One stage: its time in ns, its share s of the whole, and 1/(1-s), which no speed-up of it can exceed.

    `limit` is None for a stage that is everything. `lower_bound`: more of the time is its own than shows.
    """

    stage: str
    ns: int
    share: float
    limit: float | None
    lower_bound: bool


@dataclasses.dataclass(slots=True)
class SpeedUp:
    """A stage k times as fast: the whole is 1/((1-s)+s/k) times as fast and takes `total_ns`.

    For several stages at once `stage` names all of them and `k` is None.
    """

    stage: str
    k: float | None
    speedup: float
    total_ns: int


@dataclasses.dataclass(slots=True)
class Plan:
    """Shares and bounds of one run, or of the middle (P50) of `runs` runs of one condition."""

    run_id: str
    condition_id: str | None
    runs: int
    timing: str | None
    total_ns: int
    stages: list[StageShare]
    speedups: list[SpeedUp]
    combined: SpeedUp | None
    """All asked speed-ups at once; None for fewer than two."""
    notes: list[str]
    parts: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    """Of one run: stage -> {part: ns}; see reading/parts.py. Empty for many, or where only a row is there."""
    steps: dict[str, Any] | None = None
    """Of one run too: the steps of its samplers."""
    named_share: float | None = None
    """The share of the runs' time that has a name; null where it is not known."""


def plan(
    rows: list[dict[str, Any]], speedups: dict[str, float], run_id: str, detail: Run | None = None
) -> Plan:
    """Of the rows of one run or of many of one condition and timing mode; `speedups`: stage -> k.

    `detail`, the run itself where it is at hand, tells of overlaps. Raises ValueError for a stage of which
    the runs have no time.
    """
    times = [stages_of(row) for row in rows]
    totals = [row["total_ns"] for row in rows]
    if None in totals:
        raise ValueError("the times of this run are damaged: `stagexec audit` names where")
    total = _middle(totals)
    lower = any(row["lower_bound"] for row in rows)
    shares: list[StageShare] = []
    for stage in sorted({stage for one in times for stage in one}, key=_order):
        spent = [one.get(stage, 0) for one in times]
        share = statistics.median(ns / of if of else 0.0 for ns, of in zip(spent, totals, strict=True))
        limit = 1 / (1 - share) if share < 1 else None
        shares.append(StageShare(stage, _middle(spent), share, limit, lower and stage == RESIDENCY))
    share_of = {one.stage: one.share for one in shares}
    for stage in speedups:
        if not share_of.get(stage):
            raise ValueError(f"{stage}: no time was spent there, so nothing can be gained")
    found = [_speed_up(stage, {stage: k}, times, totals) for stage, k in speedups.items()]
    together = _speed_up(" and ".join(speedups), speedups, times, totals) if len(found) > 1 else None
    first = rows[0]
    return Plan(
        run_id=run_id,
        condition_id=first["condition_id"],
        runs=len(rows),
        timing=first["timing"],
        total_ns=total,
        stages=shares,
        speedups=found,
        combined=together,
        notes=_notes(rows, lower, speedups, detail),
        parts=parts.part_times(detail) if detail is not None else {},
        steps=parts.steps(detail) if detail is not None else None,
        named_share=named.share_of_rows(rows),
    )


def _order(stage: str) -> tuple[int, str]:
    known = list(sets.STAGES)
    return (known.index(stage) if stage in known else len(known), stage)


def _middle(values: list[int]) -> int:
    return round(statistics.median(values))


def _speed_up(
    name: str, speedups: dict[str, float], times: list[dict[str, int]], totals: list[int]
) -> SpeedUp:
    """What is left of each run, and its middle: middle shares of several stages may exceed 1 together."""
    left = []
    for one, total in zip(times, totals, strict=True):
        faster = {stage: one.get(stage, 0) / total for stage in speedups} if total else {}
        slower = [share / speedups[stage] for stage, share in faster.items()]
        left.append(1 - sum(faster.values()) + sum(slower))
    rest = statistics.median(left)
    if not math.isfinite(rest) or not rest:
        raise ValueError(f"{name}: a factor so small makes it infinitely slow")
    k = next(iter(speedups.values())) if len(speedups) == 1 else None
    return SpeedUp(name, k, 1 / rest, round(_middle(totals) * rest))


def _notes(
    rows: list[dict[str, Any]], lower: bool, speedups: dict[str, float], detail: Run | None
) -> list[str]:
    found = []
    outcome = rows[0]["outcome"]
    if outcome not in COMPLETE:
        state = "is still under way" if outcome is None else f"ended as {outcome}"
        found.append(f"the run {state}: the shares are of what it got to, not of a whole run")
    if lower:
        found.append(
            f"{RESIDENCY} is a lower bound: the host pages weights in while it samples, so sampling's share "
            "is an upper one"
        )
    if len(rows) > 1:
        found.append(f"P50 over {len(rows)} runs of one condition that executed as many nodes")
    if any("external_wait" in stages_of(row) for row in rows):
        found.append("external_wait waits for other machines or tasks: it gets shorter only where they do")
    if detail is not None:
        for stage, ns in overlapping(detail).items():
            found.append(
                f"{stage} also ran for {human(ns)} on other lanes, beside the main one: a faster main lane "
                "may then wait for them"
            )
    if any(k < 1 for k in speedups.values()):
        found.append("a factor below 1 makes the stage slower")
    return found


def overlapping(run: Run) -> dict[str, int]:
    """Stage -> ns in which other lanes were in it too, as the union of their intervals."""
    intervals: dict[str, list[tuple[int, int]]] = {}
    for span in derive.spans(run):
        if span["stage"] is not None:
            intervals.setdefault(span["stage"], []).append((span["start_ns"], span["end_ns"]))
    return {stage: derive.overlap(some).union_ns for stage, some in intervals.items()}
