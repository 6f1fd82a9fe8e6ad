"""Work on pictures: behind a decoder postprocess, before a ControlNet conditioning, else not certain."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from stagexec.host.node_stage import NodeStages, Visited
from stagexec.host.tables import load
from stagexec.record import guard
from tests.host_unit.test_node_stage import core_node, node

CLASSES: dict[str, Any] = {
    name: core_node(name)
    for name in (
        *("LoadImage", "ImageScale", "ImageInvert", "VAEEncode", "KSampler", "VAEDecode", "SaveImage"),
        *("ControlNetApplyAdvanced", "CLIPTextEncode", "PreviewImage", "CLIPVisionEncode", "ImageBatch"),
        *("ControlNetLoader", "CheckpointLoaderSimple"),
    )
} | {
    "Preprocessor": node({"image": "IMAGE"}, ["IMAGE"]),
    "Grows": node({"value": "*"}, ["*"]),
}

WORK = ("Preprocessor", "ImageScale", "ImageInvert", "ImageBatch")


class Graph:
    """The host's DynamicPrompt, as far as it is asked."""

    def __init__(self, **nodes: tuple[str, ...]) -> None:
        self.original_prompt = {name: made(*one) for name, one in nodes.items()}
        self.ephemeral_prompt: dict[str, Any] = {}
        self.ephemeral_parents: dict[str, str] = {}

    def grow(self, parent: str, **nodes: tuple[str, ...]) -> None:
        for name, one in nodes.items():
            self.ephemeral_prompt[name] = made(*one)
            self.ephemeral_parents[name] = parent


def made(class_type: str, *sources: str) -> dict[str, Any]:
    """A node: `sources` as `id`, or `id.socket`."""
    links = [one.partition(".") for one in sources]
    return {
        "class_type": class_type,
        "inputs": {f"in{at}": [name, int(socket or 0)] for at, (name, _, socket) in enumerate(links)},
    }


@pytest.fixture
def stages() -> NodeStages:
    return NodeStages(load().nodes)


def ask(stages: NodeStages, graph: Any, node_id: str) -> tuple[str, str | None, str | None]:
    """(stage, part, hint) of a visit."""
    one = graph.ephemeral_prompt.get(node_id) or graph.original_prompt[node_id]
    name = one["class_type"]
    found = stages.of_visit(name, CLASSES[name], graph, node_id, CLASSES)
    return found.stage, found.part, found.hint


def control_graph(**more: tuple[str, ...]) -> Graph:
    """A picture is prepared twice for a ControlNet, sampled and decoded, and the frames are scaled."""
    nodes = {
        "load": ("LoadImage",),
        "scale": ("ImageScale", "load"),
        "pre": ("Preprocessor", "scale"),
        "net": ("ControlNetLoader",),
        "text": ("CLIPTextEncode",),
        "apply": ("ControlNetApplyAdvanced", "text", "net", "pre"),
        "sample": ("KSampler", "apply"),
        "decode": ("VAEDecode", "sample"),
        "bigger": ("ImageScale", "decode"),
        "save": ("SaveImage", "bigger"),
    }
    return Graph(**(nodes | more))


def test_work_behind_a_decoder_is_postprocess(stages: NodeStages) -> None:
    assert ask(stages, control_graph(), "bigger") == ("postprocess", "ImageScale", None)


def test_preparation_for_a_control_net_is_conditioning(stages: NodeStages) -> None:
    graph = control_graph()
    for one in ("scale", "pre"):
        assert ask(stages, graph, one) == ("conditioning", "control", None)


def test_a_preview_of_the_prepared_picture_changes_nothing(stages: NodeStages) -> None:
    graph = control_graph(look=("PreviewImage", "pre"))
    assert ask(stages, graph, "pre") == ("conditioning", "control", None)


def test_preparation_for_a_control_net_and_more_is_not_certain(stages: NodeStages) -> None:
    graph = control_graph(encode=("VAEEncode", "scale"), batch=("ImageBatch", "pre", "load"))
    assert ask(stages, graph, "scale") == ("node_other", "ImageScale", "conditioning")


