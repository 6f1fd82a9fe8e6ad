"""What the event loop of a run tells the ledger: when it idles, and whose step it runs.

`external_wait` is exactly the time blocked in the loop's selector. A step of an async node runs while the
main lane waits; it is charged to that node's visit and stage, step by step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from stagexec.record.guard import guarded
from stagexec.record.run import VISIT, Run


@guarded
def watch(run: Run) -> Callable[[], None]:
    """Attach to the running event loop, for this run; call what is returned at its end.

    The loop lives for the run alone where the worker makes it. A pack that executes a prompt by itself may
    bring a loop that goes on.
    """
    loop: Any = asyncio.get_running_loop()
    run.task = asyncio.current_task()
    ours = loop.get_task_factory() is None
    if ours:
        loop.set_task_factory(_factory)
    selector = getattr(loop, "_selector", None)  # the only place where a loop of either kind blocks
    if selector is not None:
        select = selector.select
        idle = selector.select = _idle(run, select)

    @guarded
    def unwatch() -> None:
        run.task = None
        if ours and loop.get_task_factory() is _factory:
            loop.set_task_factory(None)
        if selector is not None and selector.select is idle:
            selector.select = select

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


def _factory(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
    at = VISIT.get()
    if at is not None and asyncio.iscoroutine(coro):
        coro = Steps(coro, at)
    return asyncio.Task(coro, loop=loop, **kwargs)


class Steps(Coroutine[Any, Any, Any]):
    """A coroutine whose every step is entered in the ledger as its visit's stage."""

    def __init__(self, coro: Coroutine[Any, Any, Any], at: tuple[Run, int, str, str | None]) -> None:
        self._coro = coro
        self._at = at

    def __await__(self) -> Any:
        return self._coro.__await__()

    def send(self, value: Any) -> Any:
        """One step."""
        return self._step(self._coro.send, value)

    def throw(self, *error: Any) -> Any:
        """One step that begins with an exception."""
        return self._step(self._coro.throw, *error)

    def _step(self, go_on: Callable[..., Any], *given: Any) -> Any:
        run, visit, stage, part = self._at
        before = run.ledger.visit
        run.ledger.visit = visit
        depth = run.enter(stage, part)
        try:
            return go_on(*given)
        finally:
            run.leave(depth)
            run.ledger.visit = before

    def close(self) -> None:
        """As the coroutine's own."""
        self._coro.close()

    def __getattr__(self, name: str) -> Any:  # cr_frame, cr_code, __qualname__: what debuggers and packs read
        return getattr(self._coro, name)


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
