"""Graphs of any size in a few shapes, for size tests and for `graphs.py`; no host and no server in here.

`nodes` is the number of nodes that are executed, children of expansions included (a few more or less, as the
shape allows). Equal salts give equal graphs, so that all is cached; another salt misses the cache everywhere.
"""

from __future__ import annotations

from typing import Any

Prompt = dict[str, dict[str, Any]]

LANES = 20
TURN = 2
"""Nodes that one turn of a loop adds."""


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    """One node of a prompt."""
    return {"class_type": class_type, "inputs": inputs}


def chain(nodes: int, salt: int) -> Prompt:
    """Images inverted one after the other, by the host's own nodes, and a preview."""
    prompt = {"0": node("EmptyImage", width=8, height=8, batch_size=1, color=salt % 0xFFFFFF)}
    for at in range(1, nodes - 1):
        prompt[str(at)] = node("ImageInvert", image=[str(at - 1), 0])
    prompt[str(nodes - 1)] = node("PreviewImage", images=[str(nodes - 2), 0])
    return prompt


def wide(nodes: int, salt: int) -> Prompt:
    """One source, and steps from it that each have an output."""
    prompt = {"0": node("SizeStart", salt=salt)}
    for at in range(1, (nodes + 1) // 2):
        prompt[str(at)] = node("SizeStep", value=["0", 0], salt=at)
        prompt[f"{at}e"] = node("SizeEnd", value=[str(at), 0])
    return prompt


def fan(nodes: int, salt: int) -> Prompt:
    """One source, as many steps from it as all, and these joined two by two to a single output."""
    prompt = {"0": node("SizeStart", salt=salt)}
    level = []
    for at in range(1, max(nodes // 2, 2)):
        prompt[str(at)] = node("SizeStep", value=["0", 0], salt=at)
        level.append(str(at))
    joins = 0
    while len(level) > 1:
        joined = level[len(level) // 2 * 2 :]
        for left, right in zip(level[::2], level[1::2], strict=False):
            joins += 1
            prompt[f"j{joins}"] = node("SizeJoin", left=[left, 0], right=[right, 0])
            joined.append(f"j{joins}")
        level = joined
    prompt["end"] = node("SizeEnd", value=[level[0], 0])
    return prompt


def lanes(nodes: int, salt: int) -> Prompt:
    """LANES chains side by side, each with an output."""
    prompt: Prompt = {}
    length = max(nodes // LANES, 2)
    for lane in range(LANES):
        prompt[f"{lane}-0"] = node("SizeStart", salt=salt * LANES + lane)
        for at in range(1, length - 1):
            prompt[f"{lane}-{at}"] = node("SizeStep", value=[f"{lane}-{at - 1}", 0])
        prompt[f"{lane}-end"] = node("SizeEnd", value=[f"{lane}-{length - 2}", 0])
    return prompt


def diamond(nodes: int, salt: int) -> Prompt:
    """Diamonds in a row: two steps that look alike, joined, and again."""
    prompt = {"0": node("SizeStart", salt=salt)}
    last = "0"
    for at in range(1, max((nodes - 2) // 3, 1) + 1):
        prompt[f"{at}l"] = node("SizeStep", value=[last, 0])
        prompt[f"{at}r"] = node("SizeStep", value=[last, 0])
        prompt[f"{at}"] = node("SizeJoin", left=[f"{at}l", 0], right=[f"{at}r", 0])
        last = str(at)
    prompt["end"] = node("SizeEnd", value=[last, 0])
    return prompt


def loops(nodes: int, salt: int) -> Prompt:
    """A loop whose every turn is an expansion inside the one before."""
    return {
        "0": node("SizeStart", salt=salt),
        "1": node("SizeLoop", value=["0", 0], left=max((nodes - 3) // TURN, 1)),
        "end": node("SizeEnd", value=["1", 0]),
    }


SHAPES = {"chain": chain, "wide": wide, "fan": fan, "lanes": lanes, "diamond": diamond, "loops": loops}
