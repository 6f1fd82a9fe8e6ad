"""The host's own node visit with the ledger around it: what `--stagexec-executor host` records."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from itertools import islice
from typing import Any, NamedTuple

from stagexec.executor import lane
from stagexec.executor.aio import span_of_task
from stagexec.executor.growth import file_growth, is_output
from stagexec.executor.steps import now
from stagexec.record import live, safe
from stagexec.record.guard import guarded
from stagexec.record.run import VISIT, Run

RECORD: ContextVar[lane.VisitRecord | None] = ContextVar("stagexec_record", default=None)
"""The record of the visit that the host makes now."""


def make_recorded(api: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """`execution.execute` that calls the host's once and records the visit."""

    async def execute(*args: Any, **kwargs: Any) -> Any:
        record = begin(api, args, kwargs)
        if record is None or record.run is None:
            return await original(*args, **kwargs)
        token = VISIT.set((record.run, record.number, record.stage, record.part) if record.number else None)
        recording = RECORD.set(record)
        result: Any = None
        try:
            with record.node_stage():
                result = await original(*args, **kwargs)
            return result
        finally:
            RECORD.reset(recording)
            VISIT.reset(token)
            ended(api, record, result, args, kwargs)
            record.end()

    execute.__wrapped__ = original  # type: ignore[attr-defined]
    return execute


def make_watched_calls(api: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """`execution.get_output_data` that shows the visit's record its inputs, calls, blockers and outputs."""
    inputs_at = list(inspect.signature(original).parameters).index("input_data_all")

    @functools.wraps(original)
    async def get_output_data(*args: Any, **kwargs: Any) -> Any:
        record = RECORD.get()
        if record is None:
            return await original(*args, **kwargs)
        record.take_inputs(api, args[inputs_at] if len(args) > inputs_at else kwargs.get("input_data_all"))
        told = {
            "execution_block_cb": lambda block: record.blocked(block.message),
            "pre_execute_cb": record.call,
        }
        for name, tell in told.items():
            if kwargs.get(name) is not None:
                kwargs[name] = both(tell, kwargs[name])
        record.is_called = True
        try:
            result = await original(*args, **kwargs)
        finally:
            record.is_called = False
        record.outputs = result[0]
        tasks_begun(record, result)
        return result

    return get_output_data


@guarded
def tasks_begun(record: lane.VisitRecord, result: tuple[Any, ...]) -> None:
    """Keep a span of each task that an async node's visit has begun, as our own loop does.

    `result` is the host's: (values, ui, has it grown, does it wait for tasks); older ones end before.
    """
    if record.run is None or len(result) < 4 or not result[3]:
        return
    for task in result[0]:
        if isinstance(task, asyncio.Task):
            span_of_task(record.run, task, record.node_id, record.number, record.stage, record.start_ns)


def in_host_visit() -> bool:
    """Does the host's own loop visit a node on the calling thread now, and not call its function?"""
    record = RECORD.get()
    return record is not None and not record.is_called


def both(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """A callback of the host's that tells us first."""

    def call(*args: Any) -> Any:
        ours(*args)
        return theirs(*args)

    return call


@guarded
def begin(api: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> lane.VisitRecord | None:
    """The record of a visit that is about to be made by the host."""
    run = live.current_for_thread()
    if run is None:
        return None
    dynprompt = args[1] if len(args) > 1 else kwargs["dynprompt"]
    node_id = args[3] if len(args) > 3 else kwargs["current_item"]
    executed = args[5] if len(args) > 5 else kwargs["executed"]
    node_class = dynprompt.get_node(node_id)["class_type"]
    class_def = api.nodes.NODE_CLASS_MAPPINGS.get(node_class)
    if class_def is None:  # the host will say so
        return None
    record = lane.VisitRecord(run, node_id)
    record.begin(api, node_class, class_def, dynprompt)
    record.executed_before = executed
    expanding = args[8] if len(args) > 8 else kwargs["pending_subgraph_results"]
    record.growth = Growth(dynprompt, expanding, len(getattr(dynprompt, "ephemeral_prompt", ())))
    return record


class Growth(NamedTuple):
    """What the host's graph held before a visit: its nodes that grew come last, in order of growth."""

    dynprompt: Any
    expanding: dict[str, Any]
    before: int

    def file(self, api: Any, run: Run, node_id: str) -> None:
        """File what the visit expanded into, if it did."""
        results = self.expanding.get(node_id)
        nodes = getattr(self.dynprompt, "ephemeral_prompt", {})
        if results is None or len(nodes) <= self.before:
            return
        grown = list(islice(reversed(nodes), len(nodes) - self.before))
        children = {child: nodes[child] for child in reversed(grown)}
        classes = api.nodes.NODE_CLASS_MAPPINGS
        is_link = api.execution.is_link
        file_growth(
            api,
            run,
            node_id,
            children,
            [child for child, node in children.items() if is_output(classes.get(node["class_type"]))],
            [value[0] for is_subgraph, given in results if is_subgraph for value in given if is_link(value)],
        )


@guarded
def ended(
    api: Any, record: lane.VisitRecord, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """What the host's result says of the visit: (ExecutionResult, error details, exception)."""
    if result is None:
        error = sys.exc_info()[1]  # what the host lets out of a visit, such as SystemExit
        if error is not None and not isinstance(error, asyncio.CancelledError):
            record.failed(api, safe.behind_log(error))
        return
    run = record.run
    assert run is not None
    name = result[0].name
    if name == "SUCCESS":
        ran = record.node_id in record.executed_before
        record.kind = ("blocked" if record.was_blocked() else "executed") if ran else "cached"
        record.announced(True)
        entry = entry_outputs(api, args[2] if len(args) > 2 else kwargs["caches"], record.node_id)
        if ran:
            record.made(api, record.outputs if entry is None else entry)
        else:
            record.served(entry)
    elif name == "PENDING":
        record.kind = "pending"
        if record.growth is not None:
            record.growth.file(api, run, record.node_id)
    else:
        record.failed(api, result[2])


@guarded
def entry_outputs(api: Any, caches: Any, node_id: str) -> Any:
    """The outputs in a node's cache entry, the very list; None where asking for it might wait."""
    if not api.has_plain_caches(caches):
        return None
    entry = now(caches.outputs.get, node_id)
    return getattr(entry, "outputs", None)
