"""What follows from a run's raw events: times per stage and visit, waste, node lists, spans, roll-ups."""

from __future__ import annotations

import bisect
import dataclasses
from typing import Any

from stagexec import stages as sets
from stagexec.format import SPAN_COLUMNS
from stagexec.reading.graph import Graph
from stagexec.reading.runs import Run, Visit

WASTED_KIND = "estimated"
"""Host time of device stages stands for device time, where there are no device events."""


LOOP = frozenset({"queue_wait", "executor_prepare", "executor_overhead"})
"""Stages of the loop round the nodes."""


def stage_times(run: Run) -> dict[str, int]:
    """Nanoseconds per stage, in the order in which the stages first came."""
    found: dict[str, int] = {}
    rows = run.segments
    for stage, start, end in zip(rows.stage, rows.start_ns, rows.end_ns, strict=True):
        found[stage] = found.get(stage, 0) + end - start
    return found


@dataclasses.dataclass(slots=True)
class VisitTime:
    """Main-lane time of one visit: in all, and per stage as [ns, ns in segments that a seam opened]."""

    self_ns: int
    stages: dict[str, list[int]]

    def main_stage(self) -> tuple[str, bool] | None:
        """The stage with the most time, and whether a seam opened (most of) it; None without segments.

        The loop's own stages are no work of the node's, however long they took.
        """
        own = [stage for stage in self.stages if stage not in LOOP]
        if not own:
            return None
        name = max(own, key=lambda stage: self.stages[stage][0])
        total, by_seam = self.stages[name]
        return name, by_seam * 2 > total


def visit_times(run: Run) -> dict[int, VisitTime]:
    """Main-lane time per visit number."""
    found: dict[int, VisitTime] = {}
    for stage, _, start, end, visit, seam in run.segments.rows():
        if visit is None:
            continue
        time = found.get(visit)
        if time is None:
            time = found[visit] = VisitTime(0, {})
        time.self_ns += end - start
        pair = time.stages.setdefault(stage, [0, 0])
        pair[0] += end - start
        if seam is not None:
            pair[1] += end - start
    return found


def stage_and_origin(visit: Visit, time: VisitTime | None) -> tuple[str | None, str | None]:
    """The stage in which a visit mostly was, and where that stage comes from."""
    main = time.main_stage() if time else None
    if main is None:
        return visit.class_stage, visit.class_origin
    stage, by_seam = main
    return stage, "seam" if by_seam else (visit.class_origin or "none")


def messages(run: Run) -> list[dict[str, Any]]:
    """What nodes sent to clients by socket: {node_id, node_class, messages, reached, sockets, delivered}."""
    found = []
    for mark in run.marks:
        if mark.name != "messages" or not isinstance(mark.detail, dict):
            continue
        told = {name: _count(mark.detail.get(name)) for name in ("messages", "reached", "sockets")}
        good = bool(mark.detail.get("whole")) and told["reached"] > 0
        found.append({"node_id": mark.node_id, "node_class": mark.node_class, **told, "delivered": good})
    return found


def _count(value: Any) -> int:
    """A number of things; 0 for what a damaged line has in its place."""
    return value if type(value) is int and 0 <= value < 2**40 else 0


def delivered_nodes(run: Run) -> list[str]:
    """Nodes whose promise was kept: they own a file that is there, sent what reached a client, or have
    output that is no file at all."""
    kept: dict[str, None] = {}
    with_files: set[str] = set()
    for artifact in run.artifacts:
        if artifact.node_id is None:
            continue
        with_files.add(artifact.node_id)
        if artifact.state in ("verified", "unverified") and not artifact.orphan:
            kept[artifact.node_id] = None
    outputs = run.executed.outputs if run.executed and run.outcome != "lost" else {}
    for node, entries in outputs.items():
        if entries and node not in with_files:
            kept[node] = None
    for one in messages(run):
        if one["delivered"] and one["node_id"] is not None:
            kept[one["node_id"]] = None
    return list(kept)


def useful_visits(run: Run, visits: list[Visit], graph: Graph) -> set[int]:
    """Visits of nodes that a delivered artifact depends on."""
    needed = graph.needed(delivered_nodes(run))
    return {v.visit for v in visits if v.node_id in needed}


def wasted_ns(run: Run, visits: list[Visit], graph: Graph) -> int | None:
    """Time spent for nothing: device stages of visits that no delivered artifact depends on, and all
    device stages after a cancel that ended the run. None while the run is under way."""
    if run.outcome is None:
        return None
    useful = useful_visits(run, visits, graph)
    cancel = run.cancelled_ns
    wasted = 0
    rows = run.segments
    for stage, start, end, visit in zip(rows.stage, rows.start_ns, rows.end_ns, rows.visit, strict=True):
        if stage in sets.HOST_STAGES:
            continue
        if visit is not None and visit not in useful:
            wasted += end - start
        elif cancel is not None and end > cancel:
            wasted += end - max(start, cancel)
    return wasted


