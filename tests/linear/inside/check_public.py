"""Queue, order of execution, caches, progress: every public method, in any order, on objects made by hand."""
# ruff: noqa: N802 (the host asks for these names)

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from family import Draw, HostQueue, OurQueue, same, undrawn
from world import (
    DynamicPrompt,
    HostKeys,
    HostList,
    HostProgress,
    OurKeys,
    OurList,
    OurProgress,
    execution,
    progress_module,
    register,
)

from stagexec.record import live


class FamilyPlain:
    RETURN_TYPES = ("*", "*")
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"a": ("*",)}, "optional": {"b": ("*",), "z": ("*", {"lazy": True})}}

    def run(self, **_):
        return (1, 2)


class FamilyOutput(FamilyPlain):
    OUTPUT_NODE = True


class FamilyAsync(FamilyPlain):
    async def run(self, **_):
        return (1, 2)


class FamilyBroken(FamilyPlain):
    @classmethod
    def INPUT_TYPES(cls):
        raise LookupError("no inputs today")


register(FamilyPlain, FamilyOutput, FamilyAsync, FamilyBroken)

IDS = ("1", "2", "3", "4", "5", "missing")
GRAPH = {
    "1": {"class_type": "FamilyPlain", "inputs": {"a": 1}},
    "2": {"class_type": "FamilyPlain", "inputs": {"a": ["1", 0], "z": ["5", 0]}},
    "3": {"class_type": "FamilyAsync", "inputs": {"a": ["2", 1], "b": ["1", 0]}},
    "4": {"class_type": "FamilyOutput", "inputs": {"a": ["3", 0], "undeclared": ["2", 0]}},
    "5": {"class_type": "FamilyPlain", "inputs": {"a": 5}},
}
ODD = {
    **GRAPH,
    "2": {"class_type": "FamilyBroken", "inputs": {"a": ["1", 0]}},
    "5": {"class_type": "NoSuchClass", "inputs": {"a": ["4", 0]}},
}


def call(name: str, *values: Any) -> Draw:
    """Draws a call of `name` with one of each of `values`, a tuple each."""

    def draw(chance: random.Random) -> Any:
        given = [chance.choice(one) for one in values]
        return lambda world: getattr(world, name)(*given)

    return draw


# ---- the queue --------------------------------------------------------------------------------------


class Server:
    """Counts what the queue tells it."""

    told = 0

    def queue_updated(self) -> None:
        self.told += 1


def items() -> tuple[Any, ...]:
    """Queue items, those that packs make by hand among them."""
    prompt = {"1": {"class_type": "FamilyPlain", "inputs": {"a": 1}}}
    return (
        (0, "a", prompt, {"client_id": "c", "create_time": 1}, ["1"], {}),
        (-1.5, "b", prompt, {}, ["1"]),
        (1, "a", prompt, {}, ["1"], {}, {"user_id": 3}),
        (2, 7, prompt, None, None),
        (3, None, None),
        (4, "short"),
        (5,),
        (),
        ["6", "a list", prompt, {}, ["1"]],
        (7, "odd", {"1": "no node"}, {"stagexec.until": "native"}, ["1"]),
        ((0, "a", prompt, {}, ["1"]), {"user_id": 3}),
        {"no": "sequence"},
        None,
    )


STATUS = execution.PromptQueue.ExecutionStatus("success", True, ["m"])


def by_hand(how: str) -> Draw:
    def draw(chance: random.Random) -> Any:
        item = chance.choice(items())

        def apply(queue: Any) -> Any:
            if how == "push":
                queue.queue.append(item)
            elif queue.queue:
                if how == "replace":
                    queue.queue[0] = item
                elif how == "delete":
                    del queue.queue[-1]
                else:
                    queue.queue.reverse()
            return len(queue.queue)

        return apply

    return draw


def put_back(_chance: random.Random) -> Any:
    """Take one, and put it into the queue again."""

    def apply(queue: Any) -> Any:
        taken = queue.get(timeout=0.0001)
        if taken is not None:
            queue.put(queue.currently_running.pop(taken[1]))
        return taken

    return apply


