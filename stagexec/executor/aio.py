"""What the event loop of a run tells the ledger: when it idles, and whose step it runs.

`external_wait` is exactly the time blocked in the loop's selector. A step of an async node runs while the
main lane waits; it is charged to that node's visit and stage, step by step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from stagexec.executor import leftover
from stagexec.record.guard import guarded
from stagexec.record.ledger import NO_DEPTH
from stagexec.record.run import VISIT, Run


@guarded
def watch(run: Run) -> Callable[[bool], None]:
    """Attach to the running event loop, for this run; call what is returned at its end.

    It takes whether the loop ends as well: where something is left on it then, that is watched on.

    The loop lives for the run alone where the worker makes it. A pack that executes a prompt by itself may
    bring a loop that goes on.
    """
    loop: Any = asyncio.get_running_loop()
    run.task = asyncio.current_task()
    run.on_loop = began = leftover.Began()
    placed = [
        (loop, "call_soon", _stepping(run, loop.call_soon)),
        (loop, "run_in_executor", leftover.watched(began, loop.run_in_executor)),
    ]
    selector = getattr(loop, "_selector", None)  # the only place where a loop of either kind blocks
    if selector is not None:
        placed.append((selector, "select", _idle(run, selector.select)))
    before = [vars(owner).get(name) if hasattr(owner, "__dict__") else None for owner, name, _ in placed]
    for owner, name, ours in placed:
        setattr(owner, name, ours)

    @guarded
    def unwatch(loop_ends: bool = False) -> None:
        left = leftover.look(run)
        run.task = None
        if left and loop_ends:
            return
        for (owner, name, ours), theirs in zip(placed, before, strict=True):
            if getattr(owner, name, None) is not ours:
                continue  # another stands before it by now, which may call ours
            if theirs is None:
                delattr(owner, name)
            else:
                setattr(owner, name, theirs)

    return unwatch


def _idle(run: Run, select: Callable[..., Any]) -> Callable[..., Any]:
    def idle(timeout: float | None = None) -> Any:
        if timeout is not None and timeout <= 0:
            return select(timeout)
        depth = run.enter("external_wait")
        try:
            return select(timeout)
        finally:
            run.leave(depth)

    return idle


def _stepping(run: Run, call_soon: Callable[..., Any]) -> Callable[..., Any]:
    """The loop's `call_soon`, with a call of ours before and after each step of a node's task.

    Not round it: a node's coroutine sees the loop above it, as on the host. The loop calls what it is given
    in that order, and what else comes between is of another thread.
    """

    def call(callback: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        at = step_of(run, callback, context)
        if at is None:
            return call_soon(callback, *args, context=context)
        leftover.step(run, callback, at[1])
        step = Step(*at)
        call_soon(step.begin)
        handle = call_soon(callback, *args, context=context)
        call_soon(step.end)
        return handle

    return call


@guarded
def step_of(run: Run, callback: Any, context: Any) -> tuple[Run, int, str, str | None] | None:
    """The visit whose task the loop is asked to go on with; None where it is none's."""
    if context is None or not isinstance(task := getattr(callback, "__self__", None), asyncio.Task):
        return None
    return None if task is run.task else context.get(VISIT)


class Step:
    """One step of a node's task, entered in the ledger as its visit's stage."""

    __slots__ = ("_before", "_depth", "_part", "_run", "_stage", "_visit")

    def __init__(self, run: Run, visit: int, stage: str, part: str | None) -> None:
        self._run, self._visit, self._stage, self._part = run, visit, stage, part
        self._before: int | None = None
        self._depth = NO_DEPTH

    def begin(self) -> None:
        """The step is next."""
        self._before = self._run.ledger.visit
        self._run.ledger.visit = self._visit
        self._depth = self._run.enter(self._stage, self._part)

    def end(self) -> None:
        """It is done."""
        self._run.leave(self._depth)
        self._run.ledger.visit = self._before


@guarded
def span_of_task(
    run: Run, task: asyncio.Task[Any], node_id: str, visit: int, stage: str, start_ns: int
) -> None:
    """Keep the interval of an async node's task as a span once it is done."""

    def done(finished: asyncio.Task[Any]) -> None:
        error = None if finished.cancelled() else finished.exception()
        outcome = "cancelled" if finished.cancelled() else "error" if error else "done"
        if error is not None and not isinstance(error, Exception):
            run.escaped_from = (id(error), node_id, visit, stage)  # it leaves the event loop past every visit
        run.span(f"task:{node_id}", "async_node", start_ns, run.clock(), stage, visit, {"outcome": outcome})

    task.add_done_callback(done)
