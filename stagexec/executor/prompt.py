"""The steps of one prompt: plan, visit node after node, file the outcome."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from stagexec.executor import aio, failure
from stagexec.executor.keyset import known_ids
from stagexec.executor.lane import Lane
from stagexec.executor.steps import Await, Step, Steps, now
from stagexec.record import live
from stagexec.record.guard import guarded
from stagexec.record.run import Run


class Prompt(Steps):
    """The steps of one prompt, on the host's own graph and cache classes."""

    def __init__(
        self, playing: Lane, prompt: Any, prompt_id: str, extra_data: Any, execute_outputs: Any
    ) -> None:
        super().__init__()
        self.executor = playing.executor
        self.api = self.executor.api
        self.playing = playing
        self.duties = playing.duties
        self.run = playing.run
        self.prompt = prompt
        self.prompt_id = prompt_id
        self.extra_data = extra_data
        self.execute_outputs = execute_outputs
        self.executed: set[str] = set()
        self.ui_outputs = playing.ui_outputs
        self.expanding: dict[str, Any] = {}
        self.awaiting: dict[str, Any] = {}
        self.dynprompt: Any = None
        self.node_id: Any = None
        self.nodes: Any = None
        self.progress: Any = None

    def steps(self) -> Generator[Any, Any, None]:
        """From the prompt to `history_result`."""
        run, duties = self.run, self.duties
        unwatch = aio.watch(run) if run is not None else None
        try:
            cancelled = run is not None and run.cancel_ns is not None
            yield from duties.before_prompt(self.prompt_id, self.extra_data, cancelled)
            try:
                with self.api.torch.inference_mode():
                    yield from self._play()
            finally:
                begun_ns = self._now()
                yield from duties.after_prompt(self.prompt_id)
                self._part_ended("host_cleanup", begun_ns)
        finally:
            if unwatch is not None:
                unwatch(self.playing.own_loop)

    def _play(self) -> Generator[Any, Any, None]:
        executor = self.executor
        try:
            yield from self._plan()
            if (yield from self._visit_all()):
                begun_ns = self._now()
                self._last_progress()
                yield from self._announce_intermediates()
                message = {"prompt_id": self.prompt_id}
                yield Step(executor.add_message, "execution_success", message, broadcast=False)
                self._part_ended("messages", begun_ns)
        finally:
            self._last_progress()  # also where an error escaped: a timer must not speak after the end
        executor.history_result = history_of(self.ui_outputs)
        executor.server.last_node_id = None
        if self.api.model_management.DISABLE_SMART_MEMORY:
            begun_ns = self._now()
            self.api.model_management.unload_all_models()
            self._part_ended("host_cleanup", begun_ns)

    def _now(self) -> int:
        return self.run.clock() if self.run is not None else 0

    def _part_ended(self, part: str, since_ns: int) -> None:
        """A part of the work between the nodes is done that began then."""
        if self.run is not None:
            self.run.ledger.carve(part, since_ns)

    @contextmanager
    def _part(self, part: str) -> Iterator[None]:
        run = self.run
        depth = run.enter("executor_prepare", part) if run is not None else -1
        try:
            yield
        finally:
            if run is not None:
                run.leave(depth)

    def _plan(self) -> Generator[Any, Any, None]:
        execution, executor = self.api.execution, self.executor
        self.dynprompt = execution.DynamicPrompt(self.prompt)
        execution.reset_progress_state(self.prompt_id, self.dynprompt)
        self.progress = execution.WebUIProgressHandler(executor.server)
        execution.add_progress_handler(self.progress)
        self.playing.plain_caches = self.api.has_plain_caches(executor.caches)
        changed = execution.IsChangedCache(self.prompt_id, self.dynprompt, executor.caches.outputs)
        for cache in executor.caches.all:
            with self._part("cache_resolve"):
                yield Await(cache.set_prompt, self.dynprompt, self.prompt.keys(), changed)
            with self._part("cleanup"):
                cache.clean_unused()
        with self._part("cache_resolve"):
            cached = yield from self._cached_now()
        with self._part("cleanup"):
            self.api.model_management.cleanup_models_gc()
        message = {"nodes": cached, "prompt_id": self.prompt_id}
        yield Step(executor.add_message, "execution_cached", message, broadcast=False)
        file_cached(self.run, cached)
        file_defeated(self.run, self.prompt)
        self.nodes = execution.ExecutionList(
            self.dynprompt, executor.caches.outputs, *self.duties.link_callback()
        )
        self.known_outputs = known_ids(executor.caches.outputs)
        for node_id in list(self.execute_outputs):
            self.node_id = node_id
            yield Step(self.nodes.add_node, node_id)
        if self.run is not None:
            self.run.ledger.switch("executor_overhead")

    def _cached_now(self) -> Generator[Any, Any, list[str]]:
        outputs = self.executor.caches.outputs
        node_ids = list(self.prompt)
        if self.playing.plain_caches:
            return [node_id for node_id in node_ids if now(outputs.get, node_id) is not None]
        # Only external caches make a look-up wait; without any, a task for each node is wasted.
        if self.api.facts["cache_providers"] and self.api.execution._has_cache_providers():
            found = yield Await(asyncio.gather, *(outputs.get(node_id) for node_id in node_ids))
        else:
            found = []
            for node_id in node_ids:
                found.append((yield Await(outputs.get, node_id)))
        return [node_id for node_id, entry in zip(node_ids, found, strict=True) if entry is not None]

    def _visit_all(self) -> Generator[Any, Any, bool]:
        """Visit what is ready until nothing is left. False when the prompt ended in an error."""
        executor, results = self.executor, self.api.execution.ExecutionResult
        while not self.nodes.is_empty():
            node_id, error, exception = yield Await(self.nodes.stage_node_execution)
            self.node_id = node_id
            if error is not None:
                staging_error(self.api, self.run, error, exception)
                yield self._failed(error, exception)
                return False
            assert node_id is not None, "Node ID should not be None at this point"
            result, error, exception = yield Await(
                self.api.execution.execute,
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
                yield self._failed(error, exception)
                return False
            if result == results.PENDING:
                self.nodes.unstage_node_execution()
            else:
                self.nodes.complete_node_execution()
            begun_ns = self._now()
            self.duties.after_node()
            self._part_ended("eviction", begun_ns)
        return True

    def _last_progress(self) -> None:
        """Send a progress state that was held back; the host's own handler holds none."""
        flush = getattr(self.progress, "flush", None)
        if flush is not None:
            flush()

    def _failed(self, error: Any, exception: Any) -> Step[Any]:
        self._last_progress()
        return Step(
            self.executor.handle_execution_error,
            self.prompt_id,
            self.dynprompt.original_prompt,
            self.known_outputs,
            self.executed,
            error,
            exception,
        )

    def _announce_intermediates(self) -> Generator[Any, Any, None]:
        """Cached output of nodes that show something in mid-graph, though they were not visited."""
        if not self.api.facts["intermediate_outputs"]:
            return
        for node_id in self.dynprompt.all_node_ids():
            if node_id in self.executed or not self.api.execution._is_intermediate_output(
                self.dynprompt, node_id
            ):
                continue
            cached = yield Await(self.executor.caches.outputs.get, node_id)
            if cached is not None:
                display = self.dynprompt.get_display_node_id(node_id)
                yield Step(
                    self.api.execution._send_cached_ui,
                    self.executor.server,
                    node_id,
                    display,
                    cached,
                    self.prompt_id,
                    self.ui_outputs,
                )


def history_of(ui_outputs: dict[str, Any]) -> dict[str, Any]:
    """What the worker files in history."""
    return {
        "outputs": {node_id: ui["output"] for node_id, ui in ui_outputs.items()},
        "meta": {node_id: ui["meta"] for node_id, ui in ui_outputs.items()},
    }


@guarded
def finish_direct(executor: Any, run: Run | None, filed: bool = True) -> None:
    """Close a prompt that no task_done will close: it came through no queue of ours, or ended its worker."""
    if run is None:
        return
    failure.name_as_told(run, getattr(executor, "status_messages", ()))
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
