"""The runs of a process: accepted, executed, closed; and events with exactly the fields of the format."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from stagexec.format import COMMON, EVENTS, OPTIONAL
from stagexec.record import clock, live, paths
from stagexec.record.journal import Journal, event
from tests.executor.tour import PROCESS, travel
from tests.record.conftest import Disk, Event, events_in, mark, started_run

FIELDS: dict[str, Any] = {
    "selected_outputs": ["2"],
    "nodes": ["1", "2"],
    "classes": ["Load", "Save"],
    "links": [[], [0]],
    "output_nodes": ["2"],
    "number_of_nodes": 2,
    "number": 7,
    "validate_ns": 5,
    "prompt_hash": "p",
    "seeds": [["1", "seed", 3]],
}


ON_THE_TOUR = {
    "artifact",
    "cached",
    "graph_growth",
    "host_facts",
    "mark",
    "process_end",
    "process_start",
    "run_accepted",
    "run_closed",
    "run_executed",
    "run_started",
    "seams",
    "segments",
    "spans",
    "visits",
}
"""Heartbeats and losses have a test of their own; other events need a device or a real host's condition."""


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A process with a journal."""
    live.begin_process(tmp_path, **PROCESS)
    return tmp_path


def written(ledger: Path) -> list[Event]:
    assert live.journal is not None
    assert live.journal.flush()
    return events_in(ledger)


def of(events: list[Event], event_type: str, run: Any = None) -> list[Event]:
    wanted = [one for one in events if one["event_type"] == event_type]
    return [one for one in wanted if run is None or one["run_id"] == run.run_id]


# ---- the format --------------------------------------------------------------------------------------


def assert_fields(events: list[Event]) -> None:
    """Exactly the common fields and the type's own, and of the optional ones any."""
    for one in events:
        own = EVENTS[one["event_type"]]
        assert set(one) - set(OPTIONAL) == (set(own) | set(COMMON)) - set(OPTIONAL), one
        assert set(own) <= set(one), one


def test_every_event_of_a_tour_has_exactly_the_fields_of_the_format(tmp_path: Path) -> None:
    travel(tmp_path)
    assert live.journal is not None
    live.journal.stop("exit")
    events = events_in(tmp_path)
    assert_fields(events)
    seen = {one["event_type"] for one in events}
    assert seen >= ON_THE_TOUR


def test_heartbeats_and_losses_have_exactly_the_fields_of_the_format(
    tmp_path: Path, disk: Disk, no_waiting: None
) -> None:
    journal = Journal(tmp_path)
    disk.fill()
    journal.put(mark(1))
    journal.tick()
    disk.room = float("inf")
    journal.tick()
    journal.open_run(started_run())
    journal.tick()
    journal._last_write = 0
    journal.tick()
    events = events_in(tmp_path)
    assert {"heartbeat", "lost_events"} <= {one["event_type"] for one in events}
    assert_fields(events)
    (row,) = of(events, "heartbeat")[-1]["open"]
    assert set(row) == set(EVENTS["heartbeat"]["open"].split("{")[1].split("}")[0].split(", "))


def test_columns_of_segments_visits_and_spans_have_one_length(tmp_path: Path) -> None:
    travel(tmp_path)
    assert live.journal is not None
    live.journal.stop("exit")
    for one in events_in(tmp_path):
        if one["event_type"] in ("segments", "visits", "spans"):
            columns = [one[name] for name in EVENTS[one["event_type"]] if name != "open"]
            assert len({len(column) for column in columns}) == 1


def test_no_common_field_is_missing_from_an_event_that_says_nothing_else() -> None:
    assert set(event("mark", source="seam")) == set(COMMON)


# ---- accepted, started, finished, closed ------------------------------------------------------------


