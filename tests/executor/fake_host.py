"""A host in miniature: queue, executor, graph, caches, a handful of node classes. Enough for whole runs."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import heapq
import inspect
import threading
from collections import defaultdict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from stagexec.executor.execution import make_execute
from stagexec.executor.loop import NativeLoop
from stagexec.executor.queue import QueueView
from stagexec.host.node_stage import NodeStages
from stagexec.host.visits import make_recorded, make_watched_calls

Graph = dict[str, Any]


class Interrupted(Exception):
    pass


class DependencyCycleError(Exception):
    pass


class Blocker:
    def __init__(self, message: str | None) -> None:
        self.message = message


class Result(enum.Enum):
    SUCCESS = 0
    FAILURE = 1
    PENDING = 2


@dataclass
class Entry:
    ui: Any
    outputs: Any


def is_link(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


class Prompt:
    """The graph of a prompt and what grew out of it."""

    def __init__(self, graph: Graph) -> None:
        self.original_prompt = graph
        self.ephemeral_prompt: Graph = {}
        self.ephemeral_parents: dict[str, str] = {}

    def get_node(self, node_id: str) -> Any:
        return self.original_prompt.get(node_id) or self.ephemeral_prompt[node_id]

    def add_ephemeral_node(self, node_id: str, node: Any, parent: str, _display: str) -> None:
        self.ephemeral_prompt[node_id] = node
        self.ephemeral_parents[node_id] = parent

    def get_parent_node_id(self, node_id: str) -> str | None:
        return self.ephemeral_parents.get(node_id)

    def get_display_node_id(self, node_id: str) -> str:
        return self.ephemeral_parents.get(node_id, node_id)

    get_real_node_id = get_display_node_id

    def all_node_ids(self) -> set[str]:
        return set(self.original_prompt) | set(self.ephemeral_prompt)


class Nodes:
    """What is still to be executed, and what it waits for."""

    def __init__(self, prompt: Prompt, cache: Cache) -> None:
        self.prompt = prompt
        self.cache = cache
        self.waits: dict[str, set[str]] = {}
        self.external: set[str] = set()
        self.freed = asyncio.Event()
        self.staged = ""

    def add_node(self, node_id: str) -> None:
        if node_id in self.waits:
            return
        links = [v[0] for v in self.prompt.get_node(node_id)["inputs"].values() if is_link(v)]
        self.waits[node_id] = {link for link in links if self.cache.get(link) is None}
        for link in links:
            if self.cache.get(link) is None:
                self.add_node(link)

    def add_strong_link(self, child: str, _socket: int, node_id: str) -> None:
        self.add_node(child)
        self.waits[node_id].add(child)

    def add_external_block(self, node_id: str) -> Any:
        self.external.add(node_id)

        def unblock() -> None:
            self.external.discard(node_id)
            self.freed.set()

        return unblock

    def is_empty(self) -> bool:
        return not self.waits

    async def stage_node_execution(self) -> tuple[Any, Any, Any]:
        while True:
            ready = [n for n, waits in self.waits.items() if not waits and n not in self.external]
            if ready:
                self.staged = ready[0]
                return self.staged, None, None
            if not self.external:
                error = DependencyCycleError("a cycle")
                return None, {"node_id": next(iter(self.waits))}, error
            self.freed.clear()
            await self.freed.wait()

    def unstage_node_execution(self) -> None:
        self.staged = ""

    def complete_node_execution(self) -> None:
        del self.waits[self.staged]
        for waits in self.waits.values():
            waits.discard(self.staged)

    def cache_update(self, node_id: str, entry: Entry) -> None:
        self.cache.set(node_id, entry)

    def get_cache(self, node_id: str, _for: str) -> Any:
        return self.cache.get(node_id)

    def cache_link(self, _child: str, _parent: str) -> None:
        """The cache of this host forgets nothing."""


class Cache:
    """Remembers by node id, for one prompt."""

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}

    async def set_prompt(self, _prompt: Prompt, _node_ids: Any, _changed: Any) -> None:
        self.entries.clear()

    def clean_unused(self) -> None:
        """Nothing is unused."""

    def get(self, node_id: str) -> Any:
        return self.entries.get(node_id)

    def set(self, node_id: str, value: Any) -> None:
        self.entries[node_id] = value

    def all_node_ids(self) -> set[str]:
        return set(self.entries)

    def ensure_subcache_for(self, _node_id: str, _children: set[str]) -> Cache:
        return self


class Server:
    """Keeps what clients would see."""

    def __init__(self) -> None:
        self.client_id: str | None = "client"
        self.last_node_id: str | None = None
        self.messages: list[tuple[str, Any]] = []
        self.prompt_queue: Any = None

    def send_sync(self, kind: str, data: Any, _client: str | None = None) -> None:
        self.messages.append((kind, {k: v for k, v in data.items() if k not in ("traceback", "timestamp")}))


class Executor:
    """The host's `PromptExecutor`, as far as a loop needs it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        outputs, objects = Cache(), Cache()
        self.caches = SimpleNamespace(outputs=outputs, objects=objects, all=[outputs, objects])
        self.success = True
        self.status_messages: list[Any] = []
        self.history_result: dict[str, Any] = {}

    def add_message(self, kind: str, data: Any, broadcast: bool) -> None:
        self.status_messages.append(kind)
        self.server.send_sync(kind, data)

    def handle_execution_error(self, prompt_id: str, _p: Any, _o: Any, _e: Any, error: Any, _x: Any) -> None:
        self.server.send_sync("execution_error", {"prompt_id": prompt_id, **error})


