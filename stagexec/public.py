"""For node authors: split a node's function into stages, and name the files it delivers.

Outside a run, or without the launcher, both do nothing.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from stagexec.record import live, words
from stagexec.record.guard import guarded, note
from stagexec.record.ledger import NO_DEPTH
from stagexec.record.run import VISIT, Run
from stagexec.stages import NODE_CLASS, STAGES, check

F = TypeVar("F", bound=Callable[..., Any])


class stage:  # noqa: N801 (reads as a verb: `with stagexec.stage("sampling")`)
    """`with stagexec.stage(name, part=None):` or `@stagexec.stage(name)`, on functions and coroutines.

    On the run's main lane the time goes to that stage of the ledger; on another thread or in an async
    task it is kept as a span. An unknown name is recorded as a fault and otherwise ignored.
    """

    def __init__(self, name: str, part: str | None = None) -> None:
        self.name = name
        self.part = _part_of(name, part, sys._getframe(1).f_code) if isinstance(part, str) else part
        self._entered: list[tuple[Run, int, int] | None] = []  # (run, depth, start_ns); nested on one object

    def __enter__(self) -> stage:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._end(error)

    def __call__(self, function: F) -> F:
        """As a decorator."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            note("stagexec.stage", TypeError(f"{function.__qualname__} is a generator: use `with` inside it"))
            return function
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                with self._again():
                    return await function(*args, **kwargs)

            return call_async  # type: ignore[return-value]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    def _again(self) -> stage:
        fresh = stage(self.name)
        fresh.part = self.part
        return fresh

    @guarded
    def _begin(self) -> None:
        run = live.here()
        self._entered.append(None)
        if run is None:
            return
        try:
            check(self.name, self.part)
        except ValueError as error:
            note("stagexec.stage", error)
            return
        start = run.clock()
        aside = not run.on_main_lane() or in_other_task(run)
        depth = NO_DEPTH if aside else run.enter(self.name, self.part, "stagexec.stage")
        self._entered[-1] = (run, depth, start)

    @guarded
    def _end(self, error: BaseException | None) -> None:
        entered = self._entered.pop() if self._entered else None
        if entered is None:
            return
        run, depth, start = entered
        if depth != NO_DEPTH:
            if error is not None:
                run.failed_in(error, self.name)
            run.leave(depth)
        else:
            lane, visit = lane_of(run)
            run.span(lane, "stagexec.stage", start, run.clock(), self.name, visit, {"part": self.part})


def _part_of(name: str, part: str, code: Any) -> str:
    """A part that the stage has, or that the author of `code` wrote there; of any other text a digest."""
    parts = STAGES.get(name, ()) if isinstance(name, str) else ()
    return words.literal(part, code) if NODE_CLASS in parts and part not in parts else part


def visit_of_caller(run: Run) -> int | None:
    """The visit that the calling context works for; None where it is not known, as on a node's own thread."""
    at = VISIT.get()
    return at[1] if at is not None and at[0] is run else None


def lane_of(run: Run) -> tuple[str, int | None]:
    """The calling lane by name, `task:<node id>` or `thread:<name>`, and the visit it works for, if known."""
    visit = visit_of_caller(run)
    if not run.on_main_lane():
        return f"thread:{threading.current_thread().name}", visit
    return f"task:{'unknown' if visit is None else run.node_of[visit - 1]}", visit


def in_other_task(run: Run) -> bool:
    """Is the caller in an asyncio task other than the run's own loop?"""
    if run.task is None:
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task is not run.task


@guarded
def artifact(path: str | os.PathLike[str]) -> None:
    """Name a file that the node delivers: it is verified after the run like those in the host's history."""
    run = live.here()
    if run is None:
        return
    visit = visit_of_caller(run)
    node_id = run.node_of[visit - 1] if visit is not None else run.node[0] if run.node else None
    run.promise(os.path.abspath(os.fspath(path)), node_id)
