"""What went wrong in a visit, in the ledger's words: cause, stage, place."""

from __future__ import annotations

import errno
import sys
from typing import Any

from stagexec.executor import memory_errors
from stagexec.record import children, interrupts, live, safe, words
from stagexec.record.guard import guarded
from stagexec.record.run import Run
from stagexec.stages import CAUSES

DISK_FULL = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name)}

CHILD_EXPLAINS = ("node_exception", "encode_failed")
"""Causes that an encoder process which failed in the same visit says more about."""

MISSING = "stagexec_missing_class"
"""Set on the host's own error when it came from looking up a node's class."""


TOLD = ("execution_error", "execution_interrupted")
"""Messages that name the node of an error."""


def class_of(api: Any, class_type: str) -> Any:
    """The class of a node, looked up late in the host's table. KeyError when there is none."""
    found = False
    try:
        class_def = api.nodes.NODE_CLASS_MAPPINGS[class_type]
        found = True
        return class_def
    finally:
        if not found:
            safe.ask(None, setattr, sys.exc_info()[1], MISSING, True)


def cause_of(api: Any, error: BaseException, stage: str | None) -> str:
    """One of stages.CAUSES for an exception out of a node."""
    if isinstance(error, api.interrupt_exception):
        return "interrupted_by_node"
    if not isinstance(error, Exception):
        return "worker_escape"
    named = getattr(error, "stagexec_cause", None)  # our own nodes know why they failed
    if named in CAUSES:
        return str(named)
    host_class = safe.ask(None, lambda: api.model_management.OOM_EXCEPTION)
    of_memory_or_disk = memory_errors.first_of(
        error, ("oom", lambda one: memory_errors.is_oom(one, host_class)), ("disk_full", is_disk_full)
    )
    if of_memory_or_disk is not None:
        return of_memory_or_disk
    name = type(error).__name__
    if name == "DependencyCycleError":
        return "cycle"
    if name == "NodeNotFoundError" or no_such_class(api, error):
        return "missing_node"
    if stage == "encode_mux":
        return "encode_failed"
    if stage == "delivery_commit":
        return "delivery_failed"
    return "node_exception"


def is_disk_full(error: BaseException) -> bool:
    """Did the system say that there is no room for a file?"""
    return isinstance(error, OSError) and error.errno in DISK_FULL


def no_such_class(api: Any, error: BaseException) -> bool:
    """Did the look-up of a node's class raise this: ours, or that of the host's own loop?"""
    if getattr(error, MISSING, False):
        return True
    if not isinstance(error, KeyError) or not error.args or error.args[0] in api.nodes.NODE_CLASS_MAPPINGS:
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals is vars(api.execution)


@guarded
def failed(
    api: Any,
    run: Run,
    error: BaseException,
    *,
    stage: str | None,
    node_id: str | None,
    node_class: str | None,
    visit: int | None,
    list_index: int | None = None,
    cause: str | None = None,
) -> None:
    """Keep the run's error: the first one is the cause of all the rest. `cause`: where the error says none.

    Of an error whose own make forbids to look at it, what is known without looking is kept.
    """
    if run.error is not None:
        return
    stage = run.failing_stage(error) or stage
    cause = cause or safe.ask("node_exception", cause_of, api, error, stage)
    who: str | None = None
    if cause == "interrupted_by_node":
        cause, who = interrupts.cause_of(run)
    child = children.of_visit(run, visit) if cause in CHILD_EXPLAINS else None
    if child is not None:
        cause, stage = child.cause, "encode_mux"
    run.stopped_ns = run.clock()
    run.error = {
        "cause": cause,
        "stage": stage,
        "visit": visit,
        "node_id": node_id,
        "node_class": node_class,
        "list_index": list_index,
        "exception_type": safe.ask(safe.kind_of(error), words.class_name, type(error)),
        "message": live.message_of(error) or who or (child.text() if child is not None else None),
    }


@guarded
def name_as_told(run: Run, messages: Any) -> None:
    """Name the error's node as `messages`, which the history holds, name it: (event, data) in order.

    They name a node that the client knows: of one that grew, the one it grew from. Its visit and its class
    stay those of where it happened.
    """
    if run.error is None:
        return
    for message in list(messages or ()):
        if not isinstance(message, (tuple, list)) or len(message) != 2 or message[0] not in TOLD:
            continue  # a pack's executor may keep what it likes
        data = message[1] if isinstance(message[1], dict) else {}
        if data.get("node_id") is not None:
            run.error["node_id"] = str(data["node_id"])
            if run.error["node_class"] is None and data.get("node_type") is not None:
                run.error["node_class"] = str(data["node_type"])
