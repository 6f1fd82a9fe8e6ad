"""Node classes, caches, and a prompt as the caches see it: for the checks of cache keys."""
# ruff: noqa: N802 (the host asks for these names)

from __future__ import annotations

import asyncio
import copy
import itertools
from typing import Any

from world import DynamicPrompt, HostKeys, OurKeys, cache_provider, execution, register

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


def same_partition(pairs_: set[Any]) -> bool:
    """Are ours equal exactly where the host's are? `pairs_`: (host's key, our key)."""
    return len({host for host, _ in pairs_}) == len({ours for _, ours in pairs_}) == len(pairs_)


async def keys_of(kind: type, prompt: Prompt) -> dict[str, Any]:
    dynprompt = DynamicPrompt(prompt)
    key_set = kind(dynprompt, prompt.keys(), execution.IsChangedCache("p", dynprompt, None))
    await key_set.add_keys(prompt.keys())
    return key_set.keys
