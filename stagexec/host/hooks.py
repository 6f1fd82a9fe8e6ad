"""Put the seams in and our loop in place, as the host's modules are imported."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import wrapt

from stagexec.delivery import children, closing, outcome, programs, pyav
from stagexec.delivery.closing import Closer
from stagexec.executor import asked, parts, wire
from stagexec.executor import queue as queue_view
from stagexec.executor.execution import make_execute
from stagexec.executor.keyset import MerkleKeySet
from stagexec.executor.loop import HostLoop, NativeLoop
from stagexec.executor.progress import CoalescedProgress
from stagexec.executor.schedule import Schedule
from stagexec.executor.validation import make_validate_inputs
from stagexec.host import api as host_api
from stagexec.host import (
    attention,
    conformance,
    devices,
    doors,
    leftovers,
    node_pack,
    restart,
    routes,
    sockets,
    visits,
    weight_files,
    worker,
)
from stagexec.host.seams import Factory, SeamRefused, Seams, on_instance
from stagexec.host.tables import Tables
from stagexec.host.wrap import executing_visit
from stagexec.record import ends, live, paths, pauses, watching, words
from stagexec.record.guard import guarded
from stagexec.record.safe import log


class Hooks:
    """All that this process does to the host. `executor`: native, host, or None for what fits the host."""

    def __init__(
        self, tables: Tables, executor: str | None, timing: str, strict: bool, process: dict[str, Any]
    ) -> None:
        self.tables = tables
        self.asked = executor
        self.timing = timing
        self.process = process
        self.api: host_api.HostApi | None = None
        self.reason = ""
        self.journal = True
        self.clean = False
        self.nvml_period_s: float | None = None
        places: dict[str, Factory] = {
            "execution:PromptExecutor": self._executor_class,
            "execution:PromptQueue": self._queue_class,
            "execution:execute": self._execute,
            "execution:get_output_data": self._watched_calls,
            routes.TARGET: self._add_routes,
            worker.TARGET: self._worker,
            "execution:validate_prompt": self._validate,
            **attention.places(),
            **devices.offload_places(timing),
            "av:open": pyav.watched_open,
            "safetensors:safe_open": weight_files.make_safe_open,
            **children.POPEN,
            **programs.PLACES,
            **asked.PLACES,
            "comfy_execution.caching:RAMPressureCache.ram_release": parts.eviction,
            "comfy_execution.caching:RAMPressureCache.poll": parts.eviction,
            "execution:validate_inputs": self._validate_inputs,
            "execution:CacheKeySetInputSignature": self._native(mixed(MerkleKeySet)),
            "execution:ExecutionList": self._native(mixed(Schedule)),
            "execution:WebUIProgressHandler": self._native(mixed(CoalescedProgress)),
            wire.JSON: self._native_server(wire.make_send_json),
            wire.SYNC: sockets.noting(self._native_server(wire.make_send_sync)),
        }
        rows = [row for row in tables.seams.values() if row.kind == "replace"]
        self.seams = Seams(
            tables, {row.id: places[t] for row in rows for t in row.target if t in places}, strict
        )

    def install(self) -> None:
        """Before the host starts."""
        self.seams.install_hooks()
        children.visit_here, queue_view.by_code = executing_visit, doors.by_code
        watching.children = programs.living
        wrapt.register_post_import_hook(node_pack.register, "server")

    def _known(self, execution: ModuleType) -> host_api.HostApi:
        """The host, once its `execution` module is there; decides which loop runs its prompts.

        What it raises on a host that cannot be read makes a refusal of every seam that asks.
        """
        if self.api is None:
            try:
                self.api = host_api.HostApi(execution, self.tables)
            except Exception as error:
                if not self.reason:
                    self.reason = f"this ComfyUI cannot be read: {type(error).__name__}: {error}"
                    log.warning("stagexec: %s. It runs as it is, and no run is recorded.", self.reason)
                raise
            self.api.timing = self.timing
            self.api.executor_used, self.reason = conformance.choose(self.api, self.asked)
            if self.journal:
                self._begin_process()
        return self.api

    @guarded
    def _begin_process(self) -> None:
        api = self.api
        assert api is not None
        paths.host_folder = paths.host_folder or user_folder()
        ledger = paths.ledger_folder(self.process.pop("ledger", None))
        argv = words.arguments(self.process.pop("argv", ()), host_choices().__contains__)
        live.begin_process(ledger, watched=True, argv=argv, **self.process)
        ends.unchecked, ends.finish_checks = outcome.unchecked, closing.at_exit
        ends.begin()
        devices.tell()
        live.sample_devices(self.nvml_period_s)
        live.host_facts(
            host_version=host_api.version(),
            facts={**api.facts, "fingerprint": api.fingerprint},
            executor=api.executor_used,
            executor_reason=self.reason,
        )
        Closer(api.directory_of).start()
        api.conditions.start()
        leftovers.report(ledger, self.clean)
        pauses.watch()
        level = logging.WARNING if self.asked != "host" and api.executor_used == "host" else logging.INFO
        log.log(level, "stagexec: prompts run in the %s loop (%s).", api.executor_used, self.reason)

    def _executor_class(self, module: ModuleType, original: Any) -> Any:
        api = self._known(module)
        loop = NativeLoop if api.executor_used == "native" else HostLoop
        body = {"api": api, "__module__": module.__name__, "__init__": self._made_with_states(original)}
        return type("PromptExecutor", (loop, original), body)

    def _made_with_states(self, original: Any) -> Callable[..., None]:
        hooks = self

        @functools.wraps(original.__init__)
        def init(executor: Any, *args: Any, **kwargs: Any) -> None:
            original.__init__(executor, *args, **kwargs)
            hooks.file_states()  # the worker makes its executor when all nodes are loaded

        return init

    def _queue_class(self, module: ModuleType, original: Any) -> Any:
        api = self._known(module)
        body = {"api": api, "__module__": module.__name__, "get": self._get_with_states(original)}
        return type("PromptQueue", (queue_view.QueueView, original), body)

    def _get_with_states(self, original: Any) -> Callable[..., Any]:
        hooks = self

        @functools.wraps(original.get)
        def get(queue: Any, *args: Any, **kwargs: Any) -> Any:
            hooks.file_states()  # the worker is idle; a pack that replaced `get` keeps us from here
            return queue_view.QueueView.get(queue, *args, **kwargs)

        return get

    def _execute(self, module: ModuleType, original: Any) -> Any:
        api = self._known(module)
        if api.executor_used == "native":
            return make_execute(api, original)
        return visits.make_recorded(api, original)

    def _watched_calls(self, module: ModuleType, original: Any) -> Any:
        api = self._known(module)
        return original if api.executor_used == "native" else visits.make_watched_calls(api, original)

    def _native(self, make: Callable[[host_api.HostApi, ModuleType, Any], Any]) -> Factory:
        """A factory that leaves the host's own in place where the host's loop runs the prompts."""

        def factory(module: ModuleType, original: Any) -> Any:
            api = self._known(module)
            return make(api, module, original) if api.executor_used == "native" else original

        return factory

    def _native_server(self, make: Factory) -> Factory:
        """The same for a place on the server, whose module imports `execution`."""

        def factory(module: ModuleType, original: Any) -> Any:
            used = self.api.executor_used if self.api is not None else None
            if used == "host" and make is wire.make_send_sync:
                return parts.timed("messages", original, visits.in_host_visit)
            return make(module, original) if used == "native" else original

        return factory

    def _validate_inputs(self, module: ModuleType, original: Any) -> Any:
        if self._known(module).executor_used != "native":
            watched = inspect.iscoroutinefunction(original)
            return asked.WatchedValidateInputs(original) if watched else original
        takes_path = "visiting" in inspect.signature(original).parameters
        return make_validate_inputs(original, takes_path)

    def _validate(self, module: ModuleType, original: Any) -> Any:
        self._known(module)
        # Hosts whose validation is no coroutine give it no prompt id either: nothing to keep it by.
        takes_id = inspect.iscoroutinefunction(original)
        return queue_view.TimedValidation(original) if takes_id else original

    def _add_routes(self, module: ModuleType, original: Any) -> Any:
        with_ours = routes.add_routes(module, original)

        @functools.wraps(original)
        def add_routes(server: Any, *args: Any, **kwargs: Any) -> Any:
            asked.watch_handlers(server)
            self._install_late()  # all nodes are loaded, and here a refusal can still end the start
            return with_ours(server, *args, **kwargs)

        return add_routes

    def _worker(self, _module: ModuleType, original: Any) -> Any:
        return original if self.api is None else worker.make_supervised(self.api, original)

    @guarded
    def _install_late(self) -> None:
        self.seams.install_late()
        self.seams.install_in("__main__")  # the host's main.py by now, which is about to start its worker

    _filed: Any = None

    @guarded
    def file_states(self) -> None:
        """File the seams' states in the journal when they have changed. On the worker's thread."""
        try:
            self.seams.install_late()
        except SeamRefused as refusal:  # past the start: it would end nothing but the worker, without a word
            log.error("%s. It came after the start, which --stagexec-strict no longer ends.", refusal)
        states = [queue_state(one) for one in self.seams.verify()]
        if states != self._filed:
            self._filed = [dict(one) for one in states]
            live.seam_states(self._filed)


def queue_state(state: dict[str, Any]) -> dict[str, Any]:
    """The queue's seam, after a look at the server's own queue: packs replace methods on the instance."""
    server = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    queue = getattr(server, "prompt_queue", None)
    if state["seam"] != "prompt_queue" or state["state"] != "installed" or queue is None:
        return state
    if not isinstance(queue, queue_view.QueueView):
        kind = f"{type(queue).__module__}:{type(queue).__qualname__}"
        if not any(isinstance(one, queue_view.QueueView) for one in vars_of(queue).values()):
            return {**state, "state": "lost", "reason": f"the server's queue is a {kind}, none of ours"}
        return {**state, "reason": f"the server's queue is a {kind}, in front of ours"}
    found = on_instance(queue, ("put", "get", "task_done"), queue_view.is_called(queue))
    return state if found is None else {**state, "state": found[0], "reason": found[1]}


def vars_of(thing: Any) -> dict[str, Any]:
    """The instance's own attributes, where it has such."""
    found = getattr(thing, "__dict__", None)
    return dict(found) if isinstance(found, dict) else {}


