"""Our scheduler visits what the host's visits, in its order, and blames the same node for a cycle."""
# ruff: noqa: N802 (the host asks for these names)

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import DynamicPrompt, HostList, NodeNotFoundError, OurList, examples, execution, register

ANY = "*"
LAZY = ("l1", "l2")
EAGER = ("", "a", "b", "c")


class Plain:
    RETURN_TYPES = (ANY, ANY)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        lazy = dict.fromkeys(LAZY, (ANY, {"lazy": True}))
        return {
            "required": {"a": (ANY,)},
            "optional": {"": (ANY, {}), "b": (ANY, {}), "c": (ANY, {"lazy": 0}), **lazy},
        }

    def run(self, **_):
        return (None, None)


class Output(Plain):
    OUTPUT_NODE = True


class OutputByOne(Plain):
    OUTPUT_NODE = 1


class OutputByName(Plain):
    OUTPUT_NODE = "yes"


class OutputWithoutFunction(Output):
    FUNCTION = "missing"


class Async(Plain):
    async def run(self, **_):
        return (None, None)


class Bare(Plain):
    @classmethod
    def INPUT_TYPES(cls):
        return {}


register(Plain, Output, OutputByOne, OutputByName, OutputWithoutFunction, Async, Bare)

CLASSES = ("Plain",) * 6 + ("Output", "Output", "OutputByOne", "OutputByName", "Async", "Bare")
"""OutputWithoutFunction has a test of its own: as an input of others it ends the host's prompt."""


@st.composite
def graphs(draw: Any, prefix: str = "", outside: tuple[str, ...] = (), most: int = 9) -> dict[str, Any]:
    ids = [f"{prefix}{at}" for at in range(draw(st.integers(1, most)))]
    loose = draw(st.integers(0, 7)) == 0
    prompt: dict[str, Any] = {}
    for at, node_id in enumerate(ids):
        sources = (ids if loose else ids[:at]) + list(outside)
        inputs: dict[str, Any] = {}
        for name in draw(st.permutations((*EAGER, *LAZY, "undeclared"))):
            if sources and draw(st.integers(0, 2)) == 0:
                inputs[name] = [draw(st.sampled_from(sources)), draw(st.sampled_from((0, 0, 1, True)))]
        prompt[node_id] = {"class_type": draw(st.sampled_from(CLASSES)), "inputs": inputs}
    return {node_id: prompt[node_id] for node_id in draw(st.permutations(ids))}


ACTIONS = ("done", "done", "done", "need", "block", "grow", "again", "evict")


@st.composite
def plays(draw: Any) -> dict[str, Any]:
    """A prompt, what is cached, what each visit of a node does, and when what it waits for comes."""
    prompt = draw(graphs())
    known = list(prompt)
    scripts: dict[str, list[Any]] = {}
    growth: dict[str, Any] = {}
    for number in range(draw(st.integers(0, 3))):
        parent = draw(st.sampled_from(known))
        if parent not in growth:
            outside = tuple(draw(st.lists(st.sampled_from(known), max_size=3)))
            graph = draw(graphs(f"{parent}.0.{number}.", outside, 4))
            results = draw(st.lists(st.sampled_from([*graph, *outside]), max_size=2))
            growth[parent] = (graph, results)
            known += graph
    for node_id in known:
        script = draw(st.lists(st.sampled_from(ACTIONS), max_size=3))
        scripts[node_id] = [*(("grow",) if node_id in growth else ()), *script]
    return {
        "prompt": prompt,
        "targets": draw(st.lists(st.sampled_from(list(prompt)), min_size=1, max_size=4)),
        "cached": draw(st.sets(st.sampled_from(known), max_size=2)),
        "scripts": scripts,
        "growth": growth,
        "picks": draw(st.lists(st.integers(0, 5), min_size=1, max_size=8)),
    }


class Outputs:
    """What ExecutionList asks of the cache."""

    def __init__(self, cached: set[str]) -> None:
        self.entries = {node_id: execution.CacheEntry({}, [node_id, node_id]) for node_id in cached}

    def get_local(self, node_id: str) -> Any:
        return self.entries.get(node_id)

    def set_local(self, node_id: str, value: Any) -> None:
        self.entries[node_id] = value


