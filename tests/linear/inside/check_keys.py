"""Our cache keys hit exactly where the host's hit, on the host's own caches."""
# ruff: noqa: N802 (the host asks for these names)

from __future__ import annotations

import asyncio
import copy
import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import DynamicPrompt, HostKeys, OurKeys, cache_provider, examples, execution, register

from stagexec.executor import keys as keys_module
from stagexec.executor.keyset import known_ids

Prompt = dict[str, dict[str, Any]]

ANY = "*"
NAMES = ("a", "b", "c", "how")
SAME_NAN = float("nan")
EPOCH = ["first"]
ANSWERS = {
    "epoch": lambda: EPOCH[0],
    "nan": lambda: float("nan"),
    "same nan": lambda: SAME_NAN,
    "one": lambda: 1,
    "one and a bit": lambda: 1.5,
    "true": lambda: True,
    "nested": lambda: [1, [2.0, {"x": [EPOCH[0]]}]],
    "object": object,
    "set": lambda: {1, 2},
    "raise": lambda: 1 // 0,
}


class KeyA:
    RETURN_TYPES = (ANY, ANY)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return {"optional": dict.fromkeys(NAMES, (ANY, {}))}


class KeyB(KeyA):
    pass


class KeyNamed(KeyA):
    @classmethod
    def INPUT_TYPES(cls):
        return {"optional": dict.fromkeys(NAMES, (ANY, {})), "hidden": {"me": "UNIQUE_ID"}}


class KeyOnce(KeyA):
    NOT_IDEMPOTENT = True


class KeyTwice(KeyA):
    NOT_IDEMPOTENT = False


class KeyChanged(KeyA):
    @classmethod
    def IS_CHANGED(cls, how="one", **_):
        return ANSWERS[how]() if isinstance(how, str) and how in ANSWERS else how


class KeyChangedAsync(KeyA):
    @classmethod
    async def IS_CHANGED(cls, how="one", **_):
        await asyncio.sleep(0)
        return ANSWERS[how]() if isinstance(how, str) and how in ANSWERS else how


register(KeyA, KeyB, KeyNamed, KeyOnce, KeyTwice, KeyChanged, KeyChangedAsync)

PLAIN = ("KeyA", "KeyA", "KeyA", "KeyB")
ODD = ("KeyNamed", "KeyOnce", "KeyTwice", "KeyChanged", "KeyChanged", "KeyChangedAsync")
NUMBERS = (0, 0.0, -0.0, False, 1, 1.0, True, 1.5, 2**53, 2**53 + 1, float(2**53), 10**40, 1e40)
EXTREMES = (float("inf"), -float("inf"), SAME_NAN, *NUMBERS)
OTHERS = (
    None,
    "",
    "a",
    "1",
    "\ud800",
    b"a",
    [],
    {},
    (),
    [1],
    [1.0],
    (True,),
    {0: 1},
    [1, 2, 3],
    {1, 2},
    object,
)
NESTED = (
    {"x": 1},
    {"x": 1.0},
    {"x": {}},
    {"x": []},
    [[]],
    [{}],
    [[1], {"y": [2]}],
    {"x": SAME_NAN},
    {"x": {3}},
)

constants = st.one_of(
    st.just(1),
    st.sampled_from(EXTREMES),
    st.sampled_from(OTHERS),
    st.sampled_from(NESTED),
    st.builds(lambda: float("nan")),
    st.builds(lambda: [object()]),
    st.sampled_from(sorted(ANSWERS)),
)
sockets = st.sampled_from((0, 0, 0, 1, 0.0, True, 1.0, False, -0.0, SAME_NAN))


@st.composite
def inputs_of(draw: Any, sources: list[str], odd: bool) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in draw(st.permutations(NAMES)):
        kind = draw(st.integers(0, 9))
        if kind < 5 and sources:
            made[name] = [draw(st.sampled_from(sources)), draw(sockets) if odd else 0]
        elif kind == 5:
            made[name] = draw(constants) if odd else draw(st.integers(1, 2))
    return made


