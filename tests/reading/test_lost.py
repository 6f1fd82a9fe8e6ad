"""Runs that a process left open when it died, and runs that are still under way."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stagexec.reading import alive, relation, rows, store
from tests.reading.fake_journal import MS, TINY, WALL0, FakeJournal, FakeRun, S, cached_run


def only_run(journal: FakeJournal, ledger: Path, **load: Any) -> dict[str, Any]:
    journal.write(ledger)
    (run,) = store.load(ledger, **load).runs
    return rows.detail(run)


def sampling(journal: FakeJournal) -> FakeRun:
    """A run in the middle of its third visit, a KSampler, written up to the start of sampling."""
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start().spend(2 * MS)
    run.visit(1, "1", "CheckpointLoaderSimple", [("model_load_residency", 9 * MS)])
    run.visit(2, "2", "CLIPTextEncode", [("conditioning", 5 * MS)])
    return run.switch("sampling", "step", 3, "core.sample", ("3", "KSampler")).flush()


def test_a_run_killed_in_mid_sampling_is_lost_in_sampling_at_the_last_sign_of_life(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = sampling(journal).spend(900 * MS)
    journal.heartbeat(run)
    found = only_run(journal, tmp_path)
    assert (found["outcome"], found["cause"]) == ("lost", "process_died")
    assert (found["error_stage"], found["error_node"]) == ("sampling", "3")
    assert found["stages"]["sampling"] == 900 * MS
    assert found["total_ns"] == found["finished_mono_ns"] - found["accepted_mono_ns"] == journal.now


def test_a_lost_run_is_of_the_provisional_condition_that_a_mark_told(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = sampling(journal).spend(900 * MS)
    run.condition_id = "ab" * 32
    journal.add("mark", run, source="process", name="provisional_condition", detail={"missing": ["cfg"]})
    journal.heartbeat(run)
    found = only_run(journal, tmp_path)
    assert (found["outcome"], found["condition_id"]) == ("lost", "ab" * 32)
    with relation.of_ledger(tmp_path) as runs:
        assert runs.ask("SELECT condition_id FROM runs") == [{"condition_id": "ab" * 32}]


def test_the_visit_that_was_cut_off_is_listed_as_pending_and_its_time_is_wasted(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = sampling(journal).spend(900 * MS)
    journal.heartbeat(run)
    found = only_run(journal, tmp_path)
    cut = found["visits"][-1]
    assert (cut["visit"], cut["node_id"], cut["kind"]) == (3, "3", "pending")
    assert (cut["stage"], cut["origin"], cut["self_ns"]) == ("sampling", "seam", 900 * MS)
    assert found["wasted_ns"] == (9 + 5 + 900) * MS


def test_many_heartbeats_in_one_segment_make_one_segment(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = sampling(journal)
    for _ in range(50):
        run.spend(500 * MS)
        journal.heartbeat(run)
    found = only_run(journal, tmp_path)
    assert [s["stage"] for s in found["segments"]].count("sampling") == 1
    assert found["stages"]["sampling"] == 25 * S


def test_a_heartbeat_that_knows_a_later_segment_splits_the_rest_without_a_gap(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = sampling(journal).spend(300 * MS)
    run.switch("vae_decode", "decode", 4, None, ("4", "VAEDecode")).spend(200 * MS)
    journal.heartbeat(run)
    found = only_run(journal, tmp_path)
    starts = [s["start_ns"] for s in found["segments"]]
    assert starts[1:] == [s["end_ns"] for s in found["segments"]][:-1]
    assert (found["stages"]["sampling"], found["stages"]["vae_decode"]) == (300 * MS, 200 * MS)
    assert (found["error_stage"], found["error_node"]) == ("vae_decode", "4")
    assert any("signs of life" in note for note in found["notes"])


def test_a_stale_heartbeat_does_not_move_a_run_backwards(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start().spend(MS)
    old = list(run.open or [])
    run.visit(1, "3", "KSampler", [("sampling", 5 * MS)]).flush()
    run.open, now = old, run.open
    journal.heartbeat(run)
    run.open = now
    run.spend(MS)
    journal.add("mark", name="anything", detail=None)
    found = only_run(journal, tmp_path)
    assert found["error_stage"] == "executor_overhead"
    assert found["total_ns"] == journal.now


def test_a_run_that_was_only_accepted_is_lost_in_queue_wait(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    journal.now = 3 * MS
    FakeRun(journal, "aaaa", TINY).spend(7 * MS)
    journal.heartbeat()
    found = only_run(journal, tmp_path)
    assert (found["outcome"], found["error_stage"], found["error_node"]) == ("lost", "queue_wait", None)
    assert found["stages"] == {"queue_wait": 7 * MS}
    assert found["wasted_ns"] == 0


def test_a_run_that_died_before_its_first_segments_were_written_waited_and_prepared(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(7 * MS).start().spend(4 * MS)
    journal.heartbeat(run)
    found = only_run(journal, tmp_path)
    assert found["stages"] == {"queue_wait": 7 * MS, "executor_prepare": 4 * MS}
    assert found["error_stage"] == "executor_prepare"


def test_a_run_that_was_executed_and_not_verified_is_lost_in_delivery_commit(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = sampling(journal).spend(MS).execute().flush().spend(MS)
    journal.heartbeat(run)
    found = only_run(journal, tmp_path)
    assert (found["outcome"], found["error_stage"]) == ("lost", "delivery_commit")
    assert found["stages"]["delivery_commit"] == MS


def test_runs_open_at_an_orderly_end_are_lost_too(tmp_path: Path) -> None:
    journal = FakeJournal(socket.gethostname(), os.getpid()).head()
    sampling(journal).spend(MS)
    journal.end("SIGTERM")
    found = only_run(journal, tmp_path, now_wall_ns=WALL0 + journal.now)
    assert (found["outcome"], found["stages"]["sampling"]) == ("lost", MS)


def test_closed_runs_of_a_dead_process_stay_what_they_were(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    cached_run(journal, "aaaa")
    FakeRun(journal, "bbbb", TINY)
    journal.write(tmp_path)
    assert [run.outcome for run in store.load(tmp_path).runs] == ["success", "lost"]


def test_the_open_run_of_a_living_process_has_no_outcome_yet(tmp_path: Path) -> None:
    journal = FakeJournal(socket.gethostname(), os.getpid()).head()
    sampling(journal).spend(200 * MS)
    journal.add("mark", name="anything", detail=None)
    found = only_run(journal, tmp_path, now_wall_ns=WALL0 + journal.now + 2 * S)
    assert (found["outcome"], found["cause"], found["error_stage"]) == (None, None, None)
    assert (found["finished_mono_ns"], found["wasted_ns"]) == (None, None)
    assert found["stages"]["sampling"] == 200 * MS


def test_a_living_pid_whose_journal_went_silent_belongs_to_another_process(tmp_path: Path) -> None:
    journal = FakeJournal(socket.gethostname(), os.getpid()).head()
    sampling(journal)
    found = only_run(journal, tmp_path, now_wall_ns=WALL0 + journal.now + 11 * S)
    assert found["outcome"] == "lost"


def test_a_process_of_another_machine_counts_as_dead(tmp_path: Path) -> None:
    journal = FakeJournal("another-machine", os.getpid()).head()
    sampling(journal)
    assert only_run(journal, tmp_path, now_wall_ns=WALL0 + journal.now)["outcome"] == "lost"


def test_this_process_is_alive_and_an_ended_one_is_not() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(timeout=60)
    here = socket.gethostname()
    assert alive.is_alive(here, os.getpid())
    assert not alive.is_alive(here, ended.pid)
    assert not alive.is_alive(here, None)


@pytest.mark.parametrize("events_left", [1, 2, 3])
def test_a_journal_cut_after_its_head_has_no_runs(tmp_path: Path, events_left: int) -> None:
    journal = FakeJournal().head()
    sampling(journal)
    journal.events = journal.events[:events_left]
    journal.write(tmp_path)
    assert store.load(tmp_path).runs == []