def test_a_run_is_a_partition_from_its_acceptance_to_its_close(ledger: Path) -> None:
    run = live.accept("p", FIELDS)
    assert run is not None
    live.start("p")
    run.enter("sampling")
    live.finish(run, {"host_status": "success"}, {})
    events = written(ledger)
    segments = of(events, "segments", run)
    starts = [at for one in segments for at in one["start_ns"]]
    ends = [at for one in segments for at in one["end_ns"]]
    (closed,) = of(events, "run_closed", run)
    assert starts[0] == run.accepted_ns == closed["accepted_ns"]
    assert ends[-1] == closed["finished_ns"]
    assert ends[:-1] == starts[1:]
    assert [stage for one in segments for stage in one["stage"]] == [
        "queue_wait",
        "executor_prepare",
        "sampling",
        "executor_prepare",
        "delivery_commit",
    ]
    assert closed["segment_count"] == 5


def test_what_was_said_of_a_prompt_is_in_its_acceptance(ledger: Path) -> None:
    run = live.accept("p", FIELDS, "c")
    (accepted,) = of(written(ledger), "run_accepted", run)
    assert {name: accepted[name] for name in FIELDS} == FIELDS
    assert accepted["condition_id"] == "c"
    assert accepted["direct"] is False
    assert abs(clock.mono_ns(accepted["ts_wall"]) - accepted["ts_mono_ns"]) < 1_000_000_000


def test_only_the_first_run_of_a_process_is_cold(ledger: Path) -> None:
    for prompt_id in ("a", "b"):
        live.accept(prompt_id, {})
        run = live.start(prompt_id)
        assert run is not None
        live.finish(run, {}, {})
    classes = [one["startup_class"] for one in of(written(ledger), "run_started")]
    assert classes == ["process_cold", "warm"]


def test_a_prompt_that_no_queue_accepted_is_accepted_when_it_starts(ledger: Path) -> None:
    run = live.start("p")
    (accepted,) = of(written(ledger), "run_accepted", run)
    assert accepted["direct"] is True
    assert live.run is run


def test_two_prompts_of_one_id_are_two_runs_taken_in_order(ledger: Path) -> None:
    first, second = live.accept("p", {}), live.accept("p", {})
    taken = live.start("p")
    assert taken is first
    live.finish(taken, {}, {})
    assert live.start("p") is second


def test_a_run_that_nobody_filed_is_finished_when_the_next_one_starts(ledger: Path) -> None:
    first = live.start("a")
    second = live.start("b")
    events = written(ledger)
    (executed,) = of(events, "run_executed", first)
    assert executed["host_status"] is None
    assert len(of(events, "run_closed", first)) == 1
    assert live.run is second


def test_prompts_that_left_the_queue_are_cancelled_in_queue_wait(ledger: Path) -> None:
    keep, drop, twice = (live.accept(prompt_id, {}) for prompt_id in ("keep", "drop", "keep"))
    live.forget([("keep", object())])
    events = written(ledger)
    closed = {one["run_id"]: one for one in of(events, "run_closed")}
    assert drop is not None
    assert twice is not None
    assert set(closed) == {drop.run_id, twice.run_id}
    end = closed[drop.run_id]
    assert (end["outcome"], end["cause"], end["error"]["stage"]) == ("cancelled", "user_cancel", "queue_wait")
    assert end["segment_count"] == 1
    assert of(events, "segments", drop)[0]["stage"] == ["queue_wait"]
    assert live.start("keep") is keep


def test_a_cancel_counts_once_with_the_time_of_the_first(ledger: Path) -> None:
    run = live.start("p")
    assert run is not None
    thread = threading.Thread(target=live.cancel_requested)
    thread.start()
    thread.join()
    first = run.cancel_ns
    live.cancel_requested()
    assert run.cancel_ns == first is not None
    live.finish(run, {}, {})
    events = written(ledger)
    assert [one["name"] for one in of(events, "mark", run)] == ["cancel_requested"]
    assert of(events, "run_closed", run)[0]["cancel_ns"] == first


def test_a_cancel_without_a_run_is_nobodys(ledger: Path) -> None:
    live.cancel_requested()
    assert of(written(ledger), "mark") == []


def test_only_the_worker_thread_is_in_execution(ledger: Path) -> None:
    run = live.start("p")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(live.current_for_thread()))
    thread.start()
    thread.join()
    assert found == [None]
    assert live.current_for_thread() is run
    assert run is not None
    live.finish(run, {}, {})
    assert live.current_for_thread() is None