QUEUE: dict[str, Draw] = {
    **{f"put {n}": call("put", items()) for n in range(4)},
    **{f"get {n}": call("get", (0.0001,)) for n in range(3)},
    "get put_back": put_back,
    "task_done": call("task_done", (0, 1, 2, 3, 9), ({}, {"outputs": {}}), (STATUS, None)),
    "get_current_queue": call("get_current_queue"),
    "get_current_queue_volatile": call("get_current_queue_volatile"),
    "interrupt_if_running": call("interrupt_if_running", ("a", 7, None)),
    "get_tasks_remaining": call("get_tasks_remaining"),
    "wipe_queue": call("wipe_queue"),
    "delete_queue_item": call(
        "delete_queue_item", (lambda item: item[1] == "a", lambda _: False, lambda item: item["no"])
    ),
    "get_history": call("get_history", (None, "a", "b", 7), (None, 1), (-1, 0), (None, len)),
    "wipe_history": call("wipe_history"),
    "delete_history_item": call("delete_history_item", ("a", "b", None)),
    "set_flag": call("set_flag", ("f", "g"), (1, 2)),
    "get_flags": call("get_flags", (True, False)),
    **{how: by_hand(how) for how in ("push", "replace", "delete", "reverse")},
}


def queue_state(queue: Any) -> Any:
    told = getattr(queue.server, "told", None)
    return queue.queue, queue.currently_running, queue.history, queue.flags, queue.task_counter, told


@pytest.mark.parametrize("server", [Server, lambda: None])
def test_a_queue_answers_every_call_as_the_hosts(server: Any) -> None:
    assert undrawn(HostQueue, QUEUE, leave=("ExecutionStatus",)) == set()
    returned = same(
        lambda: HostQueue(server()), lambda: OurQueue(server()), queue_state, QUEUE, seeds=150, length=25
    )
    assert returned > 1000
    run = live.current_for_thread()
    if run is not None:
        live.finish(run, {}, {})
    live.forget([])
    assert not live.waiting, "what is in no queue waits for nothing"


# ---- the order of execution -------------------------------------------------------------------------


class Outputs:
    """The host's output cache, as far as a list asks it."""

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}

    def get_local(self, node_id: str) -> Any:
        return self.entries.get(node_id)

    def set_local(self, node_id: str, value: Any) -> None:
        self.entries[node_id] = value

    get, set = get_local, set_local


class Listed:
    """A list with what a test needs beside it."""

    def __init__(self, kind: type, graph: dict[str, Any]) -> None:
        self.list = kind(DynamicPrompt(dict(graph)), Outputs())
        self.unblock: list[Any] = []


def listed(name: str, *values: Any) -> Draw:
    drawn = call(name, *values)

    def draw(chance: random.Random) -> Any:
        apply = drawn(chance)
        return lambda world: apply(world.list)

    return draw


def block(chance: random.Random) -> Any:
    node_id = chance.choice(IDS)

    def apply(world: Listed) -> None:
        world.unblock.append(world.list.add_external_block(node_id))

    return apply


def unblock(_chance: random.Random) -> Any:
    return lambda world: world.unblock.pop()() if world.unblock else None


def stage(_chance: random.Random) -> Any:
    """Stage a node; where that waits for something outside, let it be released."""

    async def staged(world: Listed) -> Any:
        world.list.unblockedEvent = asyncio.Event()
        task = asyncio.ensure_future(world.list.stage_node_execution())
        for _ in range(20):
            await asyncio.sleep(0)
            if task.done():
                return task.result()
            if world.unblock:
                world.unblock.pop()()
        task.cancel()
        return "waits"

    return lambda world: asyncio.run(staged(world))


def write(what: str) -> Draw:
    """Writes of packs into the list's own dicts."""

    def draw(chance: random.Random) -> Any:
        one, other, count = chance.choice(IDS), chance.choice(IDS), chance.choice((0, 0, 1, 2))

        def apply(world: Listed) -> None:
            pending = world.list
            if what == "del":
                del pending.pendingNodes[one]
            elif what == "count":
                pending.blockCount[one] = count
            elif what == "less":
                pending.blockCount[one] -= 1
            elif what == "link":
                pending.blocking[one][other] = {0: True}
            elif what == "pop":
                pending.pendingNodes.pop(one)
            elif what == "update":
                pending.blockCount.update({one: count})
            elif what == "unlink":
                del pending.blocking[one][other]
            elif what == "replace":
                pending.blocking = {source: dict(targets) for source, targets in pending.blocking.items()}
            else:
                pending.staged_node_id = None

        return apply

    return draw


