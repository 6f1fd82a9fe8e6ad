"""The prompt loop: plan, visit node after node, file the outcome. One class for our loop, one for the host's.

Both are mixed into a subclass of the host's `PromptExecutor` by host/hooks.py, so that nodes and packs find
the class, the attributes and the methods they know.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stagexec.executor import aio, failure, garbage, lane, telling, turn, wire
from stagexec.executor.duties import Duties
from stagexec.executor.keyset import known_ids
from stagexec.record import live, safe, worker
from stagexec.record.guard import guarded
from stagexec.record.run import Run


class HostLoop:
    """The host's own executor with the ledger around it."""

    api: Any = None
    """The host, as host/api.py shows it; set on the subclass."""

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Execute one prompt; arguments are the host's."""
        prompt_id = args[1] if len(args) > 1 else kwargs.get("prompt_id")
        run, direct = run_for(str(prompt_id))
        escaped = True
        turn.begin(self, prompt_id)
        try:
            result = super().execute(*args, **kwargs)  # type: ignore[misc]
            escaped = False
            return result
        finally:
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
        return await super().execute_async(*args, **kwargs)  # type: ignore[misc]

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
    duties: Duties
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
        """Execute one prompt. Never raises: what escapes ends the prompt in an error; the worker lives on."""
        run, direct = run_for(str(prompt_id))
        self.duties = Duties(self.api, self)
        self.history_result = {"outputs": {}, "meta": {}}
        collections = garbage.restraint()
        collections.begin()
        wire.told.clear()
        turn.begin(self, prompt_id)
        try:
            with lane.executing(self):
                asyncio.run(self.execute_async(prompt, prompt_id, extra_data, execute_outputs))
        except BaseException as error:  # noqa: BLE001 (also SystemExit: a node must not end the worker)
            self._escaped(prompt, prompt_id, execute_outputs, run, error)
        finally:
            collections.end()
            turn.returned()
            if direct:
                finish_direct(self, run)

    async def execute_async(
        self,
        prompt: Any,
        prompt_id: str,
        extra_data: Any = {},  # noqa: B006 (the host's own signature)
        execute_outputs: Any = [],  # noqa: B006
    ) -> None:
        """Plan and run the prompt on the event loop that lives for it alone."""
        run = live.current_for_thread()
        if run is not None:
            aio.watch(run)
        duties = self.duties
        duties.before_prompt(prompt_id, extra_data, run is not None and run.cancel_ns is not None)
        try:
            with self.api.torch.inference_mode():
                await Prompt(self, duties, run, prompt, prompt_id, extra_data, execute_outputs).execute()
        finally:
            duties.after_prompt(prompt_id)

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


class Prompt:
    """The state of one prompt in execution, on the host's own graph and cache classes."""

    def __init__(
        self,
        executor: Any,
        duties: Duties,
        run: Run | None,
        prompt: Any,
        prompt_id: str,
        extra_data: Any,
        execute_outputs: Any,
    ) -> None:
        self.executor = executor
        self.api = executor.api
        self.duties = duties
        self.run = run
        self.prompt = prompt
        self.prompt_id = prompt_id
        self.extra_data = extra_data
        self.execute_outputs = execute_outputs
        self.executed: set[str] = set()
        self.ui_outputs: dict[str, Any] = {}
        self.expanding: dict[str, Any] = {}
        self.awaiting: dict[str, Any] = {}
        self.dynprompt: Any = None
        self.nodes: Any = None
        self.progress: Any = None

    async def execute(self) -> None:
        """From the prompt to `history_result`."""
        executor = self.executor
        try:
            await self._plan()
            if await self._visit_all():
                self._last_progress()
                await self._announce_intermediates()
                executor.add_message("execution_success", {"prompt_id": self.prompt_id}, broadcast=False)
        finally:
            self._last_progress()  # also where an error escaped: a timer must not speak after the end
            executor.history_result = {
                "outputs": {node_id: ui["output"] for node_id, ui in self.ui_outputs.items()},
                "meta": {node_id: ui["meta"] for node_id, ui in self.ui_outputs.items()},
            }
        executor.server.last_node_id = None
        if self.api.model_management.DISABLE_SMART_MEMORY:
            self.api.model_management.unload_all_models()

    @contextmanager
    def _part(self, part: str) -> Iterator[None]:
        run = self.run
        depth = run.enter("executor_prepare", part) if run is not None else -1
        try:
            yield
        finally:
            if run is not None:
                run.leave(depth)

    async def _plan(self) -> None:
        execution, executor = self.api.execution, self.executor
        self.dynprompt = execution.DynamicPrompt(self.prompt)
        execution.reset_progress_state(self.prompt_id, self.dynprompt)
        self.progress = execution.WebUIProgressHandler(executor.server)
        execution.add_progress_handler(self.progress)
        changed = execution.IsChangedCache(self.prompt_id, self.dynprompt, executor.caches.outputs)
        for cache in executor.caches.all:
            with self._part("cache_resolve"):
                await cache.set_prompt(self.dynprompt, self.prompt.keys(), changed)
            with self._part("cleanup"):
                cache.clean_unused()
        with self._part("cache_resolve"):
            cached = await self._cached_now()
        with self._part("cleanup"):
            self.api.model_management.cleanup_models_gc()
        executor.add_message(
            "execution_cached", {"nodes": cached, "prompt_id": self.prompt_id}, broadcast=False
        )
        file_cached(self.run, cached)
        file_defeated(self.run, self.prompt)
        self.nodes = execution.ExecutionList(
            self.dynprompt, executor.caches.outputs, *self.duties.link_callback()
        )
        self.known_outputs = known_ids(executor.caches.outputs)
        for node_id in list(self.execute_outputs):
            self.nodes.add_node(node_id)
        if self.run is not None:
            self.run.ledger.switch("executor_overhead")

    async def _cached_now(self) -> list[str]:
        outputs = self.executor.caches.outputs
        node_ids = list(self.prompt)
        found = [outputs.get(node_id) for node_id in node_ids]
        if found and inspect.isawaitable(found[0]):
            # Only external caches make a look-up wait; without any, a task for each node is wasted.
            together = self.api.facts["cache_providers"] and self.api.execution._has_cache_providers()
            found = await asyncio.gather(*found) if together else [await one for one in found]
        return [node_id for node_id, entry in zip(node_ids, found, strict=True) if entry is not None]

    async def _visit_all(self) -> bool:
        """Visit what is ready until nothing is left. False when the prompt ended in an error."""
        executor, results = self.executor, self.api.execution.ExecutionResult
        while not self.nodes.is_empty():
            node_id, error, exception = await self.nodes.stage_node_execution()
            if error is not None:
                staging_error(self.api, self.run, error, exception)
                self._failed(error, exception)
                return False
            assert node_id is not None, "Node ID should not be None at this point"
            result, error, exception = await self.api.execution.execute(
                executor.server,
                self.dynprompt,
                executor.caches,
                node_id,
                self.extra_data,
                self.executed,
                self.prompt_id,
                self.nodes,
                self.expanding,
                self.awaiting,
                self.ui_outputs,
            )
            executor.success = result != results.FAILURE
            if result == results.FAILURE:
                self._failed(error, exception)
                return False
            if result == results.PENDING:
                self.nodes.unstage_node_execution()
            else:
                self.nodes.complete_node_execution()
            self.duties.after_node()
        return True

    def _last_progress(self) -> None:
        """Send a progress state that was held back; the host's own handler holds none."""
        flush = getattr(self.progress, "flush", None)
        if flush is not None:
            flush()

    def _failed(self, error: Any, exception: Any) -> None:
        self._last_progress()
        self.executor.handle_execution_error(
            self.prompt_id,
            self.dynprompt.original_prompt,
            self.known_outputs,
            self.executed,
            error,
            exception,
        )

    async def _announce_intermediates(self) -> None:
        """Cached output of nodes that show something in mid-graph, though they were not visited."""
        if not self.api.facts["intermediate_outputs"]:
            return
        for node_id in self.dynprompt.all_node_ids():
            if node_id in self.executed or not self.api.execution._is_intermediate_output(
                self.dynprompt, node_id
            ):
                continue
            cached = self.executor.caches.outputs.get(node_id)
            cached = await cached if inspect.isawaitable(cached) else cached
            if cached is not None:
                display = self.dynprompt.get_display_node_id(node_id)
                self.api.execution._send_cached_ui(
                    self.executor.server, node_id, display, cached, self.prompt_id, self.ui_outputs
                )