@st.composite
def graphs(draw: Any, prefix: str = "", outside: tuple[str, ...] = (), most: int = 8) -> Prompt:
    """Nodes "0", "1", … after `prefix`; links go back, seldom to a later node, a missing one or outside."""
    odd = draw(st.integers(0, 3)) == 0
    count = draw(st.integers(1, most))
    ids = [f"{prefix}{at}" for at in range(count)]
    loose = draw(st.integers(0, 5)) == 0
    prompt: Prompt = {}
    for at, node_id in enumerate(ids):
        sources = (ids if loose else ids[:at]) + list(outside) + (["missing"] if loose else [])
        class_type = draw(st.sampled_from(PLAIN + ODD if odd else PLAIN))
        prompt[node_id] = {"class_type": class_type, "inputs": draw(inputs_of(sources, odd))}
    return prompt


@st.composite
def scenes(draw: Any) -> tuple[Prompt, dict[str, Prompt]]:
    """A prompt, and for some of its nodes (children too) the graph that they expand into."""
    prompt = draw(graphs())
    growth: dict[str, Prompt] = {}
    parents = list(prompt)
    for number in range(draw(st.integers(0, 3))):
        parent = draw(st.sampled_from(parents))
        if parent not in growth:
            outside = tuple(draw(st.lists(st.sampled_from(parents), max_size=3)))
            growth[parent] = draw(graphs(f"{parent}.0.{number}.", outside, 4))
            parents += growth[parent]
    return prompt, growth


def renamed(prompt: Prompt, names: dict[str, str]) -> Prompt:
    def value(one: Any) -> Any:
        return [names.get(one[0], one[0]), one[1]] if execution.is_link(one) else one

    return {
        names.get(node_id, node_id): {
            "class_type": node["class_type"],
            "inputs": {name: value(one) for name, one in node["inputs"].items()},
        }
        for node_id, node in prompt.items()
    }


@st.composite
def pairs(draw: Any) -> list[tuple[Prompt, dict[str, Prompt]]]:
    """Two prompts in a row: the second is the first, renamed, reordered or changed in one place."""
    first, growth = draw(scenes())
    if draw(st.integers(0, 7)) == 0:
        return [(first, growth), draw(scenes())]
    second, more = copy.deepcopy(first), copy.deepcopy(growth)
    if draw(st.booleans()):
        everything = [*second, *(child for graph in more.values() for child in graph)]
        shuffled = (
            draw(st.permutations(everything)) if draw(st.booleans()) else [f"n{one}" for one in everything]
        )
        names = dict(zip(everything, shuffled, strict=True))
        second = renamed(second, names)
        more = {names[parent]: renamed(graph, names) for parent, graph in more.items()}
        second = {node_id: second[node_id] for node_id in draw(st.permutations(list(second)))}
    if draw(st.booleans()):
        node = draw(st.sampled_from(list(second.values())))
        if node["inputs"]:
            name = draw(st.sampled_from(sorted(node["inputs"])))
            if execution.is_link(node["inputs"][name]):
                node["inputs"][name] = [draw(st.sampled_from(list(second))), draw(sockets)]
            else:
                node["inputs"][name] = draw(constants)
    return [(first, growth), (second, more)]


