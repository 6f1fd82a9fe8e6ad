"""Which nodes a stop point leaves, on prompts alone."""

from __future__ import annotations

import pytest

from stagexec.executor import until

STAGES = {
    "Post": "postprocess",
    "Enc": "encode_mux",
    "Deliver": "delivery_commit",
    "Save": "native_materialize",
    "Sample": "sampling",
    "Decode": "vae_decode",
}


def stage_of(name: str) -> str:
    return STAGES.get(name, "node_other")


def prompt(**nodes: tuple) -> dict:
    """`a=("Class", "b", "c")`: node a of a class, with links to b and c."""
    return {
        name: {"class_type": kind, "inputs": {str(at): [source, 0] for at, source in enumerate(sources)}}
        for name, (kind, *sources) in nodes.items()
    }


def test_what_feeds_a_node_beyond_is_asked_for_in_its_place() -> None:
    graph = prompt(a=("Make",), b=("Post", "a"), c=("Enc", "b", "a"), d=("Deliver", "c"))
    assert until.cut(graph, ["d"], "native", stage_of) == (["a"], ["b", "c", "d"])
    assert until.cut(graph, ["d"], "postprocess", stage_of) == (["a", "b"], ["c", "d"])
    assert until.cut(graph, ["d"], "encode", stage_of) == (["c"], ["d"])
    assert until.cut(graph, ["d"], "commit", stage_of) == (["d"], [])


def test_a_native_node_behind_a_postprocess_lies_beyond_native() -> None:
    graph = prompt(a=("Make",), b=("Post", "a"), c=("Save", "b"), d=("Save", "a"))
    assert until.cut(graph, ["c", "d"], "native", stage_of) == (["d", "a"], ["b", "c"])


def test_work_on_the_picture_that_is_sampled_from_is_no_postprocess() -> None:
    graph = prompt(
        load=("Load",),
        scale=("Post", "load"),
        encode=("Encode", "scale"),
        sample=("Sample", "encode"),
        decode=("Decode", "sample"),
        sharpen=("Post", "decode"),
        save=("Save", "decode"),
        last=("Save", "sharpen"),
    )
    assert until.cut(graph, ["save", "last"], "native", stage_of) == (["save", "decode"], ["sharpen", "last"])


def test_work_on_frames_is_postprocess_also_where_they_are_sampled_from_again() -> None:
    graph = prompt(
        a=("Sample",),
        b=("Decode", "a"),
        c=("Post", "b"),
        d=("Sample", "c"),
        e=("Decode", "d"),
        f=("Save", "e"),
    )
    assert until.cut(graph, ["f"], "native", stage_of) == (["b"], ["c", "d", "e", "f"])


def test_an_encoder_lies_beyond_also_where_its_file_is_sampled_from() -> None:
    graph = prompt(a=("Make",), b=("Enc", "a"), c=("Sample", "b"))
    assert until.cut(graph, ["c"], "postprocess", stage_of) == (["a"], ["b", "c"])


def test_what_nobody_asked_for_is_not_asked_for() -> None:
    graph = prompt(a=("Make",), b=("Enc", "a"), c=("Make",), d=("Enc", "c"))
    assert until.cut(graph, ["b"], "native", stage_of) == (["a"], ["b"])


def test_a_graph_that_is_beyond_as_a_whole_leaves_nothing() -> None:
    assert until.cut(prompt(a=("Enc",)), ["a"], "native", stage_of) == ([], ["a"])


def test_a_chain_of_20000_nodes_is_no_recursion() -> None:
    graph = prompt(n0=("Make",), **{f"n{at}": ("Make", f"n{at - 1}") for at in range(1, 20_000)})
    graph |= prompt(end=("Enc", "n19999"))
    assert until.cut(graph, ["end"], "native", stage_of) == (["n19999"], ["end"])


def test_a_cycle_is_left_for_the_loop_to_report() -> None:
    graph = prompt(a=("Make", "b"), b=("Make", "a"), c=("Enc", "b"))
    assert until.cut(graph, ["c"], "native", stage_of) == (["b"], ["c"])


@pytest.mark.parametrize(
    "extra", [None, {}, {"stagexec.until": None}, {"stagexec.until": "x"}, {"until": "native"}]
)
def test_a_prompt_without_a_known_point_is_whole(extra: object) -> None:
    assert until.asked(extra) is None


def test_the_points_are_those_of_the_format() -> None:
    from stagexec.format import EVENTS

    assert all(point in EVENTS["run_accepted"]["until"] for point in until.POINTS)
