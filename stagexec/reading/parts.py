"""The finer labels inside a run's stages: time per part, and the steps of its samplers."""

from __future__ import annotations

import statistics
from typing import Any

from stagexec.reading.runs import Run

REST = "rest"
"""What of a stage is in no part, where it has parts."""


def part_times(run: Run) -> dict[str, dict[str, int]]:
    """Stage -> {part: ns} of the stages that have parts; what lies in none is `rest`, and they add up."""
    found: dict[str, dict[str, int]] = {}
    named = set()
    for stage, part, start, end, _, _ in run.segments.rows():
        one = found.setdefault(stage, {})
        name = REST if part is None else part
        one[name] = one.get(name, 0) + end - start
        if part is not None:
            named.add(stage)
    return {
        stage: {part: ns for part, ns in one.items() if ns or part != REST}
        for stage, one in found.items()
        if stage in named
    }


def steps(run: Run) -> dict[str, Any] | None:
    """The evaluations of the model by samplers: {count, first_ns, middle_ns}; None where none were seen.

    `middle_ns` is the median of all after the first; None with one alone.
    """
    lengths: list[int] = []
    inside = nested = False
    visit_before: int | None = None
    for stage, part, start, end, visit, _ in run.segments.rows():
        if (stage, part) == ("sampling", "step"):
            if nested and lengths and visit == visit_before:
                lengths[-1] += end - start  # the same step, after what it called
            else:
                lengths.append(end - start)
            inside, nested, visit_before = True, False, visit
        else:
            nested = (inside or nested) and stage != "sampling" and visit == visit_before
            inside = False
    if not lengths:
        return None
    middle = round(statistics.median(lengths[1:])) if len(lengths) > 1 else None
    return {"count": len(lengths), "first_ns": lengths[0], "middle_ns": middle}
