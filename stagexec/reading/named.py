"""How much of a run has a name, and what ran in the rest, as far as a thread beside the run saw it.

A segment has a name where a seam opened it, where it is the loop's own, and where its node's class is known
to do one thing. So has one of a class that does several, of which the likely one is told as its hint, but
that is counted apart. What is in a class that is not known is unnamed: it counts as named only as far as it
was seen what ran there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from stagexec import stages as sets
from stagexec.reading.runs import Run

LONG_NS = 200_000_000
"""A visit of which less is unnamed is not listed."""

KINDS = ("loop_ns", "seam_ns", "class_ns", "sampled_ns", "hint_ns", "unnamed_ns")


def parts(run: Run) -> dict[str, int]:
    """The run's time (ns) by where its names come from; the sum is the total, `unnamed_ns` what is left."""
    found = dict.fromkeys(KINDS, 0)
    unnamed = _by_visit(run, found)
    hinted = {visit.visit for visit in run.visits() if visit.hint is not None}
    seen = {visit: sum(names.values()) for visit, names in sampled(run).items()}
    for visit, ns in unnamed.items():
        # Looks lie up to a second apart: what the last one stands for may reach past the segment's end.
        known = min(seen.get(visit, 0), ns)
        found["sampled_ns"] += known
        found["hint_ns" if visit in hinted else "unnamed_ns"] += ns - known
    return found


def share(run: Run) -> float | None:
    """The share of the run's total that has a name; None of a run without length."""
    found = parts(run)
    return share_of(sum(found.values()), found["unnamed_ns"])


def share_of(total_ns: int | None, unnamed_ns: int | None) -> float | None:
    """The same of one or many runs' added times; None where one of them is not known."""
    return (total_ns - unnamed_ns) / total_ns if total_ns and unnamed_ns is not None else None


def share_of_many(rows: Iterable[dict[str, Any]]) -> float | None:
    """The same of many runs together, from {total_ns, named_share} of each; none of those that lack it."""
    known = [(row["total_ns"], row["named_share"]) for row in rows if row["named_share"] is not None]
    total = sum(ns for ns, _ in known)
    return sum(ns * share for ns, share in known) / total if total else None


def share_of_rows(rows: Iterable[dict[str, Any]]) -> float | None:
    """The same from rows with table.COLUMNS."""
    pairs = [(row["total_ns"], row["unnamed_ns"]) for row in rows]
    return share_of_many({"total_ns": ns, "named_share": share_of(ns, rest)} for ns, rest in pairs)


def unnamed(run: Run) -> list[dict[str, Any]]:
    """The visits of which 0.2 s or more have no name but their class, the longest first.

    Each {visit, node_id, node_class, stage, ns, ran: [{name, share}]}. `stage` is node_other, or that of a
    class which is known to do one thing; those are listed only where it was seen what ran.
    """
    visits = {visit.visit: visit for visit in run.visits()}
    seen = sampled(run)
    times: dict[tuple[int, str], int] = {}
    named = _named_stages(run)
    for stage, _, start, end, visit, seam in run.segments.rows():
        if visit is None or seam is not None or stage in sets.HOST_STAGES:
            continue
        if visit in seen or (visit, stage) not in named:
            times[visit, stage] = times.get((visit, stage), 0) + end - start
    rows = []
    for (visit, stage), ns in times.items():
        if ns < LONG_NS:
            continue
        of = visits.get(visit)
        row = {
            "visit": visit,
            "node_id": of.node_id if of else None,
            "node_class": of.class_type if of else None,
            "stage": stage,
            "ns": ns,
            "ran": _ran(seen.get(visit, {})),
        }
        rows.append(row)
    return sorted(rows, key=lambda row: -int(row["ns"]))


def _ran(names: dict[str | None, int]) -> list[dict[str, Any]]:
    total = sum(names.values())
    if total <= 0:
        return []
    longest = sorted(names.items(), key=lambda item: (item[0] is None, -item[1]))
    return [{"name": name, "share": ns / total} for name, ns in longest]


def sampled(run: Run) -> dict[int, dict[str | None, int]]:
    """Visit -> {what was seen to run, None for all that was rare: ns that its looks stand for}."""
    found: dict[int, dict[str | None, int]] = {}
    for event in run.sample_events:
        for visit, name, ns in zip(event.visit, event.name, event.ns, strict=True):
            names = found.setdefault(visit, {})
            names[name] = names.get(name, 0) + ns
    return found


def _named_stages(run: Run) -> set[tuple[int, str | None]]:
    """(visit, stage) of the classes that are known to do one thing."""
    return {
        (visit.visit, visit.class_stage)
        for visit in run.visits()
        if does_one_thing(visit.class_stage, visit.class_origin)
    }


@functools.lru_cache(1024)
def does_one_thing(stage: str | None, origin: str | None) -> bool:
    """Is a class of this stage, which comes from `origin`, in that stage for the whole visit?"""
    return stage is not None and (origin == "table" or (origin == "type" and stage != "node_other"))


def _by_visit(run: Run, found: dict[str, int]) -> dict[int, int]:
    """Add what has a name to `found`; the rest by visit."""
    named = _named_stages(run)
    unnamed: dict[int, int] = {}
    for stage, _, start, end, visit, seam in run.segments.rows():
        if seam is not None:
            found["seam_ns"] += end - start
        elif visit is None or stage in sets.HOST_STAGES:
            found["loop_ns"] += end - start
        elif (visit, stage) in named:
            found["class_ns"] += end - start
        else:
            unnamed[visit] = unnamed.get(visit, 0) + end - start
    return unnamed