def test_a_picture_for_an_encoder_is_likely_conditioning(stages: NodeStages) -> None:
    graph = Graph(
        load=("LoadImage",),
        scale=("ImageScale", "load"),
        encode=("VAEEncode", "scale"),
        sample=("KSampler", "encode"),
    )
    assert ask(stages, graph, "scale") == ("node_other", "ImageScale", "conditioning")


def test_work_on_a_given_picture_alone_is_likely_postprocess(stages: NodeStages) -> None:
    graph = Graph(load=("LoadImage",), scale=("ImageScale", "load"), save=("SaveImage", "scale"))
    assert ask(stages, graph, "scale") == ("node_other", "ImageScale", "postprocess")


def test_a_width_taken_from_a_decoded_picture_decodes_nothing(stages: NodeStages) -> None:
    graph = control_graph(size=("LoadImage",), other=("ImageScale", "load", "measure.1"))
    graph.original_prompt["measure"] = made("Measure", "decode")
    CLASSES["Measure"] = node({"image": "IMAGE"}, ["IMAGE", "INT"])
    try:
        assert ask(stages, graph, "other")[0] == "node_other"
    finally:
        del CLASSES["Measure"]


def test_what_a_node_grew_into_counts(stages: NodeStages) -> None:
    graph = Graph(
        load=("LoadImage",),
        inner=("Grows", "load"),
        scale=("ImageScale", "inner"),
        save=("SaveImage", "scale"),
    )
    graph.grow("inner", a=("ImageScale",), b=("VAEEncode", "a"), c=("KSampler", "b"), d=("VAEDecode", "c"))
    assert ask(stages, graph, "a")[0] == "node_other"
    assert ask(stages, graph, "scale") == ("postprocess", "ImageScale", None)


def test_what_grows_after_a_first_question_counts_too(stages: NodeStages) -> None:
    graph = Graph(load=("LoadImage",), first=("ImageScale", "load"), inner=("Grows", "first"))
    graph.original_prompt["last"] = made("ImageInvert", "inner")
    assert ask(stages, graph, "first")[0] == "node_other"
    graph.grow("inner", a=("VAEDecode",))
    graph.grow("a", b=("ImageInvert", "a"))
    assert ask(stages, graph, "b") == ("postprocess", "ImageInvert", None)
    assert ask(stages, graph, "last") == ("postprocess", "ImageInvert", None)


def test_a_chain_of_20000_nodes_is_no_recursion(stages: NodeStages) -> None:
    chain = {f"n{at}": ("ImageInvert", f"n{at - 1}") for at in range(1, 20_000)}
    graph = Graph(n0=("LoadImage",), **chain, end=("SaveImage", "n19999"))
    assert ask(stages, graph, "n19999")[2] == "postprocess"
    assert ask(stages, graph, "n1")[2] == "postprocess"


def test_a_cycle_ends(stages: NodeStages) -> None:
    graph = Graph(a=("ImageInvert", "b"), b=("ImageInvert", "a"))
    assert ask(stages, graph, "a") == ("node_other", "ImageInvert", "postprocess")


def test_a_graph_that_cannot_be_asked_costs_the_place_alone(stages: NodeStages) -> None:
    expected = Visited("node_other", "ImageInvert", "type", "postprocess")
    assert stages.of_visit("ImageInvert", CLASSES["ImageInvert"], object(), "1", CLASSES) == expected
    assert "_place" in guard.faults.pop()[0]


def test_only_work_on_pictures_asks_for_its_place(
    stages: NodeStages, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(stages, "_place", lambda _graph, node_id, _classes: asked.append(node_id))
    graph = control_graph()
    for one in graph.original_prompt:
        ask(stages, graph, one)
    assert asked == [one for one, told in graph.original_prompt.items() if told["class_type"] in WORK]


def test_an_answer_keeps_no_prompt_alive(stages: NodeStages) -> None:
    graph = control_graph()
    ask(stages, graph, "bigger")
    gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None
    assert len(stages._places) == 0
