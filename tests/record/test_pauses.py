"""A full garbage collection is in no run that has been executed, and is named in one that executes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagexec.record import after, held, live, pauses
from stagexec.record.run import Run

ROOT = Path(__file__).resolve().parents[2]
MS = 1_000_000


class Now:
    """A clock that is moved by hand, in ms."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms * MS


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    clock = Now()
    monkeypatch.setattr(pauses.clock, "now_ns", clock)
    monkeypatch.setattr(pauses, "_paused", (0, None))
    return clock


@pytest.fixture
def filed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The events that are filed."""
    events: list[dict[str, Any]] = []

    def keep(of: Any, event_type: str, **fields: Any) -> None:
        events.append({"run": of, "type": event_type, **fields})

    monkeypatch.setattr(live, "journal_event", keep)
    monkeypatch.setattr(after, "_phases", {})
    monkeypatch.setattr(after, "_last", {})
    return events


def collect(now: Now, ms: int) -> None:
    """The whole heap is collected for so long, by the calling thread."""
    pauses._pause("start", {"generation": 2})
    now.ms += ms
    pauses._pause("stop", {"generation": 2})


def executed(now: Now) -> Run:
    """A run that was accepted 10 ms ago, and filed by the host now."""
    run = Run("prompt", (now.ms - 10) * MS, now)
    run.ledger.switch("delivery_commit", "verify")
    held.begin(run)
    return run


# ---- a run that has been executed ------------------------------------------------------------------------


def test_the_time_of_a_check_is_told_without_the_collections_that_stopped_it(now: Now, filed: Any) -> None:
    now.ms = 10
    run = executed(now)
    now.ms += 3
    collect(now, 400)
    now.ms += 2
    collect(now, 300)
    now.ms += 1
    assert held.end_of(run) == (16 * MS, 700 * MS)


def test_a_collection_under_way_counts_up_to_now(now: Now, filed: Any) -> None:
    run = executed(now)
    now.ms += 3
    pauses._pause("start", {"generation": 2})
    now.ms += 50
    assert held.end_of(run) == (3 * MS, 50 * MS)
    pauses._pause("stop", {"generation": 2})
    now.ms += 1
    assert held.end_of(run) == (4 * MS, 50 * MS)


def test_collections_before_the_run_was_executed_are_not_taken_off(now: Now, filed: Any) -> None:
    collect(now, 400)
    run = executed(now)
    now.ms += 5
    assert held.end_of(run) == (405 * MS, 0)


def test_waiting_for_a_thread_of_ours_is_not_in_the_run_nor_counted_twice_under_a_collection(
    now: Now, filed: Any
) -> None:
    run = executed(now)
    held.waits(run, True)
    now.ms += 30
    collect(now, 400)
    held.waits(run, True)
    now.ms += 20
    held.waits(run, False)
    now.ms += 4
    assert held.end_of(run) == (4 * MS, 450 * MS)


def test_a_run_with_files_ends_with_its_last_check_and_one_without_as_it_was_filed(
    now: Now, filed: Any
) -> None:
    runs = [executed(now), executed(now)]
    now.ms += 7
    for run, with_files in zip(runs, (True, False), strict=True):
        held.over(run, with_files)
    now.ms += 100
    assert [held.end_of(run)[0] for run in runs] == [7 * MS, 0]


def test_work_of_ours_aside_is_not_in_the_run_and_is_filed_as_work_after_it(now: Now, filed: Any) -> None:
    run = executed(now)

    def work() -> None:
        now.ms += 800

    held.aside(run, "profile", work)
    now.ms += 2
    assert held.end_of(run) == (2 * MS, 800 * MS)
    told = filed[-1]
    assert (told["type"], told["run"], told["after"]) == ("after_run", None, run.run_id)
    assert (told["what"], told["start_ns"], told["end_ns"]) == ("profile", 0, 800 * MS)


def test_the_clock_without_pauses_never_goes_back_while_another_thread_collects() -> None:
    pauses.watch()
    over = threading.Event()

    def collects() -> None:
        while not over.is_set():
            gc.collect()

    collector = threading.Thread(target=collects)
    gc.freeze()
    collector.start()
    try:
        seen = [pauses.going_ns() for _ in range(20_000)]
    finally:
        over.set()
        collector.join()
        gc.unfreeze()
        gc.callbacks.remove(pauses._pause)
    assert seen == sorted(seen)


def test_a_pause_that_is_told_late_does_not_set_the_clock_back(
    now: Now, monkeypatch: pytest.MonkeyPatch
) -> None:
    now.ms = 10
    assert pauses.going_ns() == 10 * MS
    monkeypatch.setattr(pauses, "_paused", (0, 9 * MS))
    assert pauses.going_ns() == 10 * MS


def test_a_young_collection_is_not_looked_at(now: Now) -> None:
    pauses._pause("start", {"generation": 0})
    now.ms += 5
    pauses._pause("stop", {"generation": 0})
    assert pauses.going_ns() == 5 * MS


# ---- a run that executes ---------------------------------------------------------------------------------


@pytest.fixture
def executing(monkeypatch: pytest.MonkeyPatch, now: Now) -> Iterator[Run]:
    """The run that this thread executes."""
    run = Run("prompt", 0, now)
    run.ledger.switch("sampling")
    monkeypatch.setattr(live, "run", run)
    monkeypatch.setattr(live, "running", {threading.get_ident(): run})
    monkeypatch.setattr(pauses, "_is_automatic", lambda: True)
    return run


def rows(run: Run) -> list[tuple[Any, ...]]:
    run.ledger.close(run.clock())
    return [(open_[0], open_[1], (end - open_[2]) // MS) for open_, end in run.ledger.pending]


def test_a_collection_that_python_begins_in_a_run_is_a_part_of_the_loops_time(
    executing: Run, now: Now
) -> None:
    now.ms = 10
    collect(now, 400)
    now.ms += 5
    assert rows(executing)[1:] == [
        ("sampling", None, 10),
        ("executor_overhead", "gc", 400),
        ("sampling", None, 5),
    ]


def test_a_collection_that_a_node_asks_for_is_the_nodes_work(
    executing: Run, now: Now, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "_is_automatic", lambda: False)
    collect(now, 400)
    assert rows(executing)[1:] == [("sampling", None, 400)]


def test_a_collection_in_the_middle_of_a_switch_leaves_the_ledger_alone(executing: Run, now: Now) -> None:
    readings = iter([1, 2, 3])

    def clock() -> int:
        if next(readings) == 1:  # where an object is made inside `enter`, a collection may begin
            collect(now, 400)
        return now()

    executing.ledger.clock = clock
    executing.enter("vae_decode")
    assert rows(executing)[1:] == [("sampling", None, 400), ("vae_decode", None, 0)]


def test_a_collection_on_another_thread_is_a_span_of_the_run_that_it_stopped(
    executing: Run, now: Now
) -> None:
    thread = threading.Thread(target=collect, args=(now, 400), name="stagexec-else")
    thread.start()
    thread.join()
    lane, stage, name, visit, start, end, detail = executing.pending_spans[0]
    assert (lane, stage, name, visit) == ("thread:stagexec-else", "executor_overhead", "gc", None)
    assert (end - start, detail) == (400 * MS, {"part": "gc"})
    assert rows(executing)[1:] == [("sampling", None, 400)]


def test_pythons_own_collection_is_told_from_one_that_is_asked_for() -> None:
    seen: list[bool] = []

    def look(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 0:
            seen.append(pauses._is_automatic())

    gc.callbacks.append(look)
    try:
        gc.collect(0)
        asked = list(seen)
        kept = [[] for _ in range(3 * gc.get_threshold()[0])]
    finally:
        gc.callbacks.remove(look)
    assert asked == [False]
    assert kept
    assert seen[1:]
    assert all(seen[1:])


# ---- between two runs ------------------------------------------------------------------------------------


def test_what_the_worker_does_until_it_asks_again_is_filed_in_pieces(now: Now, filed: Any) -> None:
    after.begins("run")
    now.ms += 20
    collect(now, 400)
    now.ms += 30
    after.ends()
    assert [(one["what"], one["after"], one["start_ns"] // MS, one["end_ns"] // MS) for one in filed] == [
        ("host_cleanup", "run", 0, 20),
        ("collection", "run", 20, 420),
        ("host_cleanup", "run", 420, 450),
    ]
    after.ends()
    assert len(filed) == 3


def test_the_runs_that_wait_meanwhile_are_named_with_how_long(now: Now, filed: Any) -> None:
    waiting = Run("early", -5 * MS, now), Run("late", 100 * MS, now)
    for run in waiting:
        live.waiting.add(run)
    try:
        after.begins("run")
        collect(now, 400)
        after.ends()
    finally:
        live.waiting.take_all()
    (told,) = filed
    assert told["delayed"] == [[waiting[0].run_id, 400 * MS], [waiting[1].run_id, 300 * MS]]


def test_what_is_short_is_not_filed(now: Now, filed: Any) -> None:
    after.begins("run")
    now.ms += 4
    after.ends()
    assert filed == []


def test_a_collection_after_the_queue_gave_nothing_still_follows_the_last_run(now: Now, filed: Any) -> None:
    after.begins("run")
    after.ends()
    now.ms += 10_000
    after.goes_on()
    collect(now, 400)
    after.ends()
    assert [(one["what"], one["after"], one["end_ns"] - one["start_ns"]) for one in filed] == [
        ("collection", "run", 400 * MS)
    ]


def test_a_worker_that_never_asked_its_queue_tells_nothing_of_the_meantime(now: Now, filed: Any) -> None:
    after.begins("run")
    now.ms += 1_000
    after.drop()
    after.ends()
    assert filed == []


def test_the_interpreter_tells_of_its_collections(filed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(after, "LEAST_NS", 0)
    pauses.watch()
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(pauses._pause)
    assert [one["what"] for one in filed] == ["collection"]
    assert filed[0]["end_ns"] > filed[0]["start_ns"]


def test_a_collection_is_due_when_the_last_is_long_ago(monkeypatch: pytest.MonkeyPatch, now: Now) -> None:
    monkeypatch.setattr(pauses, "_last_ns", None)
    monkeypatch.setattr(pauses.gc, "callbacks", [])
    assert not pauses.due(100)  # it is not watched
    pauses.watch()
    assert pauses.due(100)
    pauses._pause("stop", {"generation": 2})
    assert not pauses.due(MS)
    now.ms += 2
    assert pauses.due(MS)
    pauses._pause("stop", {"generation": 1})
    assert pauses.due(MS)


def test_the_last_collection_of_a_process_with_a_run_in_execution_says_nothing(tmp_path: Path) -> None:
    """Python collects as it ends, with no caller: what a callback raises there is printed."""
    code = "from stagexec.record import live, pauses\nlive.run = object()\npauses.watch()\n"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