LIST: dict[str, Draw] = {
    **{f"add_node {n}": listed("add_node", IDS[:5], (False, False, True)) for n in range(3)},
    "add_node of_subgraph": listed("add_node", IDS, (False,), (None, {"1", "2"})),
    "add_strong_link": listed("add_strong_link", IDS, (0, 1), IDS),
    "add_external_block": block,
    "unblock": unblock,
    "make_input_strong_link": listed("make_input_strong_link", IDS, ("a", "b", "z", "none")),
    "cache_link": listed("cache_link", IDS, IDS),
    "cache_update": listed("cache_update", IDS, (execution.CacheEntry({}, [[1], [2]]),)),
    "get_cache": listed("get_cache", IDS, IDS),
    "complete_node_execution": listed("complete_node_execution"),
    **{f"stage_node_execution {n}": stage for n in range(3)},
    **{f"unstage_node_execution {n}": listed("unstage_node_execution") for n in range(2)},
    "pop_node": listed("pop_node", IDS),
    "get_ready_nodes": listed("get_ready_nodes"),
    "get_nodes_in_cycle": listed("get_nodes_in_cycle"),
    "get_input_info": listed("get_input_info", IDS, ("a", "b", "z", "none")),
    "is_cached": listed("is_cached", IDS),
    "is_empty": listed("is_empty"),
    "ux_friendly_pick_node": listed("ux_friendly_pick_node", (["1", "4"], ["2"], ["5", "3"], [])),
}
WRITES = {
    what: write(what)
    for what in ("del", "count", "less", "link", "pop", "update", "unlink", "replace", "let go")
}


def list_state(world: Listed) -> Any:
    one = world.list
    return (
        list(one.pendingNodes),
        dict(one.blockCount),
        {source: dict(targets) for source, targets in one.blocking.items()},
        one.externalBlocks,
        one.staged_node_id,
        sorted(one.execution_cache),
        one.output_cache.entries,
    )


@pytest.mark.parametrize("graph", [GRAPH, ODD])
@pytest.mark.parametrize("draws", [LIST, {**LIST, **WRITES}])
def test_a_list_answers_every_call_as_the_hosts(graph: dict[str, Any], draws: dict[str, Draw]) -> None:
    assert undrawn(HostList, LIST) == set()
    returned = same(
        lambda: Listed(HostList, graph),
        lambda: Listed(OurList, graph),
        list_state,
        draws,
        seeds=250,
        length=30,
    )
    assert returned > 1000


# ---- caches -----------------------------------------------------------------------------------------


class Cached:
    """A cache whose keys are of one kind."""

    def __init__(self, kind: str, keys: type) -> None:
        made = getattr(execution, kind)
        self.cache = made(keys) if kind != "NullCache" else made()
        self.prompts = [DynamicPrompt(GRAPH), DynamicPrompt({one: GRAPH[one] for one in "15"})]

    def child(self) -> None:
        for prompt in self.prompts:
            prompt.add_ephemeral_node("2.0", {"class_type": "FamilyPlain", "inputs": {}}, "2", "2")


def awaited(name: str, *values: Any) -> Draw:
    drawn = call(name, *values)

    def draw(chance: random.Random) -> Any:
        apply = drawn(chance)

        async def run(world: Any) -> Any:
            result = apply(world.cache)
            return type(await result).__name__ if name == "ensure_subcache_for" else await result

        return lambda world: asyncio.run(run(world))

    return draw


def set_prompt(chance: random.Random) -> Any:
    at, asked = chance.choice((0, 1)), chance.choice((True, True, False))

    async def run(world: Cached) -> None:
        prompt = world.prompts[at]
        changed = execution.IsChangedCache("p", prompt, world.cache) if asked else None
        await world.cache.set_prompt(prompt, list(prompt.original_prompt), changed)

    return lambda world: asyncio.run(run(world))


def of_cache(name: str, *values: Any) -> Draw:
    drawn = call(name, *values)

    def draw(chance: random.Random) -> Any:
        apply = drawn(chance)
        return lambda world: sorted(got) if isinstance(got := apply(world.cache), set) else got

    return draw


def dumped(_chance: random.Random) -> Any:
    """What a cache holds, without its keys, which are ours."""

    def values(dump: Any) -> list[Any]:
        return [one["value"] if "value" in one else values(one["subcache"]) for one in dump]

    return lambda world: values(world.cache.recursive_debug_dump())