class Asked(execution.IsChangedCache):
    """The host's, with the order kept in which nodes are asked for the first time."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.order: list[str] = []

    async def get(self, node_id: str) -> Any:
        if node_id not in self.is_changed:
            self.order.append(node_id)
        return await super().get(node_id)


CACHES = {
    "classic": execution.HierarchicalCache,
    "lru": lambda keys: execution.LRUCache(keys, max_size=3),
    "large lru": lambda keys: execution.LRUCache(keys, max_size=1000),
    "ram": execution.RAMPressureCache,
    "null": lambda keys: execution.NullCache(),
}


async def look(cache: Any, node_ids: Any) -> list[Any]:
    found = [(node_id, await cache.get(node_id), cache.get_local(node_id)) for node_id in node_ids]
    assert [one[1] for one in found] == [one[2] for one in found]
    return [(node_id, entry and entry.outputs) for node_id, entry, _ in found]


async def play(
    cache: Any, scene: tuple[Prompt, dict[str, Prompt]], stored: str, epoch: str
) -> dict[str, Any]:
    """Use the cache as a prompt does; what was found, when, and by whom. `stored`: 0 or 1 for each node."""
    EPOCH[0] = epoch
    prompt, growth = copy.deepcopy(scene[0]), copy.deepcopy(scene[1])
    dynprompt = DynamicPrompt(prompt)
    changed = Asked("prompt", dynprompt, cache)
    await cache.set_prompt(dynprompt, prompt.keys(), changed)
    cache.clean_unused()
    found = [await look(cache, prompt)]
    wanted = itertools.cycle(stored)

    async def store(node_ids: Any) -> None:
        for node_id in node_ids:
            if next(wanted) == "1":
                await cache.set(node_id, execution.CacheEntry({}, [epoch, node_id]))
        found.append(await look(cache, node_ids))

    await store(prompt)
    for parent, children in growth.items():
        for child_id, child in children.items():
            dynprompt.add_ephemeral_node(child_id, child, parent, parent)
        subcache = await cache.ensure_subcache_for(parent, list(children))
        subcache.clean_unused()
        found.append(await look(cache, children))
        await store(children)
    found.append(await look(cache, [*prompt, *(one for graph in growth.values() for one in graph)]))
    return {
        "found": found,
        "asked": changed.order,
        "ids": sorted(cache.all_node_ids()),
        "entries": sorted(map(repr, getattr(cache, "cache", {}).values())),
        "generations": sorted(getattr(cache, "used_generation", {}).values()),
        "known": list(dynprompt.all_node_ids()),
        "noted": [node.get("is_changed") is not None for node in prompt.values()],
    }


def both(kind: str, scenes_: list[Any], stored: str) -> None:
    host, ours = CACHES[kind](HostKeys), CACHES[kind](OurKeys)
    for epoch, scene in zip(("first", "second", "third"), scenes_, strict=False):
        expected = asyncio.run(play(host, scene, stored, epoch))
        assert asyncio.run(play(ours, scene, stored, epoch)) == expected
        assert_external_keys(host, ours)


def assert_external_keys(host: Any, ours: Any) -> None:
    """Providers are asked about the same nodes, and every key of ours has a serialised form."""
    for node_id, key in getattr(getattr(ours, "cache_key_set", None), "keys", {}).items():
        assert cache_provider._serialize_cache_key(key) is not None
        theirs = host.cache_key_set.get_data_key(node_id)
        unequal = cache_provider._contains_self_unequal
        assert unequal(key) == unequal(theirs), node_id


@pytest.mark.parametrize("kind", ["classic", "large lru"])
@examples(300)
@given(pairs(), st.text("01", min_size=1, max_size=5))
def test_a_second_prompt_hits_where_the_host_s_keys_hit(kind: str, pair: Any, stored: str) -> None:
    both(kind, pair, stored)


@pytest.mark.parametrize("kind", ["lru", "ram", "null"])
@examples(120)
@given(pairs(), st.text("01", min_size=1, max_size=5))
def test_three_prompts_evict_and_hit_as_on_the_host(kind: str, pair: Any, stored: str) -> None:
    both(kind, [*pair, pair[0]], stored)


def twin_join(order: str) -> Prompt:
    """Two look-alike nodes, each used twice, and joined straight or crosswise."""
    links = {"straight": "0101", "cross": "0110", "same": "0000"}[order]
    prompt: Prompt = {one: {"class_type": "KeyA", "inputs": {}} for one in "01"}
    for at in range(2):
        left, right = links[2 * at : 2 * at + 2]
        prompt[f"m{at}"] = {"class_type": "KeyB", "inputs": {"a": [left, 0], "b": [right, 0]}}
    prompt["end"] = {"class_type": "KeyB", "inputs": {"a": ["m0", 0], "b": ["m1", 0]}}
    return prompt


@pytest.mark.parametrize("first", ["straight", "cross", "same"])
@pytest.mark.parametrize("second", ["straight", "cross", "same"])
def test_look_alike_nodes_joined_crosswise_are_told_apart(first: str, second: str) -> None:
    both("classic", [(twin_join(first), {}), (twin_join(second), {})], "1")


def test_the_join_test_can_fail() -> None:
    """The host itself tells straight from cross, so a digest of digests alone would be caught."""
    cache = CACHES["classic"](HostKeys)
    asyncio.run(play(cache, (twin_join("straight"), {}), "1", "first"))
    found = dict(asyncio.run(play(cache, (twin_join("cross"), {}), "0", "second"))["found"][0])
    assert found["end"] is None
    assert found["m0"] is not None


def test_a_node_that_appears_later_is_seen_by_the_children_that_link_to_it() -> None:
    """A link to a node that is missing at first, and comes with an expansion."""
    prompt = {
        "early": {"class_type": "KeyA", "inputs": {"a": ["p.0.0.x", 0]}},
        "p": {"class_type": "KeyA", "inputs": {}},
    }
    growth = {
        "p": {
            "p.0.0.x": {"class_type": "KeyB", "inputs": {}},
            "p.0.0.y": {"class_type": "KeyB", "inputs": {"a": ["p.0.0.x", 0]}},
        },
        "early": {"early.0.0.z": {"class_type": "KeyB", "inputs": {"a": ["early", 0], "b": ["p.0.0.x", 0]}}},
    }
    for kind in CACHES:
        both(kind, [(prompt, growth)] * 2, "1")


def ring(start: int) -> Prompt:
    """A ring of three with a node that hangs on it; nothing of it leads to an output."""
    ids = [str((start + at) % 3) for at in range(3)]
    prompt = {
        one: {"class_type": "KeyA", "inputs": {"a": [str((int(one) + 1) % 3), 0], "b": int(one) * 0}}
        for one in ids
    }
    prompt["tail"] = {"class_type": "KeyB", "inputs": {"a": ["0", 0], "b": ["1", 0]}}
    return prompt


@pytest.mark.parametrize("start", range(3))
@pytest.mark.parametrize("kind", CACHES)
def test_a_ring_s_keys_do_not_depend_on_where_it_is_entered(kind: str, start: int) -> None:
    both(kind, [(ring(0), {}), (ring(start), {})], "1")


def test_a_chain_of_20000_has_keys_without_recursion_and_hits_again() -> None:
    prompt: Prompt = {"0": {"class_type": "KeyA", "inputs": {}}}
    for at in range(1, 20_000):
        prompt[str(at)] = {"class_type": "KeyA", "inputs": {"a": [str(at - 1), 0]}}
    cache = CACHES["classic"](OurKeys)
    assert asyncio.run(play(cache, (prompt, {}), "1", "first"))["found"][0] == [(one, None) for one in prompt]
    again = asyncio.run(play(cache, (prompt, {}), "0", "second"))["found"][0]
    assert again == [(one, ["first", one]) for one in prompt]


@pytest.mark.parametrize("depth", [3, 1_500])
def test_the_ids_of_expansions_inside_each_other_are_gathered_without_recursion(depth: int) -> None:
    dynprompt = DynamicPrompt({"0": {"class_type": "KeyA", "inputs": {}}})
    cache = execution.HierarchicalCache(OurKeys)

    async def nest() -> None:
        await cache.set_prompt(dynprompt, ["0"], Asked("p", dynprompt, cache))
        for at in range(1, depth):
            dynprompt.add_ephemeral_node(str(at), {"class_type": "KeyA", "inputs": {}}, str(at - 1), "0")
            await cache.ensure_subcache_for(str(at - 1), [str(at)])

    asyncio.run(nest())
    assert known_ids(cache) == {str(at) for at in range(depth)}


def test_the_ids_of_a_cache_without_keys_are_its_own_answer() -> None:
    assert known_ids(execution.NullCache()) == []


def same_partition(pairs_: set[Any]) -> bool:
    """Are ours equal exactly where the host's are? `pairs_`: (host's key, our key)."""
    return len({host for host, _ in pairs_}) == len({ours for _, ours in pairs_}) == len(pairs_)


def test_constants_are_equal_exactly_where_the_host_s_are() -> None:
    fresh = [
        float("nan"),
        float("nan"),
        [float("nan")],
        [1, float("nan")],
        object(),
        [object()],
        {"x": object()},
    ]
    values = [*EXTREMES, *OTHERS, *NESTED, *fresh, *fresh[:4], ["ANCESTOR", 0], {0: "ANCESTOR", 1: 0}]
    prompt = {str(at): {"class_type": "KeyA", "inputs": {"a": value}} for at, value in enumerate(values)}
    host, ours = (asyncio.run(keys_of(kind, prompt)) for kind in (HostKeys, OurKeys))
    pairs_ = {(host[node_id], ours[node_id]) for node_id in prompt}
    assert same_partition(pairs_)
    assert 20 < len(pairs_) < len(values), "some are equal, most are not"


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("class_type", ["KeyChanged", "KeyChangedAsync"])
def test_a_changed_fingerprint_hits_again_where_the_host_s_does(class_type: str, answer: str) -> None:
    prompt = {
        "0": {"class_type": class_type, "inputs": {"how": answer}},
        "1": {"class_type": "KeyA", "inputs": {"a": ["0", 0]}},
    }
    for kind in CACHES:
        both(kind, [(prompt, {})] * 3, "1")


def test_links_to_look_alikes_are_told_apart_in_every_pattern() -> None:
    prompt: Prompt = {one: {"class_type": "KeyA", "inputs": {}} for one in "01"}
    for pattern in itertools.product("01", repeat=4):
        inputs = {name: [one, 0] for name, one in zip(NAMES, pattern, strict=True)}
        prompt["".join(pattern)] = {"class_type": "KeyB", "inputs": inputs}
    host, ours = (asyncio.run(keys_of(kind, prompt)) for kind in (HostKeys, OurKeys))
    pairs_ = {(host[node_id], ours[node_id]) for node_id in prompt}
    assert same_partition(pairs_)
    assert len(pairs_) == 9, "one for both leaves, eight patterns: 0110 and 1001 are the same"


def alike_graph(chance: random.Random) -> Prompt:
    """Few classes and no constants: most nodes look like others, and are joined in every way there is."""
    prompt: Prompt = {}
    for at in range(chance.randint(2, 14)):
        links = min(at, chance.choice((0, 1, 2, 2, 3)))
        near = chance.choice((3, 14))
        sources = [str(chance.randint(max(0, at - near), at - 1)) for _ in range(links)]
        inputs = {name: [source, 0] for name, source in zip(NAMES, sources, strict=False)}
        prompt[str(at)] = {"class_type": chance.choice(("KeyA", "KeyA", "KeyB")), "inputs": inputs}
    return prompt


async def keys_of(kind: type, prompt: Prompt) -> dict[str, Any]:
    dynprompt = DynamicPrompt(prompt)
    key_set = kind(dynprompt, prompt.keys(), execution.IsChangedCache("p", dynprompt, None))
    await key_set.add_keys(prompt.keys())
    return key_set.keys


@pytest.mark.parametrize("seed", range(40))
def test_keys_of_look_alikes_are_equal_exactly_where_the_host_s_are(seed: int) -> None:
    chance = random.Random(seed)
    pairs_ = set()
    for _ in range(25):
        prompt = alike_graph(chance)
        host, ours = (asyncio.run(keys_of(kind, prompt)) for kind in (HostKeys, OurKeys))
        pairs_ |= {(host[node_id], ours[node_id]) for node_id in prompt}
    assert same_partition(pairs_)


@pytest.mark.parametrize("shape", ["ladder", "diamonds", "threaded", "wide"])
def test_look_alikes_cost_no_walk_each(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked per node does not grow with the graph, however the look-alikes are joined."""
    steps = [steps_of(look_alikes(shape, size), monkeypatch) / size for size in (300, 1200)]
    assert steps[1] < 1.3 * steps[0]


