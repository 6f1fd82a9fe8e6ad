"""The critical path of a run: which nodes its length hangs on, and what doing others beside them would bring.

A node's length is the time of its visits on the main lane, joined with that of its tasks on the event loop.
Nodes that were not visited (cached, not needed, left out) have no length and pass on no order.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable

from stagexec.answers.words import human
from stagexec.reading import derive, named
from stagexec.reading.graph import Graph
from stagexec.reading.runs import Run

CHAINS = 5
"""So many of the longest chains are told."""

Unit = tuple[str, bool]
"""(node id, after its expansion): a node that expands works before its children exist and after them."""


@dataclasses.dataclass(slots=True)
class NodeTime:
    """One visited node. Times in ns, those of the schedule from its start, with unlimited lanes.

    `length_ns` is `self_ns` joined with `task_ns`. `slack_ns`: how much longer it could take before the whole
    gets longer. `fan_in`: how many nodes it takes inputs from; `fan_out`: how many visited ones wait for it.
    """

    node_id: str
    class_type: str | None
    self_ns: int
    task_ns: int
    length_ns: int
    start_ns: int
    end_ns: int
    slack_ns: int
    level: int
    fan_in: int
    fan_out: int
    critical: bool
    parent: str | None


@dataclasses.dataclass(slots=True)
class Chain:
    """Nodes of which each has only the next to give to, and the next only it to wait for."""

    nodes: list[str]
    length_ns: int


@dataclasses.dataclass(slots=True)
class GraphPlan:
    """The graph of one run with the times that were measured. All times in ns.

    serial_ns: all nodes one after the other. measured_ns: what they took together, tasks overlapping.
    critical_ns: the longest path, below which no number of lanes gets. gain_ns = measured_ns - critical_ns;
    overlapped_total_ns is the run's total without it. parallelism = serial_ns / critical_ns, None without
    time. width: the most nodes on one level (levels count the links of the longest way to a node);
    most_at_once: the most nodes at work at the same moment, if each began as soon as it could.
    """

    run_id: str
    total_ns: int
    serial_ns: int
    measured_ns: int
    critical_ns: int
    gain_ns: int
    overlapped_total_ns: int
    parallelism: float | None
    width: int
    most_at_once: int
    critical_path: list[str]
    nodes: list[NodeTime]
    chains: list[Chain]
    named_share: float | None
    """The share of the run that has a name; null of a run without length."""
    notes: list[str]


def critical(run: Run) -> GraphPlan:
    """Of a run, whatever became of it: of what was executed. Linear in nodes and links but for a sort."""
    return _Plan(run).answer()


class _Plan:
    """The units of a run, their order, and the two walks over them."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.graph = Graph(run)
        self.notes: list[str] = []
        self.length: dict[Unit, int] = {}
        self.self_ns: dict[str, int] = {}
        self.task_ns: dict[str, int] = {}
        self.class_of: dict[str, str | None] = {}
        self.parent: dict[str, str | None] = {}
        self.measured_ns = self._read_visits()
        self.before: dict[Unit, list[Unit]] = {}
        self.after: dict[Unit, list[Unit]] = {unit: [] for unit in self.length}
        self._link()
        self.order = self._sorted()

    def _read_visits(self) -> int:
        """Lengths of all units; the union of all their intervals."""
        rows = self.run.segments
        grown: dict[str, int] = {}
        for event in self.run.growth:
            if event.parent is not None:
                grown.setdefault(event.parent, event.ts_mono_ns)
        of_visit: dict[int, Unit] = {}
        for visit in self.run.visits():
            node = visit.node_id
            if node is None:
                continue
            late = node in grown and visit.start_ns >= grown[node]
            of_visit[visit.visit] = (node, late)
            self.class_of[node] = visit.class_type
            self.parent[node] = visit.parent or self.graph.parent_of.get(node)
            self.length.setdefault((node, False), 0)
            if node in grown:
                self.length.setdefault((node, True), 0)
        intervals: dict[Unit, list[tuple[int, int]]] = {}
        for start, end, number in zip(rows.start_ns, rows.end_ns, rows.visit, strict=True):
            unit = None if number is None else of_visit.get(number)
            if unit is not None:
                intervals.setdefault(unit, []).append((start, end))
                self.self_ns[unit[0]] = self.self_ns.get(unit[0], 0) + end - start
        for span in derive.spans(self.run):
            unit = None if span["visit"] is None else of_visit.get(span["visit"])
            if unit is not None and span["lane"].startswith("task:"):
                start, end = span["start_ns"], span["end_ns"]
                intervals.setdefault(unit, []).append((start, end))
                self.task_ns[unit[0]] = self.task_ns.get(unit[0], 0) + end - start
        for unit, some in intervals.items():
            self.length[unit] = union(some)
        return union([one for some in intervals.values() for one in some])

    def _link(self) -> None:
        """What each unit waits for: nodes that were visited, by the links of the graph and of what grew."""
        last = {node: (node, (node, True) in self.length) for node, _ in self.length}
        results = {event.parent: event.results for event in self.run.growth if event.parent is not None}
        for unit in self.length:
            node, late = unit
            if late:
                kept = results.get(node) or self.graph.children_of.get(node, [])
                waits = [(node, False), *(last[one] for one in kept if one in last)]
            else:
                waits = [last[one] for one in self.graph.inputs.get(node, ()) if one in last]
                parent = self.parent.get(node)
                if parent is not None and (parent, False) in self.length:
                    waits.append((parent, False))
            self.before[unit] = [one for one in dict.fromkeys(waits) if one != unit]
            for one in self.before[unit]:
                self.after[one].append(unit)

    def _sorted(self) -> list[Unit]:
        """All units, each after what it waits for; what waits for itself comes last, by its visits."""
        left = {unit: len(some) for unit, some in self.before.items()}
        found = [unit for unit, count in left.items() if not count]
        for unit in found:  # grows as it goes
            for one in self.after[unit]:
                left[one] -= 1
                if not left[one]:
                    found.append(one)
        if len(found) < len(left):
            done = set(found)
            cycle = [unit for unit in left if unit not in done]
            self.notes.append(f"{len(cycle)} nodes wait for one another: their order is not known")
            for unit in cycle:
                self.before[unit] = [one for one in self.before[unit] if one in done]
            for unit in done:
                self.after[unit] = [one for one in self.after[unit] if one in done]
            for unit in cycle:
                self.after[unit] = []
            found += cycle
        return found

    def answer(self) -> GraphPlan:
        """The whole."""
        ends, levels, came = self._forward()
        whole = max(ends.values(), default=0)
        latest = self._backward(whole)
        path = self._path(ends, came)
        total = self.run.segments.total_ns()
        serial = sum(self.length.values())
        gain = self.measured_ns - whole
        counts: dict[int, int] = {}
        for unit, level in levels.items():
            if not unit[1]:
                counts[level] = counts.get(level, 0) + 1
        return GraphPlan(
            run_id=self.run.run_id,
            total_ns=total,
            serial_ns=serial,
            measured_ns=self.measured_ns,
            critical_ns=whole,
            gain_ns=gain,
            overlapped_total_ns=total - gain,
            parallelism=serial / whole if whole else None,
            width=max(counts.values(), default=0),
            most_at_once=at_once((ends[unit] - ns, ends[unit]) for unit, ns in self.length.items()),
            critical_path=list(dict.fromkeys(node for node, _ in path)),
            nodes=self._rows(ends, latest, levels, path),
            chains=self._chains(),
            named_share=named.share(self.run),
            notes=[*self.notes, *_notes(self.run, gain)],
        )

    def _forward(self) -> tuple[dict[Unit, int], dict[Unit, int], dict[Unit, Unit]]:
        """Earliest ends, levels, and by which unit each was held up longest."""
        ends: dict[Unit, int] = {}
        levels: dict[Unit, int] = {}
        came: dict[Unit, Unit] = {}
        for unit in self.order:
            waits = self.before[unit]
            held = max(waits, key=ends.__getitem__, default=None)
            if held is not None:
                came[unit] = held
            ends[unit] = self.length[unit] + (0 if held is None else ends[held])
            levels[unit] = max((levels[one] + 1 for one in waits), default=0)
        return ends, levels, came

    def _backward(self, whole: int) -> dict[Unit, int]:
        """Latest ends at which the whole is still as short."""
        latest: dict[Unit, int] = {}
        for unit in reversed(self.order):
            waiting = [latest[one] - self.length[one] for one in self.after[unit]]
            latest[unit] = min(waiting, default=whole)
        return latest

    def _path(self, ends: dict[Unit, int], came: dict[Unit, Unit]) -> list[Unit]:
        """The longest path, from its first unit on; units without time at its begin are left out."""
        at = max(ends, key=ends.__getitem__, default=None)
        found: list[Unit] = []
        while at is not None:
            found.append(at)
            at = came.get(at)
        found.reverse()
        while found and not self.length[found[0]]:
            del found[0]
        return found

    def _rows(
        self, ends: dict[Unit, int], latest: dict[Unit, int], levels: dict[Unit, int], path: list[Unit]
    ) -> list[NodeTime]:
        on_path = {node for node, _ in path}
        found = []
        for node in self.class_of:
            units = [unit for unit in ((node, False), (node, True)) if unit in self.length]
            waiting = {one for unit in units for one, _ in self.after[unit] if one != node}
            found.append(
                NodeTime(
                    node_id=node,
                    class_type=self.class_of[node],
                    self_ns=self.self_ns.get(node, 0),
                    task_ns=self.task_ns.get(node, 0),
                    length_ns=sum(self.length[unit] for unit in units),
                    start_ns=ends[units[0]] - self.length[units[0]],
                    end_ns=ends[units[-1]],
                    slack_ns=min(latest[unit] - ends[unit] for unit in units),
                    level=levels[units[0]],
                    fan_in=len(set(self.graph.inputs.get(node, ()))),
                    fan_out=len(waiting),
                    critical=node in on_path,
                    parent=self.parent.get(node),
                )
            )
        return found

    def _chains(self) -> list[Chain]:
        """The longest chains of two or more units, by their time."""
        found = []
        for unit in self.order:
            before = self.before[unit]
            if len(before) == 1 and len(self.after[before[0]]) == 1:
                continue  # in the middle of one
            chain, at = [unit], unit
            while len(self.after[at]) == 1 and len(self.before[self.after[at][0]]) == 1:
                at = self.after[at][0]
                chain.append(at)
            nodes = list(dict.fromkeys(node for node, _ in chain))
            if len(nodes) > 1:
                found.append(Chain(nodes, sum(self.length[one] for one in chain)))
        return heapq.nlargest(CHAINS, found, key=lambda chain: (chain.length_ns, len(chain.nodes)))


def union(intervals: list[tuple[int, int]]) -> int:
    """The time in which any of (start, end) pairs ran."""
    covered = 0
    until: int | None = None
    for start, end in sorted(intervals):
        begin = start if until is None or start > until else until
        if end > begin:
            covered += end - begin
        until = end if until is None or end > until else until
    return covered


def at_once(intervals: Iterable[tuple[int, int]]) -> int:
    """The most of (start, end) pairs that ran at the same moment; those without length do not count."""
    edges = [edge for start, end in intervals if end > start for edge in ((start, 1), (end, -1))]
    running = most = 0
    for _, step in sorted(edges):
        running += step
        most = max(most, running)
    return most


def _notes(run: Run, gain: int) -> list[str]:
    found = []
    if run.outcome is None or run.outcome in ("lost", "failed", "cancelled"):
        found.append("the run did not come to its end: the path is of what was executed")
    if run.device is not None:
        found.append("nodes that share one device do not overlap on it: that much is for the host alone")
    if gain > 0:
        found.append(f"independent branches at the same time would bring {human(gain)} at most")
    return found