class Stage:
    """Runs a play on one scheduler and keeps all that can be seen of it."""

    def __init__(self, kind: type, play: dict[str, Any]) -> None:
        self.play = copy.deepcopy(play)
        self.dynprompt = DynamicPrompt(self.play["prompt"])
        self.outputs = Outputs(self.play["cached"])
        self.told: list[Any] = []
        self.list = kind(self.dynprompt, self.outputs, self.told.append)
        self.releases: list[tuple[str, Any]] = []
        self.seen: list[Any] = []
        self.steps = 0

    def pick(self, among: int) -> int:
        picks = self.play["picks"]
        self.steps += 1
        return picks[self.steps % len(picks)] % among

    async def run(self) -> list[Any]:
        for node_id in self.play["targets"]:
            self.list.add_node(node_id)
        seen = self.seen
        seen.append(self.state())
        while not self.list.is_empty() and len(seen) < 200:
            node_id, error, _ = await self.staged()
            if error is not None:
                return [*seen, error, self.list.get_nodes_in_cycle(), self.told]
            seen += [node_id, self.visit(node_id), self.state()]
            if self.releases and self.pick(3) == 0:
                self.release()
        return [*seen, self.told]

    async def staged(self) -> Any:
        task = asyncio.ensure_future(self.list.stage_node_execution())
        for _ in range(50):
            await asyncio.sleep(0)
            if task.done():
                return task.result()
            if self.releases:
                self.release()
        task.cancel()
        raise AssertionError("nothing came of it")

    def release(self) -> None:
        _, unblock = self.releases.pop(self.pick(len(self.releases)))
        unblock()

    def visit(self, node_id: str) -> str:
        script = self.play["scripts"].get(node_id, [])
        action = script.pop(0) if script else "done"
        pending = getattr(self, f"do_{action}")(node_id)
        if pending:
            self.list.unstage_node_execution()
        else:
            entry = execution.CacheEntry({}, [node_id, node_id])
            self.outputs.set_local(node_id, entry)
            self.list.cache_update(node_id, entry)
            self.list.complete_node_execution()
        return action

    def do_done(self, node_id: str) -> bool:
        return False

    def do_again(self, node_id: str) -> bool:
        return True

    def do_need(self, node_id: str) -> bool:
        inputs = self.dynprompt.get_node(node_id)["inputs"]
        wanted = [name for name in LAZY if name in inputs]
        for name in wanted[: 1 + self.pick(2)]:
            self.list.make_input_strong_link(node_id, name)
        return bool(wanted)

    def do_block(self, node_id: str) -> bool:
        for _ in range(1 + self.pick(2)):
            self.releases.append((node_id, self.list.add_external_block(node_id)))
        return True

    def do_evict(self, node_id: str) -> bool:
        if self.outputs.entries:
            del self.outputs.entries[sorted(self.outputs.entries)[self.pick(len(self.outputs.entries))]]
        return False

    def do_grow(self, node_id: str) -> bool:
        if node_id not in self.play["growth"]:
            return False
        graph, results = self.play["growth"].pop(node_id)
        for child_id, child in graph.items():
            self.dynprompt.add_ephemeral_node(child_id, child, node_id, node_id)
        for child_id, child in graph.items():
            if child["class_type"].startswith("Output"):
                self.list.add_node(child_id)
                self.list.cache_link(child_id, node_id)
        for child_id in results:
            self.list.add_strong_link(child_id, 0, node_id)
        return True

    def state(self) -> Any:
        one = self.list
        blocking = {source: list(targets.items()) for source, targets in one.blocking.items()}
        return (
            list(one.pendingNodes),
            dict(one.blockCount),
            list(blocking.items()),
            one.externalBlocks,
            one.get_ready_nodes(),
        )


def seen_by(kind: type, play: dict[str, Any]) -> list[Any]:
    stage = Stage(kind, play)
    try:
        return asyncio.run(stage.run())
    except NodeNotFoundError as error:  # a child links to one that has not come yet: the host ends there
        return [*stage.seen, str(error)]


@examples(700)
@given(plays())
def test_every_visit_is_the_host_s(play: dict[str, Any]) -> None:
    assert seen_by(OurList, play) == seen_by(HostList, play)


def line_of(*classes: str) -> dict[str, Any]:
    """Nodes "0", "1", …, each the only input of the next."""
    return {
        str(at): {"class_type": name, "inputs": {"a": [str(at - 1), 0]} if at else {}}
        for at, name in enumerate(classes)
    }


def play_of(prompt: dict[str, Any], *targets: str, **more: Any) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "targets": targets,
        "cached": set(),
        "scripts": {},
        "growth": {},
        "picks": [0],
        **more,
    }


def visits(kind: type, play: dict[str, Any]) -> list[str]:
    return seen_by(kind, play)[1:-1:3]


