"""Wasted time: visits that no delivered artifact depends on, and all that follows a cancel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stagexec.reading import rows, store
from tests.reading.fake_journal import MS, TINY, FakeJournal, FakeRun
from tests.reading.test_runs import expanded

FORK: dict[str, Any] = {
    "1": ("Load", []),
    "2": ("Save", ["1"]),
    "3": ("Slow", ["1"]),
    "4": ("Raise", ["3"]),
}


def wasted(journal: FakeJournal, ledger: Path) -> Any:
    journal.write(ledger)
    (run,) = store.load(ledger).runs
    row = rows.summary(run)
    assert row["wasted_kind"] == "estimated"
    return row["wasted_ns"]


def forked(journal: FakeJournal) -> FakeRun:
    run = FakeRun(journal, "aaaa", FORK, selected_outputs=["2", "4"]).spend(MS).start()
    run.visit(1, "1", "Load", [("node_other", 1)])
    run.visit(2, "2", "Save", [("native_materialize", 10)])
    run.visit(3, "3", "Slow", [("node_other", 100), ("external_wait", 50)])
    return run.visit(4, "4", "Raise", [("node_other", 1000)], kind="failed")


def test_a_successful_run_wastes_nothing(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    forked(journal).artifact("2").artifact("4").execute().close()
    assert wasted(journal, tmp_path) == 0


def test_the_dead_branch_of_a_partial_run_is_wasted_and_host_stages_are_not(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    forked(journal).artifact("2").execute().close("partial", "node_exception")
    assert wasted(journal, tmp_path) == 1100


@pytest.mark.parametrize("fields", [{"state": "missing"}, {"state": "corrupt"}, {"orphan": True}])
def test_an_artifact_that_was_not_delivered_redeems_nothing(tmp_path: Path, fields: dict[str, Any]) -> None:
    journal = FakeJournal().head()
    forked(journal).artifact("2", **fields).execute(outputs={"2": 1}).close("failed", "artifact_missing")
    assert wasted(journal, tmp_path) == 1111


def test_an_unverified_artifact_counts_as_delivered(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    forked(journal).artifact("2", state="unverified").execute().close("partial")
    assert wasted(journal, tmp_path) == 1100


def test_output_that_is_no_file_counts_as_delivered(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    forked(journal).execute(outputs={"4": 1}).close("success_unverified")
    assert wasted(journal, tmp_path) == 10


def test_what_an_expansion_grew_counts_with_its_parent(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    expanded(journal).artifact("3").execute().close()
    assert wasted(journal, tmp_path) == 0


def test_an_artifact_of_an_expansion_child_redeems_its_parent_and_what_that_took(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    expanded(journal).artifact("2bx").execute().close("partial")
    assert wasted(journal, tmp_path) == 5


def looped(journal: FakeJournal, *turns: int, saves: bool = True) -> FakeRun:
    """Node 2 is a loop: each turn i grows into a body b<i>, a saver s<i>, and the next turn l<i>."""
    graph: dict[str, Any] = {"1": ("A", []), "2": ("Loop", ["1"]), "3": ("SaveImage", ["2"])}
    run = FakeRun(journal, "eeee", graph).spend(MS).start().visit(1, "1", "A", [("node_other", 1)])
    parent, taken, visit = "2", "1", 1
    for i, spent in enumerate(turns):
        run.visit(visit + 1, parent, "Loop", [("node_other", 10)], kind="pending")
        grown: dict[str, Any] = {f"b{i}": ("Body", [taken]), f"l{i}": ("Loop", [f"b{i}"])}
        if saves:
            grown[f"s{i}"] = ("SaveImage", [f"b{i}"])
        run.grow(parent, grown, results=(f"l{i}",))
        run.visit(visit + 2, f"b{i}", "Body", [("sampling", spent)], parent=parent)
        visit += 2
        if saves and i < len(turns) - 1:
            run.visit(visit + 1, f"s{i}", "SaveImage", [("native_materialize", 5)], parent=parent).artifact(
                f"s{i}"
            )
            visit += 1
        parent, taken = f"l{i}", f"b{i}"
    return run


def test_a_loop_that_saved_each_turn_wastes_the_turn_that_failed_and_no_other(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    looped(journal, 100, 200, 400).execute(host_status="error").close("partial", "node_exception")
    assert wasted(journal, tmp_path) == 10 + 400


def test_a_loop_that_saved_nothing_wastes_all_its_turns(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    looped(journal, 100, 200, saves=False).execute(host_status="error").close("failed", "node_exception")
    assert wasted(journal, tmp_path) == 1 + 10 + 100 + 10 + 200


def test_who_takes_what_a_loop_gives_needs_every_turn_of_it(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    looped(journal, 100, 200, saves=False).artifact("3").execute().close()
    assert wasted(journal, tmp_path) == 0


def test_a_brother_that_nothing_delivered_came_of_is_wasted(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "eeee", {"1": ("A", []), "2": ("B", ["1"]), "3": ("SaveImage", ["2"])})
    run.spend(MS).start().visit(1, "2", "B", [("node_other", 10)], kind="pending")
    run.grow("2", {"x": ("C", []), "y": ("D", [])}, results=("x",))
    run.visit(2, "x", "C", [("sampling", 100)], parent="2")
    run.visit(3, "y", "D", [("sampling", 400)], parent="2")
    run.visit(4, "2", "B", [("node_other", 1)]).artifact("3").execute().close()
    assert wasted(journal, tmp_path) == 400


def test_a_node_that_gives_one_from_outside_of_its_expansion_needs_that(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    graph: dict[str, Any] = {"1": ("A", []), "2": ("B", []), "3": ("SaveImage", ["2"])}
    run = FakeRun(journal, "eeee", graph).spend(MS).start()
    run.visit(1, "2", "B", [("node_other", 10)], kind="pending")
    run.grow("2", {"x": ("C", [])}, results=("1",))
    run.visit(2, "1", "A", [("sampling", 100)]).visit(3, "x", "C", [("sampling", 400)], parent="2")
    run.visit(4, "2", "B", [("node_other", 1)]).artifact("3").execute().close()
    assert wasted(journal, tmp_path) == 400


def test_everything_after_a_cancel_is_wasted_from_the_middle_of_a_segment_on(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", FORK, selected_outputs=["2", "4"]).spend(MS).start()
    run.visit(1, "1", "Load", [("node_other", 1)])
    run.visit(2, "2", "Save", [("native_materialize", 10)])
    cancel = journal.now - 4
    run.switch("model_load_residency").spend(30)
    run.artifact("2").execute(cancel_ns=cancel).close("cancelled", "user_cancel", cancel_ns=cancel)
    assert wasted(journal, tmp_path) == 4 + 30


def test_a_run_cancelled_in_the_queue_wastes_nothing(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", FORK).spend(500)
    run.close("cancelled", "user_cancel", cancel_ns=100, error={"stage": "queue_wait"})
    assert wasted(journal, tmp_path) == 0


def test_a_failed_run_wastes_all_its_visits(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    run.visit(1, "3", "KSampler", [("sampling", 70), ("model_load_residency", 7)], kind="failed")
    run.execute(host_status="error").close("failed", "oom")
    assert wasted(journal, tmp_path) == 77


def test_cancel_latency_runs_from_the_request_to_the_stop(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    run.visit(1, "3", "KSampler", [("sampling", 1000)], kind="failed")
    stopped = journal.now
    run.execute(cancel_ns=stopped - 850).close(
        "cancelled", "user_cancel", cancel_ns=stopped - 850, stopped_ns=stopped
    )
    journal.write(tmp_path)
    (found,) = store.load(tmp_path).runs
    assert rows.summary(found)["cancel_latency_ns"] == 850


def test_a_cancel_after_the_run_had_stopped_by_itself_has_no_latency(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start().execute()
    stopped = journal.now
    journal.now += MS
    run.close(cancel_ns=journal.now, stopped_ns=stopped)
    journal.write(tmp_path)
    (found,) = store.load(tmp_path).runs
    assert rows.summary(found)["cancel_latency_ns"] is None


def test_a_cancel_that_came_too_late_wastes_nothing_and_had_no_effect(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    run.visit(1, "5", "SaveImage", [("native_materialize", 1000)])
    asked = journal.now - 600
    run.artifact("5").execute(cancel_ns=asked).close(cancel_ns=asked, stopped_ns=journal.now)
    assert wasted(journal, tmp_path) == 0
    (found,) = store.load(tmp_path).runs
    row = rows.summary(found)
    assert (row["cancel_had_effect"], row["cancel_latency_ns"]) == (False, None)


@pytest.mark.parametrize(("reached", "lost"), [(1, 0), (0, 1000)])
def test_messages_keep_from_waste_only_where_they_reached_a_client(
    tmp_path: Path, reached: int, lost: int
) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    run.visit(1, "5", "SaveImageWebsocket", [("native_materialize", 1000)])
    detail = {"messages": 1, "reached": reached, "sockets": reached, "whole": True}
    journal.add("mark", run, name="messages", detail=detail, node_id="5", source="seam")
    run.execute().close("success_unverified" if reached else "success_empty")
    assert wasted(journal, tmp_path) == lost


def test_a_node_whose_file_was_overwritten_has_delivered_nothing(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = forked(journal).artifact("2").artifact("4", state="overwritten").execute()
    run.close("partial", "artifact_missing")
    assert wasted(journal, tmp_path) == 1100
