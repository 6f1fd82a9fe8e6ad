"""How runs fail: each keeps its segments and gets its outcome, cause, place and wasted time."""

from __future__ import annotations

import pytest

from tests.host import graphs
from tests.host.witness import MS, Witness, prefix


def assert_client_saw_the_end(witness: Witness, seen: object) -> None:
    """An execution_error and, last, `executing {node: null}`; and a history entry."""
    assert len(seen.of_type("execution_error")) == 1  # type: ignore[attr-defined]
    last = seen.messages[-1]  # type: ignore[attr-defined]
    assert (last["type"], last["data"]["node"]) == ("executing", None)
    history = seen.history  # type: ignore[attr-defined]
    assert history is not None
    assert "execution_error" in [name for name, _ in history["status"]["messages"]]


def test_an_exception_has_its_place_its_type_and_its_wasted_time(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.fails("StxRaise", 0.1, color))
    assert seen.ended == ("failed", "node_exception")
    assert seen.place == ("2", "StxRaise", None)
    error = seen.ledger["error"]
    assert (error["stage"], error["exception_type"]) == ("node_other", "builtins.RuntimeError")
    assert error["visit"] == seen.visits_of("2")[0]["visit"]
    assert seen.visits_of("2")[0]["kind"] == "failed"
    assert seen.ledger["wasted_ns"] >= 100 * MS
    assert seen.ledger["wasted_kind"] == "estimated"
    assert set(seen.ledger["not_executed"]) == {"2", "3"}
    assert_client_saw_the_end(witness, seen)


def test_the_text_of_an_exception_is_not_kept_unless_asked_for(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.fails("StxRaise", 0.0, color))
    assert seen.ledger["error"]["message"] is None
    journal = "".join(path.read_text() for path in witness.folder.rglob("*.jsonl"))
    assert seen.prompt_id in journal
    assert "stx: a node failed" not in journal


def test_an_exception_in_an_async_node_is_placed_at_it(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.fails("StxAsyncFail", 0.1, color))
    assert seen.ended == ("failed", "node_exception")
    assert seen.place == ("2", "StxAsyncFail", None)
    assert [visit["kind"] for visit in seen.visits_of("2")] == ["pending", "failed"]
    (span,) = seen.ledger["spans"]
    assert (span["lane"], span["detail"]) == ("task:2", {"outcome": "error"})
    assert span["end_ns"] - span["start_ns"] >= 100 * MS


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        ("StxSystemExit", "builtins.SystemExit"),
        ("StxKeyboardInterrupt", "builtins.KeyboardInterrupt"),
        ("StxAsyncSystemExit", "builtins.SystemExit"),
    ],
)
def test_an_exit_in_a_node_ends_its_prompt_and_the_next_one_runs(
    witness: Witness, color: int, node: str, kind: str
) -> None:
    seen = witness.run(graphs.fails(node, 0.05, color))
    assert seen.ended == ("failed", "worker_escape")
    assert seen.place == ("2", node, None)
    assert seen.ledger["error"]["exception_type"] == kind
    assert_client_saw_the_end(witness, seen)
    assert seen.of_type("execution_error")[0]["node_id"] == "2"

    after = witness.run(graphs.invert_save(prefix(), color))
    assert after.ended == ("success", None)
    assert after.ledger["cached_nodes"] == ["1"]


def test_an_unknown_class_out_of_an_expansion_is_a_missing_node(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.expand(prefix(), 0.0, color, "StxExpandUnknown"))
    assert seen.ended == ("failed", "missing_node")
    assert seen.place == ("2", "StxExpandUnknown", None)
    assert_client_saw_the_end(witness, seen)


def test_a_cycle_made_by_an_expansion_is_a_cycle(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.expand(prefix(), 0.0, color, "StxExpandCycle"))
    assert seen.ended == ("failed", "cycle")
    assert seen.place == ("2", "StxExpandCycle", None)
    assert_client_saw_the_end(witness, seen)


def test_a_list_item_that_fails_is_named_by_its_index(witness: Witness, color: int) -> None:
    start = color * 100  # numbers that no other test has, so nothing is cached
    seen = witness.run(graphs.list_fails(start + 5, start))
    assert seen.ended == ("failed", "node_exception")
    assert seen.place == ("2", "StxFailAt", 5)
    (visit,) = seen.visits_of("2")
    assert (visit["list_index"], visit["calls"], visit["kind"]) == (5, 6, "failed")


def test_a_list_node_that_is_not_mapped_has_no_list_index(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.fails("StxRaise", 0.0, color))
    assert seen.visits_of("2")[0]["list_index"] is None


@pytest.mark.parametrize("message", ["", "stx: not today"])
def test_a_blocker_stops_what_is_behind_it_and_is_no_error(
    witness: Witness, color: int, message: str
) -> None:
    seen = witness.run(graphs.blocked(message, prefix(), color))
    assert seen.ended == ("success_empty", "blocked")
    assert seen.place[:2] == ("3", "SaveImage")
    assert seen.visits_of("3")[0]["kind"] == "blocked"
    (row,) = seen.ledger["blocked"]
    assert row["message"] == (None if not message else "(text not recorded)")
    shown = [data["exception_message"] for data in seen.of_type("execution_error")]
    assert shown == ([f"Execution Blocked: {message}"] if message else [])
    assert seen.ledger["host_status"] == "success"


def test_a_blocked_branch_beside_a_delivered_one_is_partial(witness: Witness, color: int) -> None:
    graph = graphs.blocked("", prefix(), color)
    graph["9"] = graphs.save(["1", 0], prefix())
    seen = witness.run(graph)
    assert seen.ended == ("partial", "blocked")
    assert [one["node_id"] for one in seen.ledger["artifacts"]] == ["9"]


def test_an_output_node_without_any_output_is_a_success_that_is_empty(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.shows("StxSilent", color))
    assert seen.ended == ("success_empty", None)


def test_an_output_that_is_no_file_is_a_success_that_nobody_verified(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.shows("StxText", color))
    assert seen.ended == ("success_unverified", None)
    assert seen.ledger["wasted_ns"] == 0


def test_a_prompt_that_does_not_validate_is_no_run(witness: Witness, color: int) -> None:
    from stagexec.bench.client import Refused
    from stagexec.reading import store

    before = len(store.load(witness.folder).runs)
    with pytest.raises(Refused) as refused:
        witness.client.submit(graphs.line(graphs.node("StxNoSuchClass")))
    assert refused.value.status == 400
    witness.run(graphs.invert_save(prefix(), color))
    assert len(store.load(witness.folder).runs) == before + 1


def test_a_failure_after_another_has_a_place_of_its_own(witness: Witness, color: int) -> None:
    first = witness.run(graphs.fails("StxRaise", 0.0, color))
    second = witness.run(graphs.list_fails(color * 100 + 7, color * 100))
    third = witness.run(graphs.invert_save(prefix(), color))
    assert (first.place, second.place) == (("2", "StxRaise", None), ("2", "StxFailAt", 7))
    assert third.ended == ("success", None)
    assert third.ledger["error"] is None
