"""An executor that a pack makes by hand: every public method, in any order, on any thread and loop."""
# ruff: noqa: N802 (the host asks for these names)

from __future__ import annotations

import asyncio
import copy
import random
import threading
from typing import Any

import pytest
from family import Draw, HostExecutor, OurExecutor, ours_in_place, plain, played, sequence, undrawn
from world import EXPLORE, DynamicPrompt, execution, progress_module, register

from stagexec.record import guard, live


class RunsPlain:
    """Gives what it got; raises what it is told to."""

    CATEGORY, RETURN_TYPES, FUNCTION = "x", ("*",), "run"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"value": ("*",)}, "hidden": {"unique_id": "UNIQUE_ID"}}

    def run(self, value, unique_id):
        if value == "fail":
            raise ValueError("told to")
        if value == "leave":
            raise SystemExit("told to")
        if value == "interrupt":
            raise execution.comfy.model_management.InterruptProcessingException
        return {"ui": {"text": [str(value)]}, "result": (value,)}


class RunsAsync(RunsPlain):
    async def run(self, value, unique_id):
        await asyncio.sleep(0.001)
        return {"ui": {"text": [str(value)]}, "result": (value,)}


class RunsNotMade(RunsPlain):
    def __init__(self):
        raise StopIteration("not made")


register(RunsPlain, RunsAsync, RunsNotMade)


def chain(*values: Any, kind: str = "RunsPlain") -> dict[str, Any]:
    """Each takes the one before; a value that is no link begins the chain again."""
    return {
        str(at): {"class_type": kind, "inputs": {"value": [str(at - 1), 0] if value is None else value}}
        for at, value in enumerate(values, 1)
    }


PROMPTS = (
    chain(1, None, None),
    chain(2, None, kind="RunsAsync"),
    chain("fail", None),
    chain("leave", None),
    chain("interrupt"),
    chain(3, kind="RunsNotMade"),
    {"1": {"class_type": "RunsPlain", "inputs": {"value": ["2", 0]}}, "2": chain(["1", 0])["1"]},
    {"1": {"class_type": "NoSuchClass", "inputs": {}}},
    {"1": {"class_type": "RunsPlain", "inputs": {"value": ["gone", 0]}}},
    {},
)
EXTRA = ({}, {"client_id": "c"}, {"client_id": None, "preview_method": "auto"}, None)


class Server:
    """What an executor needs of a server."""

    def __init__(self) -> None:
        self.client_id = self.last_node_id = None
        self.sent: list[Any] = []

    def send_sync(self, event: Any, data: Any, sid: Any = None) -> None:
        if event != "progress_state":
            self.sent.append((event, clean(data), sid))


def clean(data: Any) -> Any:
    """A message without its time and its traceback's lines; of the cached nodes not the order."""
    data = copy.deepcopy(data)
    if isinstance(data, dict):
        data.pop("timestamp", None)
        if "traceback" in data:
            frames = [frame.rpartition(", in ")[2].split()[0] for frame in data["traceback"]]
            data["traceback"] = [name for name in frames if name in ("execute", "run", "__init__")]
        for name in ("current_outputs", "executed"):
            data[name] = sorted(data.get(name, ()))
    return data


class World:
    """An executor with its server."""

    def __init__(self, kind: type, cache: Any) -> None:
        self.server = Server()
        args = {"lru": 3, "ram": 0.0, "ram_inactive": 0.0}
        self.executor: Any = kind(self.server, cache_type=cache, cache_args=args)


def draw_run(how: str) -> Draw:
    def draw(chance: random.Random) -> Any:
        prompt, extra = chance.choice(PROMPTS), chance.choice(EXTRA)
        outputs = chance.choice((list(prompt), list(prompt)[-1:], [], ["nowhere"]))
        return lambda world: RUNS[how](world.executor, copy.deepcopy(prompt), extra, outputs)

    return draw


