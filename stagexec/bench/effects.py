"""Main effects of a factorial plan: what each level of a factor does, over all combinations with it."""

from __future__ import annotations

from typing import Any

import msgspec

from stagexec.bench import launches, stats
from stagexec.bench.plan import Unit
from stagexec.bench.results import Record
from stagexec.bench.tables import Tables


def effects(tables: Tables) -> list[dict[str, Any]]:
    """`{unit, factor, level, against, ratio…}`: each level against the first one of its factor.

    A measure's value is the geometric mean over the combinations (and over the runs of its launches); only
    combinations that were measured count, and only where each has, with the rest of its levels unchanged, a
    counterpart that was measured too.
    """
    found = []
    for unit in tables.plan.unit:
        for factor, levels in factors(tables).items():
            for level in levels[1:]:
                ratio = _effect(tables, unit, factor, level, levels[0])
                if ratio is not None:
                    row = {"unit": unit.name, "factor": factor, "level": level, "against": levels[0]}
                    found.append({**row, **msgspec.to_builtins(ratio)})
    return found


def factors(tables: Tables) -> dict[str, list[str]]:
    """factor -> its levels, in the order of the plan; empty for a plan of plain arms."""
    found: dict[str, list[str]] = {}
    for arm in tables.plan.arm:
        for factor, level in arm.levels.items():
            levels = found.setdefault(factor, [])
            if level not in levels:
                levels.append(level)
    return found


def _effect(tables: Tables, unit: Unit, factor: str, level: str, base: str) -> stats.Ratio | None:
    by_levels = {tuple(sorted(arm.levels.items())): arm.name for arm in tables.plan.arms_of(unit)}
    couples = []
    for arm in tables.plan.arms_of(unit):
        if arm.levels.get(factor) == level:
            twin = by_levels.get(tuple(sorted({**arm.levels, factor: base}.items())))
            if twin is not None:
                couples.append((_runs(tables, unit, arm.name), _runs(tables, unit, twin)))
    couples = [(a, b) for a, b in couples if a and b]
    if not couples:
        return None
    pairs = sorted(set.intersection(*(set(a) & set(b) for a, b in couples)))
    groups = launches.blocks([[side[pair] for pair in pairs] for couple in couples for side in couple])

    def mean(number: int, group: list[int]) -> float:
        return launches.geometric([couple[number][pairs[i]]["total_ns"] for couple in couples for i in group])

    sides = [[mean(number, group) for group in groups] for number in (0, 1)]
    return stats.paired_ratio(sides[0], sides[1], tables.plan.seed, tables.family)


def _runs(tables: Tables, unit: Unit, arm: str) -> dict[int, Record]:
    if tables.cell(unit.name, "", arm).status != "measured":
        return {}
    return tables.good(unit, "", arm)