VALUES = tuple(execution.CacheEntry({}, [[n]]) for n in range(3))
CACHE: dict[str, Draw] = {
    **{f"set_prompt {n}": set_prompt for n in range(2)},
    **{f"get {n}": awaited("get", IDS) for n in range(2)},
    **{f"set {n}": awaited("set", IDS, VALUES) for n in range(2)},
    "get_local": of_cache("get_local", IDS),
    "set_local": of_cache("set_local", IDS, VALUES),
    "clean_unused": of_cache("clean_unused"),
    "ensure_subcache_for": awaited("ensure_subcache_for", ("2", "1"), (["2.0"], [])),
    "all_node_ids": of_cache("all_node_ids"),
    "poll": of_cache("poll"),
    "recursive_debug_dump": dumped,
    "ram_release": of_cache("ram_release", (0, 1 << 60), (True, False)),
    "child": lambda _: lambda world: world.child(),
}


def cache_state(world: Cached) -> Any:
    cache = world.cache
    held = sorted(map(repr, getattr(cache, "cache", {}).values()))
    return held, len(getattr(cache, "subcaches", ())), getattr(cache, "initialized", None)


@pytest.mark.parametrize("kind", ["HierarchicalCache", "LRUCache", "RAMPressureCache", "NullCache"])
def test_a_cache_with_our_keys_answers_every_call_as_the_hosts(kind: str) -> None:
    assert undrawn(getattr(execution, kind), CACHE) == set()
    returned = same(
        lambda: Cached(kind, HostKeys),
        lambda: Cached(kind, OurKeys),
        cache_state,
        CACHE,
        seeds=120,
        length=25,
    )
    assert returned > 500


# ---- progress ---------------------------------------------------------------------------------------


class Told:
    """A handler, its registry, and a server that keeps what it is sent."""

    def __init__(self, kind: type) -> None:
        self.sent: list[Any] = []
        self.client_id = "c"
        self.handler = kind(self)
        self.registry = progress_module.ProgressRegistry("p", DynamicPrompt(GRAPH))
        self.registry.register_handler(self.handler)

    def send_sync(self, event: Any, data: Any, sid: Any = None) -> None:
        self.sent.append((event, {**data, "nodes": dict(data["nodes"])} if "nodes" in data else data, sid))


def of_handler(name: str, *values: Any) -> Draw:
    drawn = call(name, *values)

    def draw(chance: random.Random) -> Any:
        apply = drawn(chance)
        return lambda world: apply(world.handler)

    return draw


def of_registry(name: str, *values: Any) -> Draw:
    drawn = call(name, *values)

    def draw(chance: random.Random) -> Any:
        apply = drawn(chance)
        return lambda world: apply(world.registry)

    return draw


def state_of(value: float) -> Any:
    return {"state": progress_module.NodeState.Running, "value": value, "max": 3.0}


PROGRESS: dict[str, Draw] = {
    "start_handler": of_handler("start_handler", IDS, (state_of(0.0),), ("p", "q")),
    "update_handler": of_handler("update_handler", IDS, (1.0, 2.0), (3.0,), (state_of(1.0),), ("p",)),
    "finish_handler": of_handler("finish_handler", IDS, (state_of(3.0),), ("p", "q")),
    "reset": of_handler("reset"),
    "enable": of_handler("enable"),
    "disable": of_handler("disable"),
    "set_registry": lambda _: lambda world: world.handler.set_registry(world.registry),
    **{f"start_progress {n}": of_registry("start_progress", IDS) for n in range(2)},
    **{
        f"update_progress {n}": of_registry("update_progress", IDS, (1.0,), (3.0,), (None,)) for n in range(2)
    },
    **{f"finish_progress {n}": of_registry("finish_progress", IDS) for n in range(2)},
}


@pytest.mark.parametrize("_", [0])
def test_a_progress_handler_answers_every_call_as_the_hosts(_: int) -> None:
    assert undrawn(HostProgress, PROGRESS) == set()
    returned = same(
        lambda: Told(HostProgress),
        lambda: Told(OurProgress),
        lambda world: (world.sent, world.handler.enabled),
        PROGRESS,
        seeds=150,
        length=25,
    )
    assert returned > 500


def test_the_family_sees_a_difference_of_one_entry() -> None:
    """It is shown able to fail: a queue that forgets one flag, and no more."""

    class Forgets(OurQueue):
        def set_flag(self, name: str, data: Any) -> None:
            if (name, data) != ("f", 2):
                super().set_flag(name, data)

    with pytest.raises(AssertionError, match="seed"):
        same(lambda: HostQueue(Server()), lambda: Forgets(Server()), queue_state, QUEUE, seeds=150, length=25)
