"""Why a run ended, told by the evidence, the same in our loop and in the host's."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.host import graphs
from tests.host.graphs import node
from tests.host.witness import MS, Seen, Witness, prefix


@pytest.fixture(params=["native", "host"])
def either(request: pytest.FixtureRequest) -> Witness:
    """A witness in each of the two loops."""
    found: Witness = request.getfixturevalue("witness" if request.param == "native" else "host_witness")
    return found


def presses(how: str, color: int, seconds: float = 0.2) -> graphs.Prompt:
    """EmptyImage → a node that presses interrupt → a sleeping node → another → SaveImage."""
    return graphs.line(
        graphs.empty(color),
        node("StxPress", value=["1", 0], how=how),
        node("StxSleep", value=["2", 0], seconds=seconds),
        node("StxSleep", value=["3", 0], seconds=0.0),
        graphs.save(["4", 0], prefix()),
    )


def told(seen: Seen) -> list[str]:
    """The node that the history names for the error, of each message that names one."""
    assert seen.history is not None
    named = ("execution_error", "execution_interrupted")
    return [data["node_id"] for event, data in seen.history["status"]["messages"] if event in named]


@pytest.mark.parametrize("how", ["nodes", "management", "raises", "thread", "later", "http"])
def test_a_node_that_interrupts_is_no_person_however_it_does_it(
    witness: Witness, color: int, how: str
) -> None:
    seen = witness.run(presses(how, color, 0.6 if how == "later" else 0.1))
    assert seen.ended == ("failed", "interrupted_by_node")
    assert seen.ledger["cancel_latency_ns"] is None
    assert seen.marks("cancel_requested") == []
    assert [seen.place[0]] == told(seen)
    if how in ("nodes", "management"):
        assert seen.ledger["error"]["message"] == "node 2 (StxPress) asked for the interrupt"


def test_a_node_that_interrupts_in_the_host_s_loop_is_no_person(host_witness: Witness, color: int) -> None:
    seen = host_witness.run(presses("nodes", color))
    assert (seen.ended, [seen.place[0]]) == (("failed", "interrupted_by_node"), told(seen))


@pytest.mark.parametrize("on_thread", [False, True])
def test_a_person_who_cancels_by_a_pack_s_route_is_a_person(
    witness: Witness, color: int, on_thread: bool
) -> None:
    prompt_id = witness.client.submit(graphs.slow(1.0, prefix(), color))
    witness.client.wait_for("executing", prompt_id, node="2")
    time.sleep(0.1)
    witness.client.post("/stx/stop", {"thread": on_thread})
    seen = witness.wait(prompt_id)
    assert seen.ended == ("cancelled", "user_cancel")
    assert 100 * MS < seen.ledger["cancel_latency_ns"] < seen.ledger["total_ns"]


def loop(color: int, **inputs: Any) -> graphs.Prompt:
    """EmptyImage → a loop of four turns of 0.25 s → SaveImage."""
    given = {"at": 0, "turns": 4, "fails_at": -1, "seconds": 0.25, "prefix": prefix(), **inputs}
    return graphs.line(
        graphs.empty(color), node("StxLoop", image=["1", 0], **given), graphs.save(["2", 0], prefix())
    )


def test_a_loop_that_saves_each_turn_wastes_the_turn_that_fails(either: Witness, color: int) -> None:
    seen = either.run(loop(color, fails_at=2))
    assert seen.ended == ("partial", "node_exception")
    assert len([one for one in seen.ledger["artifacts"] if one["state"] == "verified"]) == 2
    slept = [v for v in seen.ledger["visits"] if v["class_type"] == "StxSleep"]
    assert len(slept) == 3
    assert slept[-1]["self_ns"] <= seen.ledger["wasted_ns"] < slept[-1]["self_ns"] + 300 * MS
    assert seen.place[:2] == ("2", "StxRaise")
    assert told(seen) == ["2"]
    parents = {one["node_id"]: one["parent"] for one in seen.ledger["unexpected"]}
    assert parents
    assert all(parents.values())
    assert seen.ledger["rollup"]["2"]["nodes"] >= 9


def test_a_loop_that_comes_to_its_end_wastes_nothing(either: Witness, color: int) -> None:
    seen = either.run(loop(color, turns=2, seconds=0.1, prefix=""))
    assert seen.ended == ("success", None)
    assert seen.ledger["wasted_ns"] == 0


def test_a_loop_that_saved_nothing_wastes_every_turn(either: Witness, color: int) -> None:
    seen = either.run(loop(color, turns=2, fails_at=1, seconds=0.2, prefix=""))
    assert seen.ended == ("failed", "node_exception")
    assert seen.ledger["wasted_ns"] >= 400 * MS


def test_the_words_of_another_allocator_behind_a_pack_s_error_are_oom(either: Witness, color: int) -> None:
    seen = either.run(graphs.fails("StxOOMText", 0.0, color))
    assert seen.ended == ("failed", "oom")
    assert seen.ledger["error"]["exception_type"] == "builtins.ValueError"


def test_the_error_s_node_is_the_one_in_the_history_when_a_node_is_gone(either: Witness, color: int) -> None:
    graph = graphs.line(
        graphs.empty(color),
        node("StxForgets", image=["1", 0], victim="5"),
        graphs.save(["2", 0], prefix()),
        node("StxSleep", value=["2", 0], seconds=0.05),
        graphs.save(["4", 0], prefix()),
    )
    seen = either.run(graph)
    assert seen.ended[1] == "missing_node"
    assert [seen.ledger["error"]["node_id"]] == told(seen)
    assert seen.place[1] is not None


def test_a_second_encoder_that_writes_nothing_makes_nothing_good(witness: Witness, color: int) -> None:
    graph = graphs.line(
        graphs.empty(color),
        node("StxSecondEncoder", value=["1", 0], codec="libx264", count=2, filename_prefix=prefix()),
    )
    seen = witness.run(graph)
    assert seen.ended == ("failed", "encode_failed")
    assert seen.ledger["error_stage"] == "encode_mux"
    encoders = [span["detail"] for span in seen.ledger["spans"] if span["detail"].get("role") == "encode"]
    codes = [detail["exit_code"] for detail in encoders]
    assert [code == 0 for code in codes] == [False, True]
    assert seen.marks("child_recovered") == []