class Queue:
    """The host's `PromptQueue`, as far as a worker needs it."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.queue: list[Any] = []
        self.history: dict[str, Any] = {}
        self.currently_running: dict[int, Any] = {}

    def put(self, item: Any) -> None:
        with self.mutex:
            heapq.heappush(self.queue, item)

    def get(self, timeout: float | None = None) -> Any:
        with self.mutex:
            item = heapq.heappop(self.queue)
            self.currently_running[item[0]] = item
            return item, item[0]

    def task_done(self, item_id: int, history_result: Any, status: Any) -> None:
        self.history[self.currently_running.pop(item_id)[1]] = (status.status_str, history_result)

    def get_history(self, prompt_id: str | None = None) -> dict[str, Any]:
        wanted = self.history if prompt_id is None else {prompt_id: self.history.get(prompt_id)}
        return {name: {"filed": filed} for name, filed in wanted.items()}

    def wipe_queue(self) -> None:
        with self.mutex:
            self.queue = []

    def delete_queue_item(self, wanted: Any) -> bool:
        with self.mutex:
            found = next((item for item in self.queue if wanted(item)), None)
            if found is not None:
                self.queue.remove(found)
            return found is not None


def inputs_of(inputs: Graph, cache: Cache) -> dict[str, list[Any]]:
    """Each input as the list of its values; a list as constant is mapped over."""
    found: dict[str, list[Any]] = {}
    for name, value in inputs.items():
        if is_link(value):
            found[name] = cache.get(value[0]).outputs[value[1]]
        else:
            found[name] = value if isinstance(value, list) else [value]
    return found


async def get_output_data(
    _prompt_id: str,
    _node_id: str,
    node: Any,
    input_data_all: dict[str, list[Any]],
    execution_block_cb: Any,
    pre_execute_cb: Any,
    v3_data: Any,
) -> tuple[Any, Any, bool, bool]:
    """Call the node's function for each item; (outputs, ui, expands, waits)."""
    function, inputs = getattr(node, node.FUNCTION), input_data_all
    results: list[Any] = []
    for index in range(max([len(v) for v in inputs.values()], default=1)):
        given = {name: values[min(index, len(values) - 1)] for name, values in inputs.items()}
        block = next((value for value in given.values() if isinstance(value, Blocker)), None)
        if block is not None:
            results.append(execution_block_cb(block))
            continue
        pre_execute_cb(index)
        if inspect.iscoroutinefunction(function):
            results.append(asyncio.create_task(function(**given)))
            await asyncio.sleep(0)
        else:
            results.append(function(**given))
    if any(isinstance(one, asyncio.Task) for one in results):
        return results, {}, False, True
    return (*get_output_from_returns(results, type(node)), False)


def get_output_from_returns(results: list[Any], class_def: Any) -> tuple[Any, Any, bool]:
    """(outputs, ui, expands) of what the calls returned."""
    if any(isinstance(one, dict) and "expand" in one for one in results):
        return [(one["expand"], one["result"]) for one in results], {}, True
    ui = {k: v for one in results if isinstance(one, dict) for k, v in one["ui"].items()}
    rows = [one for one in results if not isinstance(one, dict)]
    return merge(rows, class_def), ui, False


def merge(rows: list[Any], class_def: Any) -> list[list[Any]]:
    """Rows of results as a list for each output socket."""
    width = len(class_def.RETURN_TYPES)
    whole = [(row,) * width if isinstance(row, Blocker) else row for row in rows]
    return [[row[socket] for row in whole] for socket in range(width)]


