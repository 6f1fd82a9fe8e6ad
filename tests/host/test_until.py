"""Stop points: a run ends after native output, postprocess, encode or commit, and says so."""

from __future__ import annotations

import pytest

from tests.host.graphs import Prompt, empty, line, node, save
from tests.host.test_deliver_nodes import deliver_node, encode_node
from tests.host.witness import Seen, Witness, prefix


def pipeline(color: int, name: str) -> Prompt:
    """Frames "1" → SaveImage "2"; postprocess "3" → SaveImage "4", Encode "5" → Deliver "6", SaveWEBM "7"."""
    webm = node("SaveWEBM", images=["3", 0], filename_prefix=f"{name}-webm", codec="vp9", fps=8.0, crf=32.0)
    return line(
        empty(color, size=64, batch=3),
        save(["1", 0], f"{name}-native"),
        node("ImageInvert", image=["1", 0]),
        save(["3", 0], f"{name}-post"),
        encode_node(["3", 0]),
        deliver_node(["5", 0], f"{name}-final"),
        webm,
    )


def stopped(witness: Witness, color: int, point: str | None, **more: object) -> Seen:
    extra = {"stagexec.until": point} if point else {}
    return witness.run(pipeline(color, prefix("until")), extra_data=extra, **more)


def visited(seen: Seen) -> set[str]:
    return {visit["node_id"] for visit in seen.ledger["visits"]}


@pytest.mark.parametrize(
    ("point", "nodes"),
    [
        ("native", {"1", "2"}),
        ("postprocess", {"1", "2", "3", "4"}),
        ("encode", {"1", "2", "3", "4", "5", "7"}),
        ("commit", {"1", "2", "3", "4", "5", "6", "7"}),
        (None, {"1", "2", "3", "4", "5", "6", "7"}),
    ],
)
def test_a_run_ends_after_its_stop_point(
    witness: Witness, color: int, point: str | None, nodes: set[str]
) -> None:
    seen = stopped(witness, color, point)
    assert seen.ended == ("success", None)
    assert visited(seen) == nodes
    assert seen.history is not None
    assert seen.history["status"]["status_str"] == "success"


def test_the_host_loop_stops_at_the_same_point(host_witness: Witness, color: int) -> None:
    seen = stopped(host_witness, color, "postprocess")
    assert seen.ended == ("success", None)
    assert visited(seen) == {"1", "2", "3", "4"}


def test_a_run_that_was_asked_to_deliver_nothing_is_a_success(witness: Witness, color: int) -> None:
    prompt = line(
        empty(color, size=64, batch=3), encode_node(["1", 0]), deliver_node(["2", 0], prefix("nothing"))
    )
    seen = witness.run(prompt, extra_data={"stagexec.until": "native"})
    assert seen.ended == ("success", None)
    assert visited(seen) == {"1"}
    assert seen.ledger["artifacts"] == []


def test_the_encoder_s_closed_file_is_what_a_run_to_encode_delivers(witness: Witness, color: int) -> None:
    prompt = line(
        empty(color, size=64, batch=3), encode_node(["1", 0]), deliver_node(["2", 0], prefix("closed"))
    )
    seen = witness.run(prompt, extra_data={"stagexec.until": "encode"})
    assert seen.ended == ("success", None)
    (one,) = seen.artifacts("2")
    assert (one["state"], one["path"].endswith(".mp4")) == ("verified", True)


def test_the_stop_is_recorded_and_makes_a_condition_of_its_own(witness: Witness, color: int) -> None:
    whole, part = stopped(witness, color, None), stopped(witness, color, "postprocess")
    assert set(part.ledger["selected_outputs"]) == {"2", "4", "3"}
    assert whole.ledger["condition_id"] != part.ledger["condition_id"]


def test_partial_targets_and_a_stop_point_go_together(witness: Witness, color: int) -> None:
    seen = stopped(witness, color, "postprocess", partial_execution_targets=["6"])
    assert seen.ended == ("success", None)
    assert visited(seen) == {"1", "3"}


def test_a_point_that_there_is_not_is_ignored_with_a_word(witness: Witness, color: int) -> None:
    seen = stopped(witness, color, "the end")
    assert visited(seen) == {"1", "2", "3", "4", "5", "6", "7"}
    assert "unknown stop point 'the end'" in witness.server.log()


def test_a_failure_before_the_stop_point_is_a_failure(witness: Witness, color: int) -> None:
    prompt = line(
        empty(color),
        node("StxRaise", value=["1", 0], seconds=0.0),
        node("SaveWEBM", images=["2", 0], filename_prefix="x", codec="vp9", fps=8.0, crf=32.0),
    )
    seen = witness.run(prompt, extra_data={"stagexec.until": "postprocess"})
    assert seen.ended == ("failed", "node_exception")
