"""A node that expands into a subgraph: its children enter the graph, and later give the node its outputs."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from stagexec.executor.failure import class_of
from stagexec.executor.steps import Await, Step
from stagexec.record import live
from stagexec.record.guard import guarded
from stagexec.record.run import Run


def resolve(api: Any, given: Any, node_id: str, class_def: Any) -> Any:
    """The outputs of a node whose children have all been executed."""
    execution = api.execution
    resolved = []
    for is_subgraph, result in given.pending_subgraph_results[node_id]:
        if not is_subgraph:
            resolved.append(result)
            continue
        values = []
        for value in result:
            if execution.is_link(value):
                child, socket = value[0], value[1]
                values.extend(given.execution_list.get_cache(child, node_id).outputs[socket])
            else:
                values.append(value)
        resolved.append(tuple(values))
    outputs = execution.merge_result_data(resolved, class_def)
    del given.pending_subgraph_results[node_id]
    return outputs


def expand(
    api: Any, given: Any, node_id: str, returned: list[Any], run: Run | None
) -> Generator[Any, Any, None]:
    """Add the children that the node's function returned, and let the node wait for them: steps."""
    depth = run.enter("executor_prepare", "plan") if run else -1
    try:
        yield from _expand(api, given, node_id, returned, run)
    finally:
        if run:
            run.leave(depth)


def _expand(
    api: Any, given: Any, node_id: str, returned: list[Any], run: Run | None
) -> Generator[Any, Any, None]:
    dynprompt, execution = given.dynprompt, api.execution
    waiting: list[tuple[bool, Any]] = []
    children: dict[str, Any] = {}
    output_ids: list[str] = []
    links: list[tuple[str, int]] = []
    for graph, results in returned:
        if graph is None:
            waiting.append((False, results))
            continue
        for child_id, child in graph.items():
            children[child_id] = child
            dynprompt.add_ephemeral_node(child_id, child, node_id, child.get("override_display_id", node_id))
            if is_output(class_of(api, child["class_type"])):
                output_ids.append(child_id)
        links += [(value[0], value[1]) for value in results if execution.is_link(value)]
        waiting.append((True, results))
    for cache in given.caches.all:
        subcache = yield Await(cache.ensure_subcache_for, node_id, set(children))
        subcache.clean_unused()
    for child_id in output_ids:
        yield Step(given.execution_list.add_node, child_id)
        given.execution_list.cache_link(child_id, node_id)
    for child_id, socket in links:
        yield Step(given.execution_list.add_strong_link, child_id, socket, node_id)
    given.pending_subgraph_results[node_id] = waiting
    if run is not None:
        file_growth(api, run, node_id, children, output_ids, [child_id for child_id, _ in links])


def is_output(class_def: Any) -> bool:
    """Does the host take this class for an output node?"""
    return getattr(class_def, "OUTPUT_NODE", False) == True  # noqa: E712 (the host compares, so 1 counts)


@guarded
def file_growth(
    api: Any, run: Run, parent: str, children: dict[str, Any], output_ids: list[str], results: list[str]
) -> None:
    """A node expanded into `children` (id -> node): file them, their links, and whose outputs it takes."""
    is_link = api.execution.is_link
    live.journal_event(
        run,
        "graph_growth",
        source="loop",
        stage_id="executor_prepare",
        parent=parent,
        nodes=list(children),
        classes=[child["class_type"] for child in children.values()],
        links=[[v[0] for v in child.get("inputs", {}).values() if is_link(v)] for child in children.values()],
        output_nodes=output_ids,
        results=results,
    )
