"""One attempt to execute one node: the steps of our `execution.execute`, with the stages native in them.

Every host function that is needed is looked up late on the module `execution`, so that packs which wrap
one keep working.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from typing import Any

from stagexec.executor import growth, lane
from stagexec.executor.aio import span_of_task
from stagexec.executor.duties import Duties
from stagexec.executor.failure import class_of
from stagexec.executor.steps import Await, Step, Steps, now
from stagexec.record import safe
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


class Visit(Steps):
    """The state of one attempt. Arguments are the host's own objects.

    `playing`: the prompt whose loop asks for the visit; None where a pack asks, by its own executor.
    """

    def __init__(self, api: Any, playing: lane.Lane | None, node: Any, given: lane.Given) -> None:
        super().__init__()
        self.api = api
        self.duties = playing.duties if playing is not None else Duties(api, None)
        self.shielded = playing is not None and playing.shielded
        self.plain_caches = playing is not None and playing.plain_caches
        self.given = given
        self.node = node
        self.node_id: str = given.current_item
        self.node_object: Any = None
        self.run = playing.run if playing is not None else None
        self.inputs: dict[str, Any] | None = None
        self.v3_data: Any = None
        self.missing: dict[str, Any] = {}
        self.class_type = ""
        self.class_def: Any = None
        self.record = lane.VisitRecord(self.run, self.node_id)
        self.part_ended = self.record.part_ended
        """Called where a part of the loop's own work is done, with when it began; gives when that was."""

    def steps(self) -> Generator[Any, Any, tuple[Any, Any, Any]]:
        """(result, error details, exception), as the host's function gives them."""
        given, api = self.given, self.api
        node = self.node
        self.class_type = node["class_type"]
        self.class_def = class_of(api, self.class_type)
        self.record.begin(api, self.class_type, self.class_def, given.dynprompt)
        try:
            if self.plain_caches:
                cached = now(given.caches.outputs.get, self.node_id)
            else:
                cached = yield Await(given.caches.outputs.get, self.node_id)
                self.part_ended("cache", self.record.start_ns)
            if cached is not None:
                yield from self._from_cache(cached)
                return self._result("SUCCESS", "cached")
            return (yield from self._fresh_or_resumed(node["inputs"]))
        finally:
            self.record.end()

    def _fresh_or_resumed(self, inputs: dict[str, Any]) -> Generator[Any, Any, tuple[Any, Any, Any]]:
        interrupts = self.api.interrupt_exception
        try:
            done = yield from self._work(inputs)
        except interrupts as error:
            safe.host_log.info("Processing interrupted")
            self.record.failed(self.api, error)
            return self._result("FAILURE", "failed", {"node_id": self._real_id()}, error)
        except BaseException as raised:  # noqa: BLE001 (what is not the node's own is raised again)
            return self._failed(self.thrown or raised)
        if not done:
            return self._result("PENDING", "pending")
        progress = self.api.execution.get_progress_state()
        if len(progress.handlers) < 2:  # our own alone: no pack is called
            progress.finish_progress(self.node_id)
        else:
            begun_ns = self.record.now()
            yield Step(progress.finish_progress, self.node_id)
            self.part_ended("messages", begun_ns)
        self.given.executed.add(self.node_id)
        return self._result("SUCCESS", "blocked" if self.record.was_blocked() else "executed")

    def _failed(self, error: BaseException) -> tuple[Any, Any, Any]:
        """The result of an attempt that raised. What the host lets go is raised again."""
        if self.trace is not None:
            error.__traceback__ = self.trace  # as the coroutine itself has it: clients are shown it
        if not self._ends_here(error):
            if not isinstance(error, (asyncio.CancelledError, GeneratorExit)):
                self.record.failed(self.api, error)
            raise error
        self.record.failed(self.api, error)
        return self._result("FAILURE", "failed", self._describe(error), error)

    def _work(self, inputs: dict[str, Any]) -> Generator[Any, Any, bool]:
        """Do what this attempt is for. False when the node has to wait for something and come back."""
        given = self.given
        if self.node_id in given.pending_async_nodes:
            outputs, ui, expands = self._collect_tasks()
        elif self.node_id in given.pending_subgraph_results:
            outputs, ui, expands = growth.resolve(self.api, given, self.node_id, self.class_def), {}, False
        else:
            called = yield from self._call(inputs)
            if called is None:
                return False
            outputs, ui, expands = called
        if len(ui) > 0:
            yield from self._announce(ui)
        if expands:
            yield from growth.expand(self.api, given, self.node_id, outputs, self.run)
            return False
        entry = self.api.execution.CacheEntry(ui=given.ui_outputs.get(self.node_id), outputs=outputs)
        given.execution_list.cache_update(self.node_id, entry)
        if self.plain_caches:
            now(given.caches.outputs.set, self.node_id, entry)
        else:
            begun_ns = self.record.now()
            yield Await(given.caches.outputs.set, self.node_id, entry)
            self.part_ended("cache", begun_ns)
        self.record.made(self.api, outputs)
        return True

    def _from_cache(self, cached: Any) -> Iterator[Any]:
        given, execution = self.given, self.api.execution
        display, begun_ns = given.dynprompt.get_display_node_id(self.node_id), self.record.now()
        yield from lane.send_cached_ui(self.api, given, self.node_id, display, cached)
        yield Step(execution.get_progress_state().finish_progress, self.node_id)
        self.part_ended("messages", begun_ns)
        given.execution_list.cache_update(self.node_id, cached)
        self.record.served(cached.outputs)
        self.record.announced(cached.ui is not None)

    def _collect_tasks(self) -> tuple[Any, Any, bool]:
        """The results of an async node whose tasks are all done. Raises the first task's own error."""
        with self.record.node_stage():
            tasks = self.given.pending_async_nodes.pop(self.node_id)
            results = [t.result() if isinstance(t, asyncio.Task) else t for t in tasks]
            outputs, ui, expands = self.api.execution.get_output_from_returns(results, self.class_def)
        return outputs, ui, expands

    def _call(self, inputs: dict[str, Any]) -> Generator[Any, Any, tuple[Any, Any, bool] | None]:
        """Assemble the inputs and call the node's function. None when it waits: lazy inputs or tasks."""
        given, execution = self.given, self.api.execution
        progress, begun_ns = execution.get_progress_state(), self.record.now()
        if len(progress.handlers) < 2:
            progress.start_progress(self.node_id)
        else:
            yield Step(progress.start_progress, self.node_id)
            begun_ns = self.part_ended("messages", begun_ns)
        self.inputs, self.missing, self.v3_data = yield Step(
            execution.get_input_data,
            inputs,
            self.class_def,
            self.node_id,
            given.execution_list,
            given.dynprompt,
            given.extra_data,
        )
        begun_ns = self.part_ended("inputs", begun_ns)
        if given.server.client_id is not None:
            given.server.last_node_id = display = given.dynprompt.get_display_node_id(self.node_id)
            message = {"node": self.node_id, "display_node": display, "prompt_id": given.prompt_id}
            yield Step(given.server.send_sync, "executing", message, given.server.client_id)
            begun_ns = self.part_ended("messages", begun_ns)
        self.record.take_inputs(self.api, self.inputs)
        if self.plain_caches:
            self.node_object = now(given.caches.objects.get, self.node_id)
        else:
            self.node_object = yield Await(given.caches.objects.get, self.node_id)
            self.part_ended("cache", begun_ns)
        if self.node_object is None:
            with self.record.node_stage():
                self.node_object = yield Step(self.class_def)
            if self.plain_caches:
                now(given.caches.objects.set, self.node_id, self.node_object)
            else:
                yield Await(given.caches.objects.set, self.node_id, self.node_object)
        if (yield from self._wants_lazy_inputs()):
            return None
        outputs, ui, expands, waits = yield from self._node_function()
        if waits:
            self._wait_for_tasks(outputs)
            return None
        return outputs, ui, expands

    def _node_function(self) -> Generator[Any, Any, tuple[Any, Any, bool, bool]]:
        run, record = self.run, self.record
        at = (run, record.number, record.stage, record.part) if run is not None and record.number else None
        token = VISIT.set(at)
        depth = record.enter()
        try:
            result: tuple[Any, Any, bool, bool] = yield Await(
                self.api.execution.get_output_data,
                self.given.prompt_id,
                self.node_id,
                self.node_object,
                self.inputs,
                execution_block_cb=self.execution_block_cb,
                pre_execute_cb=self.pre_execute_cb,
                v3_data=self.v3_data,
            )
            return result
        finally:
            record.leave(depth)
            VISIT.reset(token)
            if self.duties.has_node_cleanup():
                begun_ns = record.now()
                self.duties.after_node_function()
                self.part_ended("host_cleanup", begun_ns)

    def _wants_lazy_inputs(self) -> Generator[Any, Any, bool]:
        """Ask a node with lazy inputs which it needs; True when some have yet to be made."""
        if not self.api.has_lazy_check(self.class_def, self.node_object):
            return False
        execution = self.api.execution
        v3_data = self.v3_data.copy()
        v3_data["create_dynamic_tuple"] = True
        with self.record.node_stage():
            answers = yield Await(
                execution._async_map_node_over_list,
                self.given.prompt_id,
                self.node_id,
                self.node_object,
                self.inputs,
                "check_lazy_status",
                allow_interrupt=True,
                v3_data=v3_data,
            )
            answers = yield Await(execution.resolve_map_node_over_list_results, answers)
        inputs = self.inputs or {}
        names = {name for answer in answers if isinstance(answer, list) for name in answer}
        wanted = [n for n in names if isinstance(n, str) and (n not in inputs or n in self.missing)]
        for name in wanted:
            yield Step(self.given.execution_list.make_input_strong_link, self.node_id, name)
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

        async def await_completion() -> None:
            await asyncio.gather(*tasks, return_exceptions=True)
            unblock()

        lane.keep(asyncio.create_task(await_completion()))

    def _announce(self, ui: Any) -> Iterator[Any]:
        given, dynprompt = self.given, self.given.dynprompt
        begun_ns = self.record.now()
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
            yield Step(given.server.send_sync, "executed", message, given.server.client_id)
        self.part_ended("messages", begun_ns)
        self.record.announced(True)

    def execution_block_cb(self, block: Any) -> Any:
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

    def pre_execute_cb(self, call_index: int) -> None:
        """The node's function is about to be called for an item of its input lists."""
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

    def _ends_here(self, error: BaseException) -> bool:
        """Is it the node's own error? The host lets go what is no Exception; its worker shall outlive it."""
        if isinstance(error, asyncio.CancelledError) and self._cancelled_from_outside():
            return False
        return isinstance(error, Exception) or (self.shielded and not isinstance(error, GeneratorExit))

    def _cancelled_from_outside(self) -> bool:
        """Was the run's own task cancelled, rather than a CancelledError raised by a node?"""
        task = asyncio.current_task()
        cancelling = getattr(task, "cancelling", None)
        return bool(cancelling and cancelling())

    def _result(self, result: str, kind: str, details: Any = None, error: Any = None) -> tuple[Any, Any, Any]:
        self.record.kind = kind
        return getattr(self.api.execution.ExecutionResult, result), details, error