def run_for(prompt_id: str) -> tuple[Run | None, bool]:
    """The run in execution on this thread, and whether it had to be begun here: no queue handed it over."""
    run = live.current_for_thread()
    return (run, False) if run is not None else (live.start(prompt_id), True)


@guarded
def finish_direct(executor: Any, run: Run | None, filed: bool = True) -> None:
    """Close a prompt that no task_done will close: it came through no queue of ours, or ended its worker."""
    if run is None:
        return
    history = (getattr(executor, "history_result", None) or {}) if filed else {}
    status = ("success" if executor.success else "error") if filed else None
    live.finish(run, executed_fields(run, status, history), history)


def executed_fields(run: Run, status: str | None, history: dict[str, Any]) -> dict[str, Any]:
    """The fields of `run_executed`."""
    outputs = history.get("outputs") or {}
    return {
        "host_status": status,
        "executed": run.error,
        "blocked": run.blocked,
        "outputs": {
            node: sum(len(v) for v in ui.values() if isinstance(v, (list, tuple)))
            for node, ui in outputs.items()
        },
        "cancel_ns": run.cancel_ns,
        "stopped_ns": run.stopped_ns,
        "memory": {},
    }


@guarded
def file_cached(run: Run | None, cached: list[str]) -> None:
    """One event for all that was cached at the start."""
    if run is None:
        return
    run.cached = set(cached)
    live.journal_event(run, "cached", source="loop", stage_id="executor_prepare", nodes=cached)


def is_nan(value: Any) -> bool:
    """Is this the number that no cache key can hold?"""
    return isinstance(value, float) and math.isnan(value)


@guarded
def file_defeated(run: Run | None, prompt: dict[str, Any]) -> None:
    """A mark for each node that defeats the cache: its answer to "are you changed?" can never equal itself.

    The host writes the answers into the prompt: a list, or the bare number NaN where asking raised.
    """
    if run is None:
        return
    for node_id, node in prompt.items():
        answer = node.get("is_changed")
        if is_nan(answer):
            why = "IS_CHANGED raised"
        elif isinstance(answer, list) and any(map(is_nan, answer)):
            why = "IS_CHANGED returned NaN"
        else:
            continue
        run.mark(
            "cache_defeated", {"why": why}, source="loop", node_id=node_id, node_class=node.get("class_type")
        )


@guarded
def staging_error(api: Any, run: Run | None, error: Any, exception: Any) -> None:
    """A dependency cycle found when no node was ready."""
    if run is None or exception is None:
        return
    node_id = (error or {}).get("node_id")
    failure.failed(
        api,
        run,
        exception,
        stage="executor_overhead",
        node_id=node_id,
        node_class=run.class_of.get(str(node_id)),
        visit=run.visit_no_of.get(str(node_id)),
    )


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