def look_alikes(shape: str, size: int) -> Prompt:
    def node(*sources: str) -> dict[str, Any]:
        return {
            "class_type": "KeyA",
            "inputs": {name: [one, 0] for name, one in zip(NAMES, sources, strict=False)},
        }

    if shape == "wide":
        prompt = {str(at): node() for at in range(size)}
        return prompt | {f"j{at}": node(str(at), str((at * 7) % size)) for at in range(size)}
    prompt = {"a0": node(), "b0": node()}
    for at in range(1, size):
        before = f"a{at - 1}", f"b{at - 1}"
        prompt[f"a{at}"] = node(before[0], "b0") if shape == "threaded" else node(*before)
        prompt[f"b{at}"] = node(before[1], before[0]) if shape == "ladder" else node(f"a{at}")
        if shape == "diamonds":
            prompt[f"a{at}"], prompt[f"b{at}"] = node(f"c{at}"), node(f"c{at}")
            prompt[f"c{at}"] = node(*before)
    return prompt


def steps_of(prompt: Prompt, monkeypatch: pytest.MonkeyPatch) -> int:
    """Calls of the functions that look at nodes one by one."""
    counted = [0]
    with monkeypatch.context() as patch:
        for owner, name in ((keys_module.Likeness, "_first_with"), (keys_module, "digest")):
            patch.setattr(owner, name, counting(getattr(owner, name), counted))
        asyncio.run(keys_of(OurKeys, prompt))
    return counted[0]


def counting(function: Any, counted: list[int]) -> Any:
    def count(*args: Any) -> Any:
        counted[0] += 1
        return function(*args)

    return count
