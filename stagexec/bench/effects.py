"""Main effects of a factorial plan: what each level of a factor does, over all combinations with it."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from stagexec.bench import stats
from stagexec.bench.plan import Unit
from stagexec.bench.tables import Tables


def effects(tables: Tables) -> list[dict[str, Any]]:
    """`{unit, factor, level, against, ratio…}`: each level against the first one of its factor.

    A pair's value is the geometric mean over the combinations; only combinations that were measured count,
    and only where each has, with the rest of its levels unchanged, a counterpart that was measured too.
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
                couples.append((_totals(tables, unit, arm.name), _totals(tables, unit, twin)))
    couples = [(a, b) for a, b in couples if a and b]
    if not couples:
        return None
    pairs = sorted(set.intersection(*(set(a) & set(b) for a, b in couples)))
    ours = [_mean([a[pair] for a, _ in couples]) for pair in pairs]
    theirs = [_mean([b[pair] for _, b in couples]) for pair in pairs]
    return stats.paired_ratio(ours, theirs, tables.plan.seed)


def _totals(tables: Tables, unit: Unit, arm: str) -> dict[int, float]:
    if tables.cell(unit.name, "", arm).status != "measured":
        return {}
    return {pair: float(run["total_ns"]) for pair, run in tables.good(unit, "", arm).items()}


def _mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
