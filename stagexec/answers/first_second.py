"""What of a first run's time the second of the same work did not take: paid once, cached, or noise."""

from __future__ import annotations

import dataclasses
from typing import Any

from stagexec.answers.words import human, percent
from stagexec.reading import derive, parts, startup
from stagexec.reading.graph import Graph
from stagexec.reading.runs import Run

ONE_TIME_SHARE = 0.8
"""A first run of which this share was paid once is called mostly one-time cost."""

WAITING = frozenset({"queue_wait", "external_wait"})
ONCE = "model_load_residency"

KINDS = ("once", "cached", "speed", "waiting")


@dataclasses.dataclass(slots=True)
class Split:
    """First minus second, in ns; the four add up to the difference of the totals exactly.

    `once_ns`: loading, building, uploading, compiling, the first step's excess. `cached_ns`: work of nodes
    that the second had from the cache: it comes back when their inputs change. `speed_ns`: the same work at
    another speed. `waiting_ns`: queue and external waits. `first_ns` and `second_ns` are without waiting.
    """

    first_ns: int
    second_ns: int
    once_ns: int
    cached_ns: int
    speed_ns: int
    waiting_ns: int

    @property
    def share(self) -> float | None:
        """Once ÷ first; None of a first run that took no time."""
        return self.once_ns / self.first_ns if self.first_ns > 0 else None


def split(first: Run, second: Run) -> Split:
    """Two runs of the same work, in their order."""
    sides = (_sums(first, _from_cache(second)), _sums(second, _from_cache(first)))
    moved = {kind: sides[0][kind] - sides[1][kind] for kind in KINDS}
    one, two = _excess(first), _excess(second)
    if one is not None and two is not None:  # both sampled: the first step's excess is in both sums
        moved["once"] += one - two
        moved["speed"] -= one - two
    active = [sum(side.values()) - side["waiting"] for side in sides]
    return Split(active[0], active[1], *(moved[kind] for kind in KINDS))


def _from_cache(run: Run) -> set[str]:
    lists = derive.node_lists(run, run.visits(), Graph(run))
    return {*lists["cached_nodes"], *lists["cached_in_run"]} - set(lists["executed_nodes"])


def _sums(run: Run, cached_there: set[str]) -> dict[str, int]:
    node_of = {visit.visit: visit.node_id for visit in run.visits()}
    found = dict.fromkeys(KINDS, 0)
    for stage, part, start, end, visit, _ in run.segments.rows():
        node = node_of.get(visit) if visit is not None else None
        if stage in WAITING:
            kind = "waiting"
        elif stage == ONCE or (stage, part) == ("sampling", "compile"):
            kind = "once"
        else:
            kind = "cached" if node in cached_there else "speed"
        found[kind] += end - start
    return found


def _excess(run: Run) -> int | None:
    """How much longer the first step of the samplers took than the middle one of the others."""
    steps = parts.steps(run)
    if steps is None or steps["middle_ns"] is None:
        return None
    return int(steps["first_ns"] - steps["middle_ns"])


def says(found: Split, first: str = "the first run", second: str = "the second") -> str:
    """In words; each figure is one of `found`."""
    times = f"{first} took {human(found.first_ns)} without waiting, {second} {human(found.second_ns)}"
    told = []
    if found.once_ns > 0:
        told.append(f"{percent(found.share)} of the first was one-time cost ({human(found.once_ns)})")
    else:
        told.append("no one-time cost shows")
    if found.cached_ns > 0:
        told.append(f"{human(found.cached_ns)} came from the cache and comes back when its inputs change")
    elif found.cached_ns < 0:
        told.append(f"{human(-found.cached_ns)} of the second came from the cache in the first")
    if found.speed_ns:
        faster = "less" if found.speed_ns > 0 else "more"
        told.append(f"the same work took {human(abs(found.speed_ns))} {faster}")
    return f"{times}: {'; '.join(told)}"


def reloaded(run: Run) -> bool:
    """Did it load a model again that its process had? What it paid is then no figure of a second run."""
    return run.startup_class == startup.SWITCHED


def figures(found: Split) -> dict[str, Any]:
    """As JSON."""
    return {**dataclasses.asdict(found), "share": found.share}
