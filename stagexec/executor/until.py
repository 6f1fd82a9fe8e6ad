"""Stop points: `extra_data["stagexec.until"]` ends a run after native output, postprocess, encode or commit.

The nodes to execute are chosen before the run is accepted, and nothing else changes: the host (or our
loop) is asked for other nodes than the prompt's outputs, by the list that partial execution uses. A node is
beyond a point when the stage of its class is, or when it needs a node that is. What is asked for instead
of a node beyond are the nodes that it takes its inputs from. So:

* `native`: everything up to frames and picture files, nothing that follows a postprocess. Work on given
  pictures that a sampler or a decoder needs comes before all frames: it is no postprocess;
* `postprocess`: everything before an encoder, pictures saved after a postprocess included;
* `encode`: everything before a Deliver node; a saver that encodes and names its file in one call is run;
* `commit`: everything, as without it.

A run that stops so has the outcome `success`, also when it delivers nothing. What a node expands into is
not cut: it runs whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from stagexec.record.safe import log

FIELD = "stagexec.until"

POINTS = ("native", "postprocess", "encode", "commit")

BEYOND = {"postprocess": 1, "encode_mux": 2, "delivery_commit": 3}
"""Stage of a node class -> the place in POINTS of the first point that has it; any other stage is native."""

MAKES = ("sampling", "vae_decode")
"""Stages that frames come from."""


def asked(extra_data: Any) -> str | None:
    """The stop point that a prompt asks for; None when it asks for none, or for one that there is not."""
    point = extra_data.get(FIELD) if isinstance(extra_data, dict) else None
    if point is None or point in POINTS:
        return point
    log.warning("stagexec: unknown stop point %r is ignored; there are: %s.", point, ", ".join(POINTS))
    return None


def cut(
    prompt: dict[str, Any], outputs: list[str], point: str, stage_of: Callable[[str], str]
) -> tuple[list[str], list[str]]:
    """(nodes to ask for, nodes left out) of a prompt whose outputs are `outputs`.

    `stage_of` gives the stage of a class name. Linear in nodes and links; a cycle is left as it is, for
    the loop to report.
    """
    limit = POINTS.index(point)
    order = _inputs_first(prompt, outputs)
    stages = {node_id: stage_of(str(prompt[node_id].get("class_type"))) for node_id in order}
    prepares = _preparing(prompt, order, stages)
    beyond: set[str] = set()
    for node_id in order:
        stage = stages[node_id]
        too_far = BEYOND.get(stage, 0) > limit and not (stage == "postprocess" and node_id in prepares)
        if too_far or any(source in beyond for source in _sources(prompt, node_id)):
            beyond.add(node_id)
    targets = [node_id for node_id in outputs if node_id not in beyond]
    # In the order of the prompt, so that equal prompts ask in equal order.
    feeding = {s for node_id in beyond for s in _sources(prompt, node_id) if s not in beyond}
    targets += [node_id for node_id in prompt if node_id in feeding and node_id not in targets]
    return targets, [node_id for node_id in prompt if node_id in beyond]


def _preparing(prompt: dict[str, Any], order: list[str], stages: dict[str, str]) -> set[str]:
    """The nodes that a sampler or a decoder needs, and that need none themselves. `order`: inputs first."""
    made: set[str] = set()
    needed: set[str] = set()
    for node_id in order:
        if stages[node_id] in MAKES or any(source in made for source in _sources(prompt, node_id)):
            made.add(node_id)
    for node_id in reversed(order):
        if node_id in needed or stages[node_id] in MAKES:
            needed.update(_sources(prompt, node_id))
    return needed - made


def _sources(prompt: dict[str, Any], node_id: str) -> Iterable[str]:
    for value in prompt[node_id].get("inputs", {}).values():
        if isinstance(value, list) and len(value) == 2 and value[0] in prompt:
            yield value[0]


def _inputs_first(prompt: dict[str, Any], outputs: list[str]) -> list[str]:
    """The outputs and all they need, each after what it takes inputs from. No recursion."""
    order: list[str] = []
    seen: set[str] = set()
    stack = [(node_id, False) for node_id in outputs if node_id in prompt]
    while stack:
        node_id, expanded = stack.pop()
        if expanded:
            order.append(node_id)
        elif node_id not in seen:
            seen.add(node_id)
            stack.append((node_id, True))
            stack += [(source, False) for source in _sources(prompt, node_id) if source not in seen]
    return order