def on_a_thread(executor: Any, *given: Any) -> None:
    """On a thread, with its error brought back."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            executor.execute(given[0], "p", given[1], given[2])
        except BaseException as error:  # noqa: BLE001 (brought back)
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


async def twice(executor: Any, prompt: Any, extra: Any, outputs: Any) -> None:
    """On one loop, one after the other."""
    for _ in range(2):
        await executor.execute_async(copy.deepcopy(prompt), "p", extra, outputs)


async def in_a_task(executor: Any, prompt: Any, extra: Any, outputs: Any) -> None:
    """In a task of a loop that has other work."""
    other = asyncio.ensure_future(asyncio.sleep(0))
    await asyncio.create_task(executor.execute_async(prompt, "p", extra, outputs))
    await other


RUNS: dict[str, Any] = {
    "execute": lambda e, prompt, extra, outputs: e.execute(prompt, "p", extra, outputs),
    "execute by name": lambda e, prompt, extra, outputs: e.execute(
        execute_outputs=outputs, extra_data=extra, prompt_id="p", prompt=prompt
    ),
    "execute with defaults": lambda e, prompt, _extra, _outputs: e.execute(prompt, 7),
    "execute on a thread": on_a_thread,
    "execute_async": lambda e, prompt, extra, outputs: asyncio.run(
        e.execute_async(prompt, "p", extra, outputs)
    ),
    "execute_async twice": lambda *given: asyncio.run(twice(*given)),
    "execute_async in a task": lambda *given: asyncio.run(in_a_task(*given)),
}

EXECUTOR: dict[str, Draw] = {
    **{how: draw_run(how) for how in RUNS},
    "reset": lambda _: lambda world: world.executor.reset(),
    "add_message": lambda _: lambda world: world.executor.add_message("mine", {"a": 1}, broadcast=True),
    "handle_execution_error": lambda _: (
        lambda world: world.executor.handle_execution_error(
            "p",
            chain(1),
            [],
            set(),
            {
                "node_id": "1",
                "exception_message": "m",
                "exception_type": "t",
                "traceback": [],
                "current_inputs": {},
            },
            ValueError("m"),
        )
    ),
}


def state(world: World) -> Any:
    one = world.executor
    history = getattr(one, "history_result", None)
    told = [(event, clean(data)) for event, data in one.status_messages]
    return one.success, told, history, world.server.sent, world.server.client_id, world.server.last_node_id


@pytest.mark.parametrize("cache", list(execution.CacheType))
def test_an_executor_answers_every_call_as_the_hosts(cache: Any) -> None:
    assert undrawn(HostExecutor, EXECUTOR) == set()
    told = ""
    for seed in range(EXPLORE or 40):
        calls = sequence(seed, EXECUTOR, 8)
        expected = played(lambda: World(HostExecutor, cache), state, calls)
        guard.faults.clear()
        with ours_in_place():
            found = played(lambda: World(OurExecutor, cache), state, sequence(seed, EXECUTOR, 8))
        told += str(expected)
        for at, (one, other) in enumerate(zip(expected, found, strict=True)):
            assert other == one, f"seed {seed}, step {at // 2}: {calls[at // 2].name}"
        assert guard.faults == []
        assert live.current_for_thread() is None, "the run of a prompt that a pack executes ends with it"
    kinds = ("execution_success", "execution_error", "execution_interrupted", "SystemExit", "KeyError")
    assert [kind for kind in kinds if kind not in told] == [], "each way to end was drawn"


async def one_visit(node_id: str, graph: dict[str, Any]) -> Any:
    """`execution.execute` as a pack calls it, on objects it has made: no executor is there."""
    server, prompt = Server(), DynamicPrompt(graph)
    progress_module.reset_progress_state("p", prompt)
    caches = execution.CacheSet(execution.CacheType.CLASSIC, {})
    changed = execution.IsChangedCache("p", prompt, caches.outputs)
    for cache in caches.all:
        await cache.set_prompt(prompt, list(graph), changed)
    pending = execution.ExecutionList(prompt, caches.outputs)
    pending.add_node(node_id)
    executed: set[str] = set()
    shown: dict[str, Any] = {}
    result = await execution.execute(
        server, prompt, caches, node_id, {}, executed, "p", pending, {}, {}, ui_outputs=shown
    )
    return result[0], clean(result[1]), repr(result[2]), executed, shown, server.sent


def visit(node_id: str, graph: dict[str, Any]) -> Any:
    try:
        return plain(asyncio.run(one_visit(node_id, copy.deepcopy(graph))))
    except BaseException as error:  # noqa: BLE001 (compared)
        return type(error).__name__, plain(str(error))


@pytest.mark.parametrize("graph", PROMPTS[:9])
def test_one_visit_that_a_pack_asks_for_ends_as_the_hosts(graph: dict[str, Any]) -> None:
    expected = visit("1", graph)
    with ours_in_place():
        assert visit("1", graph) == expected


def test_a_visit_with_an_argument_too_few_says_what_the_host_says() -> None:
    def told() -> str:
        with pytest.raises(TypeError) as raised:
            execution.execute(1, 2, 3)
        return str(raised.value)

    expected = told()
    with ours_in_place():
        assert told() == expected


def test_two_executors_on_two_threads_end_as_the_hosts() -> None:
    def both(kind: type) -> list[Any]:
        worlds = [World(kind, execution.CacheType.CLASSIC) for _ in range(2)]
        graphs = chain(5, None, None, kind="RunsAsync"), chain(6, None, "fail")
        threads = [
            threading.Thread(target=world.executor.execute, args=(graph, f"p{n}", {}, list(graph)))
            for n, (world, graph) in enumerate(zip(worlds, graphs, strict=True))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [plain(state(world)) for world in worlds]

    expected = both(HostExecutor)
    with ours_in_place():
        assert both(OurExecutor) == expected


def test_the_family_of_executors_sees_a_message_less() -> None:
    """It is shown able to fail."""

    class Silent(OurExecutor):
        def add_message(self, event: str, data: Any, broadcast: bool) -> None:
            if event != "execution_cached":
                super().add_message(event, data, broadcast)

    calls = sequence(3, {"execute": lambda _: lambda world: world.executor.execute(chain(1), "p")}, 1)
    expected = played(lambda: World(HostExecutor, execution.CacheType.CLASSIC), state, calls)
    with ours_in_place():
        assert played(lambda: World(OurExecutor, execution.CacheType.CLASSIC), state, calls) == expected
        assert played(lambda: World(Silent, execution.CacheType.CLASSIC), state, calls) != expected