def node_lists(run: Run, visits: list[Visit], graph: Graph) -> dict[str, list[Any]]:
    """The node lists of a run, by their names in the contract."""
    expected = graph.ancestors(graph.selected)
    cached = dict.fromkeys(run.cached)
    executed = dict.fromkeys(v.node_id for v in visits if v.kind == "executed" and v.node_id is not None)
    grew = {v.node_id: v.parent for v in visits if v.parent is not None}  # also where no growth was filed
    hits = dict.fromkeys(
        v.node_id for v in visits if v.kind == "cached" and v.node_id is not None and v.node_id not in cached
    )
    return {
        "selected_outputs": list(graph.selected),
        "expected_nodes": list(expected),
        "cached_nodes": list(cached),
        "cached_in_run": list(hits),
        "executed_nodes": list(executed),
        "not_executed": [n for n in expected if n not in executed and n not in cached and n not in hits],
        "unexpected": [
            {"node_id": n, "parent": graph.parent_of.get(n, grew.get(n))}
            for n in executed
            if n not in expected
        ],
    }


def rollup(visits: list[Visit], times: dict[int, VisitTime], graph: Graph) -> dict[str, dict[str, int]]:
    """Per node that expanded: wall clock from its first visit to the last of what grew from it, the
    main-lane time of all of them, and how many nodes grew (nested growth included)."""
    bounds: dict[str, list[int]] = {}
    for visit in visits:
        if visit.node_id is None:
            continue
        own = times[visit.visit].self_ns if visit.visit in times else 0
        mine = bounds.setdefault(visit.node_id, [visit.start_ns, visit.end_ns, 0, 0])
        _widen(mine, visit.start_ns, visit.end_ns, own, 0)
    # A child is filed after its parent, so the last filed come first here and nesting adds up.
    for node in reversed(graph.parent_of):
        parent = graph.parent_of[node]
        child = bounds.get(node)
        if child is not None:
            start, end, own, count = child
            _widen(bounds.setdefault(parent, [start, end, 0, 0]), start, end, own, count + 1)
        elif parent in bounds:
            bounds[parent][3] += 1
    return {
        node: {"wall_ns": end - start, "self_ns": own, "nodes": count}
        for node, (start, end, own, count) in bounds.items()
        if node in graph.children_of
    }


def _widen(bounds: list[int], start: int, end: int, own: int, count: int) -> None:
    bounds[0] = min(bounds[0], start)
    bounds[1] = max(bounds[1], end)
    bounds[2] += own
    bounds[3] += count


def spans(run: Run) -> list[dict[str, Any]]:
    """The intervals on other lanes, in order of their start. Times in ns; `detail` as recorded."""
    found = [
        dict(zip(SPAN_COLUMNS, row, strict=True))
        for event in run.span_events
        for row in zip(*(getattr(event, name) for name in SPAN_COLUMNS), strict=True)
    ]
    return sorted(found, key=lambda span: int(span["start_ns"]))


@dataclasses.dataclass(slots=True)
class Overlap:
    """Intervals taken together: the most at once, the time any of them ran, and the longest sum over a
    chain of them in which each starts after the one before has ended."""

    concurrency: int
    union_ns: int
    critical_ns: int


def overlap(intervals: list[tuple[int, int]]) -> Overlap:
    """Of (start_ns, end_ns) pairs in any order; touching intervals do not overlap."""
    edges = sorted([(end, -1) for _, end in intervals] + [(start, 1) for start, _ in intervals])
    running = most = union = since = 0
    for at, step in edges:
        if step > 0 and running == 0:
            since = at
        running += step
        if step < 0 and running == 0:
            union += at - since
        most = max(most, running)
    return Overlap(most, union, _longest_chain(intervals))


def _longest_chain(intervals: list[tuple[int, int]]) -> int:
    by_end = sorted(intervals, key=lambda pair: (pair[1], pair[0]))
    ends: list[int] = []
    best: list[int] = [0]
    for start, end in by_end:
        before = best[bisect.bisect_right(ends, start)]
        ends.append(end)
        best.append(max(best[-1], before + end - start))
    return best[-1]


def concurrency(found: list[dict[str, Any]]) -> dict[str, int]:
    """How the async node tasks among `spans(run)` overlapped, as a JSON object."""
    tasks = [(s["start_ns"], s["end_ns"]) for s in found if s["lane"].startswith("task:")]
    return dataclasses.asdict(overlap(tasks))