class Host:
    """One such host. `classes`: name -> node class; `native`: our own visit, or the host's, recorded."""

    def __init__(self, classes: dict[str, Any], native: bool = True) -> None:
        self.nodes = SimpleNamespace(NODE_CLASS_MAPPINGS=classes, interrupt_processing=lambda _value: None)
        self.facts: dict[str, Any] = defaultdict(bool)
        self.model_management = SimpleNamespace(
            cleanup_models_gc=lambda: None, DISABLE_SMART_MEMORY=False, debug_memory_summary=str
        )
        self.interrupt_exception = Interrupted
        self.torch = SimpleNamespace(inference_mode=contextlib.nullcontext)
        self.node_stages = NodeStages({})
        self.stage_of = self.node_stages.stage_of
        progress = SimpleNamespace(handlers={}, start_progress=lambda _: None, finish_progress=lambda _: None)
        self.execution = SimpleNamespace(
            DynamicPrompt=Prompt,
            ExecutionList=Nodes,
            ExecutionResult=Result,
            ExecutionBlocker=Blocker,
            CacheEntry=Entry,
            IsChangedCache=lambda *_: None,
            GraphBuilder=SimpleNamespace(set_default_prefix=lambda *_: None),
            WebUIProgressHandler=lambda _server: None,
            add_progress_handler=lambda _: None,
            reset_progress_state=lambda *_: None,
            get_progress_state=lambda: progress,
            get_input_data=lambda inputs, _c, _n, nodes, *_: (inputs_of(inputs, nodes.cache), {}, {}),
            get_output_data=get_output_data,
            get_output_from_returns=get_output_from_returns,
            merge_result_data=merge,
            full_type_name=lambda kind: kind.__qualname__,
            format_value=repr,
            is_link=is_link,
        )
        make = make_execute if native else make_recorded
        if not native:
            self.execution.get_output_data = make_watched_calls(self, get_output_data)
        self.execution.execute = make(self, self._execute)
        self.server = Server()
        self.executor = type("PromptExecutor", (NativeLoop, Executor), {"api": self})(self.server)
        self.queue = type("PromptQueue", (QueueView, Queue), {"api": self})()
        self.server.prompt_queue = self.queue
        self._number = 0

    def is_oom(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def has_plain_caches(self, _caches: Any) -> bool:
        return False

    def has_lazy_check(self, _class: Any, _object: Any) -> bool:
        return False

    def condition_of(self, _prompt: Any, _extra: Any, _outputs: Any) -> tuple[str, dict[str, Any]]:
        return "c" * 64, {"prompt_hash": "p" * 64, "seeds": []}

    def keep_condition(self, *_accepted: Any) -> None:
        """What is in use is looked at by the host's side."""

    def directory_of(self, _kind: str) -> str | None:
        return None

    def submit(self, graph: Graph, outputs: list[str], prompt_id: str) -> None:
        """What the server does with a prompt that is valid."""
        self._number += 1
        self.queue.put((self._number, prompt_id, graph, {"client_id": "client"}, outputs))

    def work(self) -> None:
        """What the worker does with the next prompt."""
        item, item_id = self.queue.get()
        self.executor.execute(item[2], item[1], item[3], item[4])
        status = SimpleNamespace(status_str="success" if self.executor.success else "error")
        self.queue.task_done(item_id, self.executor.history_result, status)
        self.server.send_sync("executing", {"node": None, "prompt_id": item[1]})

    async def _execute(self, *args: Any) -> tuple[Any, Any, Any]:
        """The host's own visit."""
        _server, prompt, caches, node_id, _extra, executed, _id, nodes = args[:8]
        node = prompt.get_node(node_id)
        object_ = self.nodes.NODE_CLASS_MAPPINGS[node["class_type"]]()
        inputs = inputs_of(node["inputs"], caches.outputs)
        try:
            called = await self.execution.get_output_data(
                "",
                node_id,
                object_,
                inputs,
                execution_block_cb=lambda block: block,
                pre_execute_cb=lambda _: None,
                v3_data=None,
            )
            outputs, ui, expands, waits = called
            if waits:
                outputs, ui, expands = get_output_from_returns(await asyncio.gather(*outputs), type(object_))
            assert not expands, "this host's own loop does not let graphs grow"
        except Exception as error:  # noqa: BLE001 (as the host does)
            return Result.FAILURE, {"node_id": node_id, "exception_message": str(error)}, error
        executed.add(node_id)
        self.server.send_sync("executed", {"node": node_id, "output": ui})
        nodes.cache_update(node_id, Entry(ui, outputs))
        return Result.SUCCESS, None, None
