"""Why nodes were executed although an earlier run had executed them: what defeated the cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from stagexec.reading.graph import Graph
from stagexec.reading.runs import Run

SAME_WORKFLOW = 0.5
"""Two runs are of one workflow from this share of common (node, class) pairs on."""


@dataclasses.dataclass(slots=True)
class ReExecution:
    """One node that was executed again. `by` defeated the cache: the node itself, or one before it."""

    node_id: str
    node_class: str | None
    why: str
    by: str


def previous(run: Run, runs: Sequence[Run]) -> Run | None:
    """The latest run of the same process, started before, whose workflow is largely the same."""
    mine = _pairs(run)
    best: Run | None = None
    for one in runs:
        if one.run_id == run.run_id or one.started is None or run.started is None:
            continue
        if (
            one.process.file != run.process.file
            or one.started.ts_mono_ns >= run.started.ts_mono_ns
            or not mine
        ):
            continue
        theirs = _pairs(one)
        same = len(mine & theirs) / len(mine | theirs)
        later = best is None or best.started is None or one.started.ts_mono_ns > best.started.ts_mono_ns
        if same >= SAME_WORKFLOW and later:
            best = one
    return best


def _pairs(run: Run) -> set[tuple[str, str | None]]:
    return set(zip(run.accepted.nodes, run.accepted.classes, strict=False)) if run.accepted else set()


def re_executions(run: Run, before: Run) -> list[ReExecution]:
    """Why each node of `run` that `before` had executed, or had from the cache, was executed once more.

    In the order of execution. Nodes that grew in an expansion are their parent's matter.
    """
    graph = Graph(run)
    classes = Graph(before).class_of  # another workflow may call another node by the same id
    had = {n for n in (*before.cached, *_done(before)) if classes.get(n) == graph.class_of.get(n)}
    own = _own_causes(run, before)
    found: dict[str, ReExecution] = {}
    for node in _executed(run):
        if node in graph.parent_of or node not in had:
            continue
        cause = own.get(node)
        by = node
        if cause is None:
            by = next((n for n in _upstream(graph, node) if n in own or n in found), node)
            if by in found:
                by = found[by].by
            cause = own.get(by)
        why = cause or "no longer in the cache"
        if by != node:
            why = f"its input comes from node {by}: {why}"
        found[node] = ReExecution(node, graph.class_of.get(node), why, by)
    return list(found.values())


def _executed(run: Run) -> list[str]:
    return _of_kind(run, "executed", "failed")


def _done(run: Run) -> list[str]:
    """The nodes whose result was there when the run ended: what failed never had one to keep."""
    return _of_kind(run, "executed", "cached")


def _of_kind(run: Run, *kinds: str) -> list[str]:
    nodes = (v.node_id for v in run.visits() if v.kind in kinds and v.node_id is not None)
    return list(dict.fromkeys(nodes))


def _upstream(graph: Graph, node: str) -> list[str]:
    """The nodes that `node` depends on, nearest first."""
    return list(graph.ancestors([node]))[1:]


def _own_causes(run: Run, before: Run) -> dict[str, str]:
    """Node -> why its own result could not come from the cache, whatever its inputs did."""
    causes: dict[str, str] = {}
    now, then = _digests(run), _digests(before)
    seeds, seeds_then = _seeds(run), _seeds(before)
    for node, (constants, links, changed) in now.items():
        if node not in then:
            causes[node] = "new in the workflow"
            continue
        old_constants, old_links, old_changed = then[node]
        if constants != old_constants:
            moved = [
                name
                for name in seeds.get(node, {})
                if seeds[node][name] != seeds_then.get(node, {}).get(name)
            ]
            causes[node] = f"{', '.join(moved)} changed" if moved else "an input changed"
        elif links != old_links:
            causes[node] = "its links changed"
        elif changed != old_changed:
            causes[node] = "IS_CHANGED gave another answer"
    if not now or not then:
        for node in seeds:
            if seeds[node] != seeds_then.get(node):
                causes[node] = f"{', '.join(seeds[node])} changed"
    for mark in run.marks:
        if mark.name == "cache_defeated" and mark.node_id is not None:
            detail = mark.detail if isinstance(mark.detail, dict) else {}
            causes[mark.node_id] = str(detail.get("why", "IS_CHANGED defeats the cache"))
    return causes


def _digests(run: Run) -> dict[str, tuple[str, str, str | None]]:
    told = run.identity
    if told is None:
        return {}
    rows = zip(told.nodes, told.constants, told.links, strict=False)
    return {node: (constants, links, told.is_changed.get(node)) for node, constants, links in rows}


def _seeds(run: Run) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for seed in run.accepted.seeds if run.accepted else []:
        if isinstance(seed, list) and len(seed) == 3:
            found.setdefault(str(seed[0]), {})[str(seed[1])] = seed[2]
    return found
