"""The host's own node visit with the ledger around it: what `--stagexec-executor host` records."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from stagexec.executor import lane
from stagexec.record import live, safe
from stagexec.record.guard import guarded
from stagexec.record.run import VISIT

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
            ended(api, record, result)
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
        result = await original(*args, **kwargs)
        record.outputs = result[0]
        return result

    return get_output_data


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
    return record


@guarded
def ended(api: Any, record: lane.VisitRecord, result: Any) -> None:
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
        if ran:
            record.made(api, record.outputs)
    elif name == "PENDING":
        record.kind = "pending"
    else:
        record.failed(api, result[2])
