"""Our cache keys hit exactly where the host's hit, on the host's own caches, for graphs at random."""

from __future__ import annotations

import asyncio
import copy
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from key_world import (
    ANSWERS,
    EXTREMES,
    NAMES,
    NESTED,
    OTHERS,
    SAME_NAN,
    Prompt,
    both,
    keys_of,
    same_partition,
)
from world import HostKeys, OurKeys, examples, execution

PLAIN = ("KeyA", "KeyA", "KeyA", "KeyB")
ODD = ("KeyNamed", "KeyOnce", "KeyTwice", "KeyChanged", "KeyChanged", "KeyChangedAsync")
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


@pytest.mark.parametrize("seed", range(40))
def test_keys_of_look_alikes_are_equal_exactly_where_the_host_s_are(seed: int) -> None:
    chance = random.Random(seed)
    pairs_ = set()
    for _ in range(25):
        prompt = alike_graph(chance)
        host, ours = (asyncio.run(keys_of(kind, prompt)) for kind in (HostKeys, OurKeys))
        pairs_ |= {(host[node_id], ours[node_id]) for node_id in prompt}
    assert same_partition(pairs_)
