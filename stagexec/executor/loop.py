"""The executor: takes a prompt, runs its loop, survives it. One class for our loop, one for the host's.

Both are mixed into a subclass of the host's `PromptExecutor` by host/hooks.py, so that nodes and packs find
the class, the attributes and the methods they know.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from stagexec.executor import aio, failure, garbage, lane, leftover, telling, turn, wire
from stagexec.executor.execution import execute_async
from stagexec.executor.prompt import file_cached, file_defeated, finish_direct, history_of, staging_error
from stagexec.executor.queue import begin, is_running
from stagexec.record import live, safe, worker
from stagexec.record.guard import guarded
from stagexec.record.run import Run


class HostLoop:
    """The host's own executor with the ledger around it."""

    api: Any = None
    """The host, as host/api.py shows it; set on the subclass."""

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Execute one prompt; arguments are the host's."""
        run, direct = run_for(self, *args, **kwargs)
        escaped = True
        turn.begin(self, args[1] if len(args) > 1 else kwargs.get("prompt_id"))
        try:
            result = super().execute(*args, **kwargs)  # type: ignore[misc]
            escaped = False
            return result
        finally:
            leftover.over(run)
            if escaped:
                escaped_error(self.api, run, sys.exc_info()[1])
            else:
                turn.returned()
            file_defeated(run, args[0] if args else kwargs.get("prompt"))
            if direct or (escaped and not worker.state.is_here()):  # else host/worker.py files it
                finish_direct(self, run, filed=not escaped)

    async def execute_async(self, *args: Any, **kwargs: Any) -> Any:
        """The host's coroutine, with the event loop watched."""
        run = live.current_for_thread()
        if run is not None:
            aio.watch(run)
        try:
            return await super().execute_async(*args, **kwargs)  # type: ignore[misc]
        finally:
            leftover.look(run)

    def add_message(self, event: str, data: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The host's messages; one of them says what was cached at the start."""
        result = super().add_message(event, data, *args, **kwargs)  # type: ignore[misc]
        if event == "execution_cached":
            file_cached(live.current_for_thread(), list(data.get("nodes", ())))
        return result

    def handle_execution_error(self, *args: Any, **kwargs: Any) -> Any:
        """Errors that no visit reports: those of staging, such as a dependency cycle."""
        result = super().handle_execution_error(*args, **kwargs)  # type: ignore[misc]
        error, exception = args[-2:] if len(args) >= 6 else (kwargs.get("error"), kwargs.get("ex"))
        staging_error(self.api, live.current_for_thread(), error, exception)
        return result


class NativeLoop:
    """Our own prompt loop."""

    api: Any = None
    execute_async = execute_async
    # what the host's class brings
    server: Any
    caches: Any
    success: bool
    status_messages: list[Any]
    history_result: dict[str, Any]
    handle_execution_error: Callable[..., Any]
    add_message: Callable[..., Any]

    def execute(
        self,
        prompt: Any,
        prompt_id: str,
        extra_data: Any = {},  # noqa: B006 (the host's own signature)
        execute_outputs: Any = [],  # noqa: B006
    ) -> None:
        """Execute one prompt. Raises nothing into the worker: what escapes ends the prompt alone."""
        run, direct = run_for(self, prompt, prompt_id, extra_data, execute_outputs)
        playing = lane.Lane(self, run, shielded=not direct or is_running(self, prompt_id), direct=False)
        playing.own_loop = True
        collections = garbage.restraint()
        collections.begin()
        wire.told.clear()
        turn.begin(self, prompt_id)
        try:
            with lane.handed(playing):
                asyncio.run(self.execute_async(prompt, prompt_id, extra_data, execute_outputs))
        except BaseException as error:
            if not playing.shielded:  # a pack's own executor: its errors are the pack's, as from the host's
                escaped_error(self.api, run, error)
                finish_direct(self, run, filed=False)
                raise
            self.history_result = history_of(playing.ui_outputs)  # the worker asks for it
            self._escaped(prompt, prompt_id, execute_outputs, run, error)
        finally:
            collections.end()
            leftover.over(run)
            turn.returned()
            if direct and live.current_for_thread() is run:
                finish_direct(self, run)

    def _escaped(
        self, prompt: Any, prompt_id: str, outputs: Any, run: Run | None, error: BaseException
    ) -> None:
        """An error outside every node: file it as the host files a node's, so that clients see an end.

        It is the last fence before the worker's end, so it cannot raise.
        """
        safe.host_log.error(f"!!! Exception outside of a node !!! {safe.repr_of(error)}")
        safe.host_log.error(safe.traceback_of(error))
        escaped_error(self.api, run, error)
        self.success = False
        details = telling.error_details(self.api, error, safe.ask("", place_of, error, prompt, outputs, run))
        self.server.last_node_id = None
        what = "telling the client of an error"
        before = telling.told_of_error(self.status_messages, prompt_id)
        if before is not None:  # it stands in the history, and a wrapper has kept it from the client
            telling.send(self.server, *before, getattr(self.server, "client_id", None))
            return
        safe.attempt(what, self.handle_execution_error, prompt_id, prompt, [], set(), details, error)
        if telling.told_of_error(self.status_messages, prompt_id) is None:
            message = telling.error_message(details, prompt_id, prompt)
            safe.attempt(what, self.add_message, telling.ERRORS[0], message, broadcast=False)


def run_for(executor: Any, *args: Any, **kwargs: Any) -> tuple[Run | None, bool]:
    """The run in execution on this thread, and whether it had to be begun here: no queue handed it over.

    Arguments are those of the host's `execute`.
    """
    run = live.current_for_thread()
    return (run, False) if run is not None else (begin(executor, *args, **kwargs), True)


@guarded
def escaped_error(api: Any, run: Run | None, error: BaseException | None, cause: str | None = None) -> None:
    """An error that no visit caught: where it was raised, if an async task said so, else what is open now."""
    if run is None or error is None:
        return
    open_ = run.ledger.open
    node_id, node_class = run.node or (None, None)
    visit, stage = run.visit, open_[0] if open_ else None
    if run.escaped_from is not None and run.escaped_from[0] == id(error):
        _, node_id, visit, stage = run.escaped_from
        node_class = run.class_of.get(node_id)
    failure.failed(
        api, run, error, stage=stage, node_id=node_id, node_class=node_class, visit=visit, cause=cause
    )


def place_of(error: BaseException, prompt: dict[str, Any], outputs: Any, run: Run | None) -> str:
    """The node to name in a message about an error outside every node; one of the prompt's if possible."""
    named = (run.error or {}).get("node_id") if run is not None else None
    if named in prompt:
        return str(named)
    if isinstance(error, KeyError) and error.args:
        for node_id, node in prompt.items():
            if isinstance(node, dict) and node.get("class_type") == error.args[0]:
                return str(node_id)
    for node_id in outputs or ():
        if node_id in prompt:
            return str(node_id)
    return str(next(iter(prompt), ""))
