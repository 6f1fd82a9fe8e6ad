"""For node authors: split a node's function into stages, and name the files it delivers.

Outside a run, or without the launcher, both do nothing.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from stagexec.record import live
from stagexec.record.guard import guarded, note
from stagexec.record.ledger import NO_DEPTH
from stagexec.record.run import Run
from stagexec.stages import check

F = TypeVar("F", bound=Callable[..., Any])


class stage:  # noqa: N801 (reads as a verb: `with stagexec.stage("sampling")`)
    """`with stagexec.stage(name, part=None):` or `@stagexec.stage(name)`, on functions and coroutines.

    On the run's main lane the time goes to that stage of the ledger; on another thread or in an async
    task it is kept as a span. An unknown name is recorded as a fault and otherwise ignored.
    """

    def __init__(self, name: str, part: str | None = None) -> None:
        self.name = name
        self.part = part
        self._run: Run | None = None
        self._depth = NO_DEPTH
        self._start = 0

    def __enter__(self) -> stage:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._end(error)

    def __call__(self, function: F) -> F:
        """As a decorator."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                with stage(self.name, self.part):
                    return await function(*args, **kwargs)

            return call_async  # type: ignore[return-value]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with stage(self.name, self.part):
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    @guarded
    def _begin(self) -> None:
        run = live.run
        if run is None:
            return
        try:
            check(self.name, self.part)
        except ValueError as error:
            note("stagexec.stage", error)
            return
        self._run = run
        self._start = run.clock()
        if run.on_main_lane() and not in_other_task(run):
            self._depth = run.enter(self.name, self.part, "stagexec.stage")

    @guarded
    def _end(self, error: BaseException | None) -> None:
        run, depth = self._run, self._depth
        self._run, self._depth = None, NO_DEPTH
        if run is None:
            return
        if depth != NO_DEPTH:
            if error is not None:
                run.failed_in(error, self.name)
            run.leave(depth)
        else:
            lane = "task" if run.on_main_lane() else "thread"
            run.span(lane, "stagexec.stage", self._start, run.clock(), self.name, None, {"part": self.part})


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
    run = live.run
    if run is not None:
        run.promise(os.path.abspath(os.fspath(path)), run.node[0] if run.node else None)
