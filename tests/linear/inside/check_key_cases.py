"""Cache keys in the cases that chance seldom makes, each against the host's own."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from typing import Any

import pytest
from key_world import (
    ANSWERS,
    CACHES,
    EXTREMES,
    NAMES,
    NESTED,
    OTHERS,
    Asked,
    Prompt,
    both,
    keys_of,
    play,
    same_partition,
)
from world import DynamicPrompt, HostKeys, OurKeys, execution

from stagexec.executor import keys as keys_module
from stagexec.executor.keyset import known_ids


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


def test_a_prompt_s_digests_go_with_it_and_wait_for_no_collection_of_garbage() -> None:
    dynprompt = DynamicPrompt(twin_join("cross"))

    async def make() -> weakref.ref[Any]:
        key_set = OurKeys(dynprompt, list(dynprompt.original_prompt), Asked("p", dynprompt, None))
        await key_set.add_keys(list(dynprompt.original_prompt))
        return weakref.ref(key_set._prompt_keys().keys)

    gc.disable()
    try:
        assert asyncio.run(make())() is None
    finally:
        gc.enable()


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
