"""Each cache mode keeps and drops what it does on stock. Servers of their own: minutes, not seconds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.transparency import scenes as s
from tests.transparency.observe import Observer
from tests.transparency.twins import Twins, messages

MODES = {"none": ("--cache-none",), "lru": ("--cache-lru", "10"), "classic": ("--cache-classic",)}
SUBSET = (
    "every hook's stack",
    "every hook's stack, a node not made",
    "a switch that looks who asks",
    "inputs by the name that is asked for",
    "image saved, cached",
    "cached in part",
    "lazy",
    "parallel async",
    "nested expansion",
    "list of expansions",
    "IS_CHANGED gives a text",
    "IS_CHANGED is NaN",
    "output in mid-graph",
    "item 6 of 8 fails",
    "node object kept",
    "expansion into a cycle",
    "blocked with a message",
    "node of the newer kind",
)


@pytest.mark.parametrize("mode", MODES)
def test_a_cache_mode_behaves_as_on_stock(start: Callable[..., Twins], mode: str) -> None:
    twins = start("stock", "native", args=MODES[mode])
    cached = 0
    for name in SUBSET:

        def scene(at: Observer, name: str = name) -> None:
            for prompt in s.SCENES[name](at.prefix, at.color):
                at.run(prompt)

        cached += sum(
            len(each["nodes"]) for each in messages(twins.same(f"{mode}, {name}", scene), "execution_cached")
        )
    assert bool(cached) == (mode != "none")
