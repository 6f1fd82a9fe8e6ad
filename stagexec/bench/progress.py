"""How far a bench is: measures that are planned, and servers that are still to be started."""

from __future__ import annotations

from collections.abc import Container

from stagexec.bench.plan import Arm, Plan, Unit
from stagexec.bench.units import STATES


def planned(plan: Plan, out: Container[tuple[str, str]]) -> int:
    """Counted measures in all, of the (unit, arm) that are not `out`."""
    return sum(plan.measures_of(unit) for unit, _ in _places(plan, out))


def launches(plan: Plan, out: Container[tuple[str, str]], done: Container[tuple[str, str, int]]) -> int:
    """Servers that are still to be started: one for each server of each round that is not done."""
    wanted = set()
    for unit, arm in _places(plan, out):
        size = round_size(plan, unit)
        for pair in range(plan.measures_of(unit)):
            if (unit.name, arm.name, pair) not in done:
                wanted.add((unit.name, plan.server_of(unit, arm), pair // size))
    return len(wanted)


def round_size(plan: Plan, unit: Unit) -> int:
    """Measures of an arm that one launch of its server makes."""
    if STATES[unit.state].launch_each:
        return 1
    if len({plan.server_of(unit, arm) for arm in plan.arms_of(unit)}) <= 1:
        return plan.measures_of(unit)
    return plan.chunk * plan.repeats_of(unit)


def _places(plan: Plan, out: Container[tuple[str, str]]) -> list[tuple[Unit, Arm]]:
    found = [(unit, arm) for unit in plan.unit for arm in plan.arms_of(unit)]
    return [(unit, arm) for unit, arm in found if (unit.name, arm.name) not in out]
