"""How often runs fail, where and why, and what that costs: counts, rates with intervals, wasted time."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagexec.reading.relation import Runs

FAILED = ("failed", "partial", "lost")
"""Outcomes that count as failures. A cancel is a person's wish: counted apart, and left out of the rate."""

STOPPED = "process_stopped"
"""The cause of runs that ended with their process as a person or the system wished (a signal, a restart):
counted apart like a cancel, and neither a failure nor an attempt."""

DELIVERED = ("success", "success_unverified")
"""Outcomes of runs that handed over everything they promised."""

Z95 = 1.959963984540054
"""Of the standard normal distribution: 95% lie within."""


def counts_as_failure(outcome: str | None, cause: str | None) -> bool:
    """Whether a run that ended so is a failure."""
    return outcome in FAILED and cause != STOPPED


HOUR_NS = 3_600_000_000_000

PLACES = {"stage": "error_stage", "cause": "cause", "node": "error_class", "pack": "error_pack"}
"""Groupings by what went wrong: their rates are shares of all attempts."""

KINDS = {
    "condition": "condition_id",
    "host": "host_version",
    "day": "strftime(make_timestamp(accepted_wall_ns // 1000), '%Y-%m-%d')",
}
"""Groupings of the runs themselves: their rates are of the attempts in the group."""

BY = (*PLACES, *KINDS)


@dataclasses.dataclass(slots=True)
class Group:
    """Runs taken together. Times in ns; rates of 1 with 95% Wilson intervals; costs in the price's money.

    `attempts` are the runs that have ended and were neither cancelled nor `stopped` with their process.
    `busy_ns` is the time from execution's
    start to the run's end; it is what the cost counts. None where there is nothing to divide by.
    """

    group: str | None
    accepted: int
    running: int
    cancelled: int
    attempts: int
    failures: int
    outcomes: dict[str, int]
    failure_rate: float | None
    failure_low: float | None
    failure_high: float | None
    reliability: float | None
    """Runs that delivered all, of all accepted that have ended and were not stopped with their process."""
    reliability_low: float | None
    reliability_high: float | None
    delivered_runs: int
    delivered_outputs: int
    busy_ns: int
    wasted_ns: int
    wasted_kind: str | None
    cost: float | None = None
    wasted_cost: float | None = None
    cost_per_delivered_run: float | None = None
    cost_per_delivered_output: float | None = None
    stopped: int = 0
    """Runs that a planned end of the process took with it."""
    late_cancels: int = 0
    """Cancels that came too late and had no effect: the runs count by their outcome."""


@dataclasses.dataclass(slots=True)
class Failures:
    """The whole, and the groups, worst first."""

    by: str | None
    price_per_gpu_hour: float | None
    total: Group
    groups: list[Group]


def wilson(hits: int, of: int) -> tuple[float | None, float | None]:
    """The 95% Wilson score interval of a share; (None, None) of nothing."""
    if of == 0:
        return None, None
    share, spread = hits / of, Z95 * Z95 / of
    middle = (share + spread / 2) / (1 + spread)
    half = Z95 * math.sqrt(share * (1 - share) / of + spread / (4 * of)) / (1 + spread)
    # At the ends the bound is exact, and the formula off by its rounding.
    return middle - half if hits else 0.0, middle + half if hits < of else 1.0


def failures(
    runs: Runs, by: str | None = None, since_ns: int | None = None, price: float | None = None
) -> Failures:
    """Of the runs accepted since `since_ns` (1970), warm-ups apart, by one of BY. `price`: a GPU hour's."""
    where, values = "warmup IS NOT TRUE", list[Any]()
    if since_ns is not None:
        where, values = f"{where} AND accepted_wall_ns >= ?", [since_ns]
    total = _group(None, _counts(runs, "NULL", where, values), None, price)
    if by is None:
        return Failures(None, price, total, [])
    expression = PLACES.get(by) or KINDS[by]
    found: dict[Any, list[dict[str, Any]]] = {}
    for row in _counts(runs, expression, where, values):
        found.setdefault(row["name"], []).append(row)
    of = total.attempts if by in PLACES else None
    groups = [_group(name, rows, of, price) for name, rows in found.items()]
    if by in PLACES:
        groups = [group for group in groups if group.failures or group.cancelled or group.stopped]
    worst = sorted(groups, key=lambda g: (-g.failures, -g.wasted_ns, g.group or ""))
    return Failures(by, price, total, worst)


def _counts(runs: Runs, expression: str, where: str, values: list[Any]) -> list[dict[str, Any]]:
    return runs.ask(
        f"SELECT CAST({expression} AS VARCHAR) AS name, outcome, "
        f"coalesce(cause = '{STOPPED}', false) AS stopped, "
        "wasted_kind, count(*) AS runs, "
        "CAST(sum(CAST(total_ns AS HUGEINT) - coalesce(queue_wait_ns, 0)) AS HUGEINT) AS busy_ns, "
        "CAST(sum(coalesce(wasted_ns, 0)) AS HUGEINT) AS wasted_ns, "
        "CAST(sum(delivered) AS BIGINT) AS outputs, "
        "count(*) FILTER (cancel_had_effect IS FALSE) AS late_cancels "
        f"FROM runs WHERE {where} GROUP BY ALL ORDER BY ALL",
        values,
    )


def _group(name: str | None, rows: list[dict[str, Any]], of: int | None, price: float | None) -> Group:
    """One group of counted rows; `of`: the attempts that its failures are a share of, if not its own."""
    count: Counter[str | None] = Counter()
    for row in rows:
        count[row["outcome"]] += row["runs"]
    stopped = sum(row["runs"] for row in rows if row["stopped"] and row["outcome"] in FAILED)
    accepted, running, cancelled = sum(count.values()), count[None], count["cancelled"]
    attempts = accepted - running - cancelled - stopped if of is None else of
    failed = sum(count[outcome] for outcome in FAILED) - stopped
    good = sum(count[outcome] for outcome in DELIVERED)
    low, high = wilson(failed, attempts)
    ended = accepted - running - stopped
    sure_low, sure_high = wilson(good, ended)
    kinds = {row["wasted_kind"] for row in rows if row["wasted_ns"]}
    group = Group(
        group=name,
        accepted=accepted,
        running=running,
        cancelled=cancelled,
        stopped=stopped,
        late_cancels=sum(row["late_cancels"] for row in rows),
        attempts=attempts,
        failures=failed,
        outcomes={outcome: runs for outcome, runs in sorted(count.items(), key=str) if outcome is not None},
        failure_rate=failed / attempts if attempts else None,
        failure_low=low,
        failure_high=high,
        reliability=good / ended if ended else None,
        reliability_low=sure_low,
        reliability_high=sure_high,
        delivered_runs=good,
        delivered_outputs=sum(row["outputs"] or 0 for row in rows),
        busy_ns=sum(row["busy_ns"] or 0 for row in rows),
        wasted_ns=sum(row["wasted_ns"] or 0 for row in rows),
        wasted_kind=next(iter(kinds)) if len(kinds) == 1 else "mixed" if kinds else None,
    )
    if price is not None:
        _price(group, price)
    return group


def _price(group: Group, price: float) -> None:
    group.cost = group.busy_ns / HOUR_NS * price
    group.wasted_cost = group.wasted_ns / HOUR_NS * price
    if group.delivered_runs:
        group.cost_per_delivered_run = group.cost / group.delivered_runs
    if group.delivered_outputs:
        group.cost_per_delivered_output = group.cost / group.delivered_outputs
