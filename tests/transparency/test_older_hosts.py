"""Older hosts whose loop the native one stands for: it cannot be told from theirs either."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.host import graphs as g
from tests.transparency import scenes as s
from tests.transparency.observe import Observer
from tests.transparency.twins import Twins, messages

SUBSET = (
    "every hook's stack",
    "every hook's stack, a node not made",
    "a switch that looks who asks",
    "inputs by the name that is asked for",
    "image saved, cached",
    "item 6 of 8 fails",
    "parallel async",
    "nested expansion",
    "list of expansions",
    "blocked with a message",
    "lazy",
    "expansion into a cycle",
    "output in mid-graph",
    "node interrupts itself",
    "models loaded",
    "IS_CHANGED gives a text",
    "progress with previews",
    "node of the newer kind",
)


@pytest.mark.parametrize("version", ["0.20.1", "0.16.3"])
def test_an_older_host_cannot_be_told_from_ours(
    start: Callable[..., Twins], old_host_tree: Callable[[str], Path], version: str
) -> None:
    twins = start("stock", "native", comfyui=old_host_tree(version))
    for name in SUBSET:

        def scene(at: Observer, name: str = name) -> None:
            for prompt in s.SCENES[name](at.prefix, at.color):
                at.run(prompt)

        assert messages(twins.same(f"{version}, {name}", scene), "execution_start")

    def image(at: Observer) -> None:
        for seed in (1, 1, 2):
            at.run(g.txt2img(seed=seed, prefix=at.prefix), extra_data={"preview_method": "latent2rgb"})

    assert len(messages(twins.same(f"{version}, txt2img", image), "progress")) == 4