def mixed(part: type) -> Callable[[host_api.HostApi, ModuleType, Any], Any]:
    """Makes a subclass of the host's class with `part` mixed in, under the host's name."""

    def make(api: host_api.HostApi, module: ModuleType, original: Any) -> Any:
        return type(original.__name__, (part, original), {"api": api, "__module__": module.__name__})

    return make


def host_choices() -> set[str]:
    """The values that the host's own command line lists for its options."""
    actions = getattr(getattr(sys.modules.get("comfy.cli_args"), "parser", None), "_actions", ())
    found: set[str] = set()
    for action in actions:
        kind = getattr(action, "type", None)
        listed = [
            *(action.choices or ()),
            *(kind if isinstance(kind, type) and issubclass(kind, Enum) else ()),
        ]
        found.update(str(getattr(one, "value", one)) for one in listed)
    return found


def user_folder() -> Path | None:
    """The host's folder for what belongs to no single user."""
    folders = sys.modules.get("folder_paths")
    if folders is None:
        return None
    system = getattr(folders, "get_system_user_directory", None)
    if system is not None:
        return Path(system("stagexec"))
    return paths.system_user_folder(Path(folders.get_user_directory()))


def begin(hooks: Hooks, command: list[str], main_file: Path) -> None:
    """Install everything and make a restart of the host come back to us. `command`: how we were started."""
    restart.keep_launcher(command, main_file)
    hooks.install()
