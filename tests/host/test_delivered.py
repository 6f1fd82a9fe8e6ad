"""What reached a person, whichever way it went, and whose it is: in our loop and in the host's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.host import graphs
from tests.host.graphs import node
from tests.host.witness import Witness, prefix


@pytest.fixture(params=["witness", "host_witness"])
def seer(request: pytest.FixtureRequest) -> Witness:
    """A server of ours, in the native loop and in the host's."""
    found: Witness = request.getfixturevalue(request.param)
    return found


def saves(kind: str, name: str, color: int, size: int = 8) -> graphs.Prompt:
    """EmptyImage, and a node of the pack that writes a file of this name."""
    return graphs.line(graphs.empty(color), node(kind, value=["1", 0], name=name, size=size))


def sends(color: int, client: str = "", batch: int = 2) -> graphs.Prompt:
    """A batch of images that is sent by socket."""
    images = graphs.empty(color, batch=batch)
    return graphs.line(images, node("StxSocket", images=["1", 0], client=client))


def test_messages_that_reach_a_client_are_delivered_and_waste_nothing(seer: Witness, color: int) -> None:
    seen = seer.run(sends(color))
    (sent,) = seen.ledger["messages"]
    assert (sent["node_id"], sent["messages"], sent["reached"], sent["sockets"]) == ("2", 2, 2, 1)
    assert seen.ended == ("success_unverified", None)
    assert (seen.ledger["delivered"], seen.ledger["wasted_ns"]) == (["2"], 0)


def test_messages_to_a_client_that_is_gone_are_not_delivered(seer: Witness, color: int) -> None:
    seen = seer.run(sends(color, client="gone"))
    (sent,) = seen.ledger["messages"]
    assert (sent["messages"], sent["reached"], sent["delivered"]) == (2, 0, False)
    assert seen.ended == ("success_empty", None)
    assert any("reached no client" in note for note in seen.ledger["notes"])


def test_a_file_that_nothing_names_is_found_and_found_again_from_the_cache(seer: Witness, color: int) -> None:
    name = f"{prefix()}.txt"
    for cached in (False, True):
        seen = seer.run(saves("StxUnnamed", name, color))
        (found,) = seen.artifacts("2")
        assert (Path(found["path"]).name, found["state"], found["cached"]) == (name, "verified", cached)
        assert seen.ended == ("success", None)
        assert seen.ledger["wasted_ns"] == 0


def test_of_two_savers_of_one_name_the_first_has_lost_its_file(seer: Witness, color: int) -> None:
    graph = saves("StxFixedName", name := f"{prefix()}.png", color)
    graph["3"] = node("StxFixedName", value=["1", 0], name=name, size=16)
    for _ in range(2):
        seen = seer.run(graph)
        assert sorted(one["state"] for one in seen.ledger["artifacts"]) == ["overwritten", "verified"]
        assert seen.ended == ("partial", "artifact_missing")


def test_a_cached_file_that_another_took_the_place_of_is_not_verified(seer: Witness, color: int) -> None:
    graph = saves("StxFixedName", f"{prefix()}.png", color)
    (made,) = seer.run(graph).artifacts("2")
    assert made["state"] == "verified"
    (other,) = seer.run(saves("StxFixedName", f"{prefix()}.png", color, 16)).artifacts("2")
    seer.run(graph)
    Path(made["path"]).write_bytes(Path(other["path"]).read_bytes())
    seen = seer.run(graph)
    assert [one["state"] for one in seen.artifacts("2")] == ["overwritten"]
    assert seen.ended == ("failed", "artifact_missing")


def test_an_entry_that_is_a_pattern_stands_for_each_of_its_files(seer: Witness, color: int) -> None:
    word = prefix()
    seen = seer.run(saves("StxSequence", f"{word}.%03d.png", color, 3))
    files = [(Path(one["path"]).name, one["state"]) for one in seen.artifacts("2")]
    assert files == [(f"{word}.{at:03}.png", "verified") for at in (1, 2, 3)]
    assert seen.ended == ("success", None)


def test_a_file_that_a_thread_writes_after_its_node_is_waited_for(seer: Witness, color: int) -> None:
    seen = seer.run(saves("StxLateFile", f"{prefix()}.png", color))
    assert [one["state"] for one in seen.artifacts("2")] == ["verified"]
    assert seen.ended == ("success", None)


def test_a_blocked_output_is_as_blocked_when_it_comes_from_the_cache(seer: Witness, color: int) -> None:
    graph = graphs.blocked(prefix=prefix(), color=color)
    graph["4"] = graphs.save(["1", 0], prefix())
    ends = [seer.run(graph) for _ in range(2)]
    assert [one.ended for one in ends] == [("partial", "blocked")] * 2
    assert [one.ledger["error"]["node_id"] for one in ends] == ["3", "3"]


def test_a_maker_of_nan_that_comes_from_the_cache_is_still_to_blame(seer: Witness, color: int) -> None:
    graph = graphs.nan_save(prefix())
    graph["1"]["inputs"]["size"] = 8 + color
    first = seer.run(graph)
    graph["4"] = graph.pop("3")
    graph["4"]["inputs"]["filename_prefix"] = prefix()
    second = seer.run(graph)
    assert [one["first_bad"] for one in first.artifacts("3")] == ["1"]
    assert [one["first_bad"] for one in second.artifacts("4")] == ["1"]
    assert [one.place[0] for one in (first, second)] == ["1", "1"]


def test_a_cancel_that_comes_too_late_has_no_effect_and_wastes_nothing(witness: Witness, color: int) -> None:
    graph = graphs.line(graphs.empty(color), node("StxSleepShow", value=["1", 0], seconds=1.0))
    prompt_id = witness.client.submit(graph)
    time.sleep(0.4)
    witness.client.post("/interrupt", {})
    seen = witness.wait(prompt_id)
    assert seen.ended == ("success_unverified", None)
    assert (seen.ledger["cancel_had_effect"], seen.ledger["wasted_ns"]) == (False, 0)