@pytest.mark.parametrize("kind", [HostList, OurList])
def test_what_an_output_waits_for_comes_first(kind: type) -> None:
    prompt = line_of("Plain", "Plain", "Plain") | {"x": {"class_type": "Plain", "inputs": {}}}
    prompt["out"] = {"class_type": "Output", "inputs": {"a": ["x", 0]}}
    assert visits(kind, play_of(prompt, "2", "out")) == ["x", "out", "0", "1", "2"]


@pytest.mark.parametrize("kind", [HostList, OurList])
def test_an_output_class_that_lacks_its_function_is_still_scheduled(kind: type) -> None:
    assert visits(kind, play_of(line_of("Plain", "OutputWithoutFunction"), "1")) == ["0", "1"]


@pytest.mark.parametrize("kind", [HostList, OurList])
def test_a_block_released_by_another_task_wakes_the_scheduler(kind: type) -> None:
    play = play_of(line_of("Async", "Output"), "1", scripts={"0": ["block"]}, picks=[1])
    assert visits(kind, play) == ["0", "0", "1"]


@pytest.mark.parametrize("kind", [HostList, OurList])
@pytest.mark.parametrize("way", ["direct", "by one", "by one that feeds it later"])
def test_an_evicted_node_that_comes_back_leads_only_where_it_is_needed_now(kind: type, way: str) -> None:
    """It fed an output, was done, and is needed again by a node that feeds none: it is as any other."""
    prompt = {name: {"class_type": "Plain", "inputs": {}} for name in ("s", "x", "y", "u")}
    prompt["t"] = {"class_type": "Plain", "inputs": {"a": ["s", 0], "b": ["x", 0]}}
    prompt["out"] = {
        "class_type": "Output",
        "inputs": {"a": ["s", 0], "b": ["x", 0]} if way == "direct" else {},
    }

    async def next_after_coming_back() -> str:
        outputs = Outputs(set())
        one = kind(DynamicPrompt(prompt), outputs)
        one.add_node("out" if way == "direct" else "t")
        if way == "by one":
            one.add_node("out")
            one.add_strong_link("t", 0, "out")
        for _ in range(2):
            node_id, _, _ = await one.stage_node_execution()
            if node_id == "x":
                one.add_external_block("x")
                one.unstage_node_execution()
            else:
                one.complete_node_execution()
        one.add_node("y")
        one.add_node("u")
        one.add_strong_link("s", 0, "u")
        if way == "by one that feeds it later":
            one.add_node("out")
            one.add_strong_link("t", 0, "out")
        return (await one.stage_node_execution())[0]

    assert asyncio.run(next_after_coming_back()) == "y"


@pytest.mark.parametrize("kind", [HostList, OurList])
def test_an_input_without_a_name_is_an_input(kind: type) -> None:
    """Its types must not be taken for those of the class."""
    prompt = line_of("Plain", "Plain", "Output")
    prompt["2"]["inputs"] = {"": ["0", 0], "l1": ["1", 0]}
    assert visits(kind, play_of(prompt, "2")) == ["0", "2"]


def asked_of(kind: type, nodes: int) -> int:
    class Counting(Plain):
        asked = 0

        @classmethod
        def INPUT_TYPES(cls):
            cls.asked += 1
            return super().INPUT_TYPES()

    register(Counting)
    assert len(visits(kind, play_of(line_of(*["Counting"] * nodes), str(nodes - 1)))) == min(nodes, 200 // 3)
    return Counting.asked


def test_input_types_are_asked_once_a_class() -> None:
    assert asked_of(OurList, 50) == 1
    assert asked_of(HostList, 50) == 49, "the host asks for each link: else this test shows nothing"


def test_20000_nodes_of_each_shape_are_scheduled() -> None:
    chain = line_of(*["Plain"] * 19_999, "Output")
    wide = {str(at): {"class_type": "Output", "inputs": {}} for at in range(20_000)}
    for prompt, targets in ((chain, ["19999"]), (wide, list(wide))):
        assert asyncio.run(emptied(prompt, targets)) == 20_000


async def emptied(prompt: dict[str, Any], targets: list[str]) -> int:
    outputs = Outputs(set())
    pending = OurList(DynamicPrompt(prompt), outputs)
    for target in targets:
        pending.add_node(target)
    visited = 0
    while not pending.is_empty():
        node_id, error, _ = await pending.stage_node_execution()
        assert error is None
        outputs.set_local(node_id, execution.CacheEntry({}, [1, 1]))
        pending.complete_node_execution()
        visited += 1
    return visited
