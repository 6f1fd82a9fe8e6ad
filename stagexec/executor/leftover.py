"""What nodes leave behind on the event loop: a task, or a call on a thread, that nothing of theirs awaits.

The loop of a prompt waits for its threads and ends its tasks when the last node is done. That is the work of
the node that began them: the time is told with its visit, and what it was is marked.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Any

from stagexec.record import clock, words
from stagexec.record.guard import guarded
from stagexec.record.run import VISIT, Run

LEAST_NS = 5_000_000
"""What ends sooner than this after the last node is not marked."""

MOST = 20
"""So many of the things that were left are marked."""

Left = tuple[str, str, "int | None"]
"""(task or thread, name of the coroutine or function, visit)"""


class Began:
    """What a run's nodes have begun: their tasks that went a step, and their calls on threads."""

    def __init__(self) -> None:
        self.visit_of: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.calls: dict[Any, tuple[Any, int | None]] = {}
        self.left: list[Left] = []
        self.since_ns: int | None = None

    @guarded
    def call(self, future: Any, function: Any) -> None:
        """A function was handed to a thread; `future` is done when it is."""
        visit = VISIT.get()
        if visit is not None:
            self.calls[future] = function, visit[1]
            future.add_done_callback(self._done)

    def _done(self, future: Any) -> None:
        self.calls.pop(future, None)


def watched(began: Began, run_in_executor: Callable[..., Any]) -> Callable[..., Any]:
    """The loop's `run_in_executor`, which notes what nodes hand to threads."""

    def call(executor: Any, func: Any, *args: Any) -> Any:
        future = run_in_executor(executor, func, *args)
        began.call(future, func)
        return future

    return call


@guarded
def step(run: Run, callback: Any, visit: int) -> None:
    """The loop is asked to go on with a task of a visit's."""
    if run.on_loop is not None:
        run.on_loop.visit_of[callback.__self__] = visit


@guarded
def look(run: Run | None) -> bool:
    """The last node is done: is anything left on the running loop? From now on that is whose time it is."""
    began: Began | None = run.on_loop if run is not None else None
    if run is None or began is None or began.since_ns is not None:
        return False
    current = asyncio.current_task()
    for task in asyncio.all_tasks():
        visit = began.visit_of.get(task)
        if task is not current and visit is not None:
            began.left.append(("task", words.function_name(task.get_coro()), visit))
    for function, visit in began.calls.values():
        began.left.append(("thread", words.function_name(_called(function)), visit))
    began.since_ns = clock.now_ns()
    if began.left:
        run.ledger.visit = began.left[0][2]
    return bool(began.left)


def _called(function: Any) -> Any:
    """What asyncio.to_thread wraps: the function in a context's `run`."""
    func, args = getattr(function, "func", None), getattr(function, "args", ())
    return args[0] if args and getattr(func, "__name__", None) == "run" else function


@guarded
def over(run: Run | None) -> None:
    """The loop has ended: mark what it waited for."""
    began: Began | None = run.on_loop if run is not None else None
    if run is None or began is None:
        return
    run.on_loop = None
    if began.left:
        run.ledger.visit = None
    if began.since_ns is None or clock.now_ns() - began.since_ns < LEAST_NS:
        return
    for what, name, visit in began.left[:MOST]:
        node_id = run.node_of[visit - 1] if visit else None
        node_class = run.class_of.get(node_id) if node_id is not None else None
        detail = {"what": what, "name": name}
        run.mark("left_on_loop", detail, source="loop", visit=visit, node_id=node_id, node_class=node_class)