def test_what_a_node_left_open_ends_when_the_run_is_executed(ledger: Path) -> None:
    run = live.start("p")
    assert run is not None
    run.next_visit("1", "Torn")
    run.enter("sampling")
    run.enter("vae_decode")
    taken = []
    live.after_execution = lambda one, history: taken.append((one, history))
    live.finish(run, {}, {"outputs": {}})
    assert taken == [(run, {"outputs": {}})]
    assert run.ledger.open is not None
    assert run.ledger.open[:2] == ("delivery_commit", "verify")
    assert run.ledger.open[3] is None
    assert run.ledger.depth() == 0


def test_callbacks_are_told_of_each_closed_run(ledger: Path) -> None:
    told = []
    live.closed_callbacks.append(lambda run, outcome, cause: told.append((run, outcome, cause)))
    run = live.start("p")
    assert run is not None
    live.close(run, "failed", "oom", None)
    assert told == [(run, "failed", "oom")]


def test_messages_are_kept_only_where_text_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert live.message_of(ValueError("a prompt")) is None
    monkeypatch.setattr(live, "record_text", True)
    assert live.message_of(ValueError("a prompt")) == "a prompt"


def test_without_a_journal_everything_still_works() -> None:
    run = live.accept("p", FIELDS)
    assert live.start("p") is run
    assert run is not None
    run.mark("x", {})
    live.finish(run, {}, {})
    assert run.ledger.open is None


@pytest.mark.parametrize(("record_text", "text"), [(False, None), (True, "ValueError: a prompt's words")])
def test_a_fault_is_in_the_journal_of_its_run_its_text_only_where_text_is_kept(
    ledger: Path, faults_expected, monkeypatch: pytest.MonkeyPatch, record_text: bool, text: str | None
) -> None:
    from stagexec.record.guard import note

    monkeypatch.setattr(live, "record_text", record_text)
    run = live.start("p")
    try:
        raise ValueError("a prompt's words")
    except ValueError as error:
        note("somewhere", error)
    (fault,) = of(written(ledger), "mark", run)
    assert fault["name"] == "fault"
    at = fault["detail"].pop("at")
    assert at.rpartition(":")[0] == __name__
    assert fault["detail"] == {"where": "somewhere", "error": text, "type": "ValueError"}


def test_a_closed_run_is_let_go_of(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gc
    import weakref

    run = live.start("p")
    assert run is not None
    gone = weakref.ref(run)
    live.finish(run, {}, {})
    written(ledger)
    del run
    gc.collect()
    assert gone() is None


# ---- where the ledger lies --------------------------------------------------------------------------


def test_the_ledger_lies_where_it_was_asked_for_else_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGEXEC_LEDGER", str(tmp_path / "environment"))
    monkeypatch.setattr(paths, "host_folder", tmp_path / "host")
    assert paths.ledger_folder(str(tmp_path / "asked")) == tmp_path / "asked"
    assert paths.ledger_folder() == tmp_path / "environment"
    monkeypatch.delenv("STAGEXEC_LEDGER")
    assert paths.ledger_folder() == tmp_path / "host"


def test_without_a_running_host_the_ledger_is_that_of_the_tree_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STAGEXEC_LEDGER", raising=False)
    monkeypatch.setattr(paths, "host_folder", None)
    tree = tmp_path / "tree"
    (tree / "user").mkdir(parents=True)
    (tree / "execution.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMFYUI_PATH", str(tree))
    assert paths.ledger_folder() == tree / "user" / "__stagexec"
    monkeypatch.delenv("COMFYUI_PATH")
    monkeypatch.chdir(tree)
    assert paths.ledger_folder() == tree / "user" / "__stagexec"
    monkeypatch.chdir(tmp_path)
    assert paths.ledger_folder() == paths.default_folder()


def test_a_journal_file_names_its_machine_and_process(ledger: Path) -> None:
    written(ledger)
    (file,) = ledger.glob("journal/*/*.jsonl")
    name = f"{socket.gethostname()}-{os.getpid()}-{clock.ANCHOR_WALL_NS}.jsonl"
    assert file.name == name
