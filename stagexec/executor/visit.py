"""One attempt to execute one node: our `execution.execute`, with the stages native in it.

Same arguments by position and same result as the host's function, and every host function it needs is
looked up late on the module `execution`, so that packs which wrap either keep working.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from stagexec.executor import growth, lane
from stagexec.executor.aio import span_of_task
from stagexec.executor.failure import class_of
from stagexec.record import live, safe
from stagexec.record.run import VISIT

OOM_TIP = (
    "This error means you ran out of memory on your GPU.\n\nTIPS: If the workflow worked before you might "
    "have accidentally set the batch_size to a large number."
)
LOADER_TIP = (
    '\n\nTIPS: If you have any "Load CLIP" or "*CLIP Loader" nodes in your workflow connected to this '
    "sampler node make sure the correct file(s) and type is selected."
)
"""The host's own hints, word for word: clients show them."""


def make_execute(api: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Our replacement of the host's `execution.execute`, a coroutine function of the same arguments."""

    async def execute(*args: Any, **kwargs: Any) -> Any:
        executor = lane.executor()
        if executor is None:  # called outside our loop: by the host's executor, or by a pack's own
            return await original(*args, **kwargs)
        return await Visit(api, executor.duties, lane.bind(args, kwargs)).attempt()

    execute.__wrapped__ = original  # type: ignore[attr-defined]
    return execute


def to_await(value: Any) -> bool:
    """Has this to be awaited? The host's caches became coroutines in 0.18."""
    return type(value) is CoroutineType or inspect.isawaitable(value)


class Visit:
    """The state of one attempt. Arguments are the host's own objects."""

    def __init__(self, api: Any, duties: Any, given: lane.Given) -> None:
        self.api = api
        self.duties = duties
        self.given = given
        self.node_id: str = given.current_item
        self.run = live.current_for_thread()
        self.inputs: dict[str, Any] | None = None
        self.v3_data: Any = None
        self.missing: dict[str, Any] = {}
        self.class_type = ""
        self.class_def: Any = None
        self.record = lane.VisitRecord(self.run, self.node_id)

    async def attempt(self) -> tuple[Any, Any, Any]:
        """(result, error details, exception), as the host's function gives them."""
        given, api = self.given, self.api
        node = given.dynprompt.get_node(self.node_id)
        self.class_type = node["class_type"]
        self.class_def = class_of(api, self.class_type)
        self.record.begin(
            api, self.class_type, self.class_def, given.dynprompt.get_parent_node_id(self.node_id)
        )
        try:
            cached = given.caches.outputs.get(self.node_id)
            if to_await(cached):
                cached = await cached
            if cached is not None:
                self._from_cache(cached)
                return self._result("SUCCESS", "cached")
            return await self._fresh_or_resumed(node["inputs"])
        finally:
            self.record.end()

    async def _fresh_or_resumed(self, inputs: dict[str, Any]) -> tuple[Any, Any, Any]:
        interrupts = self.api.interrupt_exception
        try:
            done = await self._work(inputs)
        except interrupts as error:
            safe.host_log.info("Processing interrupted")
            self.record.failed(self.api, error)
            return self._result("FAILURE", "failed", {"node_id": self._real_id()}, error)
        except BaseException as error:
            if issubclass(type(error), asyncio.CancelledError) and self._cancelled_from_outside():
                raise
            self.record.failed(self.api, error)
            return self._result("FAILURE", "failed", self._describe(error), error)
        if not done:
            return self._result("PENDING", "pending")
        self.api.execution.get_progress_state().finish_progress(self.node_id)
        self.given.executed.add(self.node_id)
        return self._result("SUCCESS", "blocked" if self.record.was_blocked() else "executed")

    async def _work(self, inputs: dict[str, Any]) -> bool:
        """Do what this attempt is for. False when the node has to wait for something and come back."""
        given = self.given
        if self.node_id in given.pending_async_nodes:
            outputs, ui, expands = self._collect_tasks()
        elif self.node_id in given.pending_subgraph_results:
            outputs, ui, expands = growth.resolve(self.api, given, self.node_id, self.class_def), {}, False
        else:
            called = await self._call(inputs)
            if called is None:
                return False
            outputs, ui, expands = called
        if len(ui) > 0:
            self._announce(ui)
        if expands:
            await growth.expand(self.api, given, self.node_id, outputs, self.run)
            return False
        entry = self.api.execution.CacheEntry(ui=given.ui_outputs.get(self.node_id), outputs=outputs)
        given.execution_list.cache_update(self.node_id, entry)
        stored = given.caches.outputs.set(self.node_id, entry)
        if to_await(stored):
            await stored
        self.record.made(self.api, outputs)
        return True

    def _from_cache(self, cached: Any) -> None:
        given, execution = self.given, self.api.execution
        display = given.dynprompt.get_display_node_id(self.node_id)
        lane.send_cached_ui(self.api, given, self.node_id, display, cached)
        execution.get_progress_state().finish_progress(self.node_id)
        given.execution_list.cache_update(self.node_id, cached)
        self.record.announced(cached.ui is not None)

    def _collect_tasks(self) -> tuple[Any, Any, bool]:
        """The results of an async node whose tasks are all done. Raises the first task's own error."""
        with self.record.node_stage():
            tasks = self.given.pending_async_nodes.pop(self.node_id)
            results = [t.result() if isinstance(t, asyncio.Task) else t for t in tasks]
            outputs, ui, expands = self.api.execution.get_output_from_returns(results, self.class_def)
        return outputs, ui, expands

    async def _call(self, inputs: dict[str, Any]) -> tuple[Any, Any, bool] | None:
        """Assemble the inputs and call the node's function. None when it waits: lazy inputs or tasks."""
        given, execution = self.given, self.api.execution
        execution.get_progress_state().start_progress(self.node_id)
        self.inputs, self.missing, self.v3_data = execution.get_input_data(
            inputs, self.class_def, self.node_id, given.execution_list, given.dynprompt, given.extra_data
        )
        if given.server.client_id is not None:
            given.server.last_node_id = display = given.dynprompt.get_display_node_id(self.node_id)
            message = {"node": self.node_id, "display_node": display, "prompt_id": given.prompt_id}
            given.server.send_sync("executing", message, given.server.client_id)
        self.record.take_inputs(self.api, self.inputs)
        node_object = given.caches.objects.get(self.node_id)
        if to_await(node_object):
            node_object = await node_object
        if node_object is None:
            with self.record.node_stage():
                node_object = self.class_def()
            stored = given.caches.objects.set(self.node_id, node_object)
            if to_await(stored):
                await stored
        if await self._wants_lazy_inputs(node_object):
            return None
        outputs, ui, expands, waits = await self._node_function(node_object)
        if waits:
            self._wait_for_tasks(outputs)
            return None
        return outputs, ui, expands

    async def _node_function(self, node_object: Any) -> tuple[Any, Any, bool, bool]:
        run, record = self.run, self.record
        at = (run, record.number, record.stage, record.part) if run is not None and record.number else None
        token = VISIT.set(at)
        depth = record.enter()
        try:
            result: tuple[Any, Any, bool, bool] = await self.api.execution.get_output_data(
                self.given.prompt_id,
                self.node_id,
                node_object,
                self.inputs,
                execution_block_cb=self._blocked,
                pre_execute_cb=self._before_call,
                v3_data=self.v3_data,
            )
            return result
        finally:
            record.leave(depth)
            VISIT.reset(token)
            self.duties.after_node_function()

    async def _wants_lazy_inputs(self, node_object: Any) -> bool:
        """Ask a node with lazy inputs which it needs; True when some have yet to be made."""
        if not self.api.has_lazy_check(self.class_def, node_object):
            return False
        execution = self.api.execution
        v3_data = self.v3_data.copy()
        v3_data["create_dynamic_tuple"] = True
        with self.record.node_stage():
            answers = await execution._async_map_node_over_list(
                self.given.prompt_id,
                self.node_id,
                node_object,
                self.inputs,
                "check_lazy_status",
                allow_interrupt=True,
                v3_data=v3_data,
            )
            answers = await execution.resolve_map_node_over_list_results(answers)
        inputs = self.inputs or {}
        names = {name for answer in answers if isinstance(answer, list) for name in answer}
        wanted = [n for n in names if isinstance(n, str) and (n not in inputs or n in self.missing)]
        for name in wanted:
            self.given.execution_list.make_input_strong_link(self.node_id, name)
        return len(wanted) > 0

    def _wait_for_tasks(self, outputs: list[Any]) -> None:
        given = self.given
        given.pending_async_nodes[self.node_id] = outputs
        unblock = given.execution_list.add_external_block(self.node_id)
        tasks = [task for task in outputs if isinstance(task, asyncio.Task)]
        if self.run is not None:
            for task in tasks:
                span_of_task(
                    self.run, task, self.node_id, self.record.number, self.record.stage, self.record.start_ns
                )

        async def release_when_done() -> None:
            await asyncio.gather(*tasks, return_exceptions=True)
            unblock()

        lane.keep(asyncio.create_task(release_when_done()))

    def _announce(self, ui: Any) -> None:
        given, dynprompt = self.given, self.given.dynprompt
        if self.api.facts["asset_enrichment"]:
            ui = self.api.execution.enrich_output_with_assets(ui)
        display = dynprompt.get_display_node_id(self.node_id)
        given.ui_outputs[self.node_id] = {
            "meta": {
                "node_id": self.node_id,
                "display_node": display,
                "parent_node": dynprompt.get_parent_node_id(self.node_id),
                "real_node_id": self._real_id(),
            },
            "output": ui,
        }
        if given.server.client_id is not None:
            message = {
                "node": self.node_id,
                "display_node": display,
                "output": ui,
                "prompt_id": given.prompt_id,
            }
            given.server.send_sync("executed", message, given.server.client_id)
        self.record.announced(True)

    def _blocked(self, block: Any) -> Any:
        """A blocker reached an input: tell the client once when it carries a message."""
        self.record.blocked(block.message)
        if block.message is None:
            return block
        given = self.given
        message = {
            "prompt_id": given.prompt_id,
            "node_id": self.node_id,
            "node_type": self.class_type,
            "executed": list(given.executed),
            "exception_message": f"Execution Blocked: {block.message}",
            "exception_type": "ExecutionBlocked",
            "traceback": [],
            "current_inputs": [],
            "current_outputs": [],
        }
        given.server.send_sync("execution_error", message, given.server.client_id)
        return self.api.execution.ExecutionBlocker(None)

    def _before_call(self, call_index: int) -> None:
        self.record.call(call_index)
        self.api.execution.GraphBuilder.set_default_prefix(self.node_id, call_index, 0)

    def _describe(self, error: BaseException) -> dict[str, Any]:
        """The error as clients get it, and what the host does about it: logs, and unloads after an OOM.

        It cannot raise: what cannot be had of the error is left out, what no console takes is escaped there.
        """
        execution, management = self.api.execution, self.api.model_management
        text = safe.text_of(error)
        nothing: dict[str, Any] = {}
        shown = safe.ask(nothing, self._shown_inputs)
        safe.host_log.error(f"!!! Exception during processing !!! {text}")
        safe.host_log.error(safe.traceback_of(error))
        tips = ""
        if safe.ask(False, self.api.is_oom, error):
            tips = OOM_TIP
            summary = safe.ask("not to be had", management.debug_memory_summary)
            safe.host_log.info("Memory summary:\n%s", summary)
            safe.host_log.error("Got an OOM, unloading all loaded models.")
            safe.attempt("unloading all loaded models", management.unload_all_models)
        elif (
            issubclass(type(error), RuntimeError)
            and "mat1 and mat2 shapes" in text
            and "Sampler" in self.class_type
        ):
            tips = LOADER_TIP
        return {
            "node_id": self._real_id(),
            "exception_message": f"{text}\n{tips}",
            "exception_type": safe.ask(safe.kind_of(error), execution.full_type_name, type(error)),
            "traceback": safe.frames_of(error.__traceback__),
            "current_inputs": shown,
        }

    def _shown_inputs(self) -> dict[str, Any]:
        """The inputs as the host shows them; of a value that cannot be shown, its kind."""

        def show(value: Any) -> Any:
            return safe.ask(f"<{safe.kind_of(value)}>", self.api.execution.format_value, value)

        return {name: [show(value) for value in values] for name, values in (self.inputs or {}).items()}

    def _real_id(self) -> str:
        real: str = safe.ask(self.node_id, self.given.dynprompt.get_real_node_id, self.node_id)
        return real

    def _cancelled_from_outside(self) -> bool:
        """Was the run's own task cancelled, rather than a CancelledError raised by a node?"""
        task = asyncio.current_task()
        cancelling = getattr(task, "cancelling", None)
        return bool(cancelling and cancelling())

    def _result(self, result: str, kind: str, details: Any = None, error: Any = None) -> tuple[Any, Any, Any]:
        self.record.kind = kind
        return getattr(self.api.execution.ExecutionResult, result), details, error
