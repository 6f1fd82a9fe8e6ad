"""The writer writes what it was given, counts what it could not write, and never makes anybody wait."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagexec.record import clock, journal_file
from stagexec.record import journal as journal_module
from stagexec.record.condition import condition_id, manifest
from stagexec.record.journal import Journal, event, take_segments
from tests.record.conftest import Disk, Event, events_in, mark, numbers, started_run

START: Event = event("process_start", source="process", pid=1)


def of_type(events: list[Event], event_type: str) -> list[Event]:
    return [one for one in events if one["event_type"] == event_type]


def whole_and_torn(ledger: Path) -> tuple[list[Event], int]:
    """The events of the lines that are whole, and how many lines are not."""
    (file,) = (ledger / "journal").glob("*/*.jsonl")
    whole, torn = [], 0
    for line in file.read_bytes().split(b"\n"):
        try:
            whole.append(json.loads(line or b"null"))
        except ValueError:
            torn += 1
    return [one for one in whole if one is not None], torn


# ---- what is put is written -------------------------------------------------------------------------


def test_what_is_put_is_written_in_order(journal: Journal, tmp_path: Path) -> None:
    given = [mark(n) for n in range(100)]
    for one in given:
        journal.put(one)
    journal.tick()
    assert events_in(tmp_path) == given


def test_a_started_journal_writes_by_itself(journal: Journal, tmp_path: Path) -> None:
    journal.start()
    journal.put(mark(1))
    end = time.monotonic() + 5
    while not list(tmp_path.glob("journal/*/*.jsonl")) and time.monotonic() < end:
        time.sleep(0.01)
    assert numbers(events_in(tmp_path)) == [1]
    journal.stop("exit")
    assert of_type(events_in(tmp_path), "process_end")[0]["reason"] == "exit"


def test_segments_of_a_run_are_written_with_what_is_open(journal: Journal, tmp_path: Path) -> None:
    run = started_run()
    journal.open_run(run)
    run.next_visit("7", "KSampler")
    run.enter("sampling", "step", "sample")
    journal.tick()
    (segments,) = of_type(events_in(tmp_path), "segments")
    assert segments["stage"] == ["queue_wait"]
    assert segments["start_ns"] == [run.accepted_ns]
    start = segments["end_ns"][0]
    assert segments["open"] == ["sampling", "step", start, 1, "sample", "7", "KSampler"]


def test_nothing_follows_the_end_of_a_run_in_the_journal(journal: Journal, tmp_path: Path) -> None:
    run = started_run()
    journal.open_run(run)
    end = clock.now_ns()
    journal.put(event("run_closed", run, source="verifier", finished_ns=end))
    run.span("thread:t", "late", 1, 2)
    run.ledger.close(end)
    journal.tick()
    kinds = [one["event_type"] for one in events_in(tmp_path)]
    assert kinds == ["segments", "spans", "run_closed"]
    assert of_type(events_in(tmp_path), "run_closed")[0]["segment_count"] == 1
    assert journal.runs == {}


@pytest.mark.parametrize(
    "odd",
    [
        "half a character \ud800",
        ["nested", {"\udcff": "\udcff"}],
        object(),
        {("a", "tuple"): 1},
        2**80,
        float("nan"),
        b"bytes",
    ],
)
def test_odd_values_cost_neither_their_event_nor_its_neighbours(
    journal: Journal, tmp_path: Path, odd: Any
) -> None:
    journal.put(mark(1))
    journal.put(mark(2, odd=odd))
    journal.put(mark(3))
    journal.tick()
    assert numbers(events_in(tmp_path)) == [1, 2, 3]


def test_a_value_that_cannot_be_described_is_noted_and_its_event_kept(
    journal: Journal, tmp_path: Path, faults_expected
) -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    loop: list[Any] = []
    loop.append(loop)
    journal.put(mark(1, odd=Silent()))
    journal.put(mark(2, odd=loop))
    journal.tick()
    assert numbers(events_in(tmp_path)) == [1, 2]
    assert [where for where, _ in faults_expected] == ["Journal.encode"] * 2


def test_a_heartbeat_comes_within_a_second_while_a_run_is_open_and_names_what_is_open(
    journal: Journal, tmp_path: Path
) -> None:
    run = started_run()
    journal.open_run(run)
    run.next_visit("7", "KSampler")
    run.enter("sampling")
    journal.start()
    journal.put(mark(0))
    time.sleep(2.3)
    journal.stop("exit")
    events = events_in(tmp_path)
    times = [one["ts_mono_ns"] for one in events]
    assert max(after - before for before, after in pairwise(times)) <= 1_000_000_000
    beats = of_type(events, "heartbeat")
    assert len(beats) >= 2
    (row,) = beats[-1]["open"]
    assert (row["run_id"], row["stage"], row["node_id"]) == (run.run_id, "sampling", "7")


def test_a_silent_process_without_runs_writes_no_heartbeat(journal: Journal, tmp_path: Path) -> None:
    journal.start()
    journal.put(mark(0))
    time.sleep(1.2)
    assert len(events_in(tmp_path)) == 1
    journal.stop("exit")


# ---- a reading from another thread ------------------------------------------------------------------


def test_a_reading_under_a_hammering_thread_never_shows_a_gap() -> None:
    run = started_run()
    stop = threading.Event()

    def hammer() -> None:
        while not stop.is_set():
            depth = run.enter("sampling")
            run.ledger.switch("vae_decode")
            run.leave(depth)

    thread = threading.Thread(target=hammer)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        seen, end = 0, run.accepted_ns
        finish = time.monotonic() + 1.5
        while time.monotonic() < finish:
            segments, open_ = take_segments(run)
            for segment, segment_end in segments:
                assert segment[2] == end
                end = segment_end
            assert open_ is not None
            assert open_[2] == end
            seen += len(segments)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)
    assert seen > 1000


def test_a_segment_caught_in_the_middle_of_a_switch_counts_as_open_still() -> None:
    run = started_run()
    run.ledger.switch("sampling")
    open_ = run.ledger.open
    run.ledger.pending.append((open_, clock.now_ns()))  # the first of the two steps of a switch
    segments, shown = take_segments(run)
    assert [segment[0] for segment, _ in segments] == ["queue_wait"]
    assert shown is open_
    run.ledger.open = ("vae_decode", None, run.ledger.pending[-1][1], None, None)  # the second
    segments, shown = take_segments(run)
    assert [segment[0] for segment, _ in segments] == ["sampling"]
    assert shown is run.ledger.open


# ---- a disk that is full -----------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 400)), min_size=1, max_size=12),
    st.sampled_from([0, 500, 10**6]),
)
def test_every_event_is_in_the_file_or_in_the_count_of_lost_ones(
    batches: list[tuple[int, int]], waiting: int
) -> None:
    disk = Disk()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_file, "os", disk)
        patch.setattr(journal_file, "_fallocate", disk.fallocate)
        patch.setattr(journal_module, "RETRY_S", 0.0)
        patch.setattr(journal_module, "WAITING_BYTES", waiting)
        journal = Journal(Path(folder))
        journal.put_header(START)
        put = 0
        for size, room in batches:
            disk.room, disk.reserved = room, 0
            for _ in range(size):
                journal.put(mark(put))
                put += 1
            journal.tick()
        disk.room = float("inf")
        journal.tick()
        written, _ = whole_and_torn(Path(folder))
        os.close(journal._file._file)
    found = numbers(written)
    if waiting == 10**6:
        assert len(found) == put
    assert found == sorted(set(found))
    lost = sum(one["count"] for one in of_type(written, "lost_events"))
    assert len(found) + lost == put
    assert journal.lost == 0
    assert len(of_type(written, "process_start")) == 1


def test_a_full_disk_is_told_once_and_the_end_of_it_with_the_right_count(
    journal: Journal, tmp_path: Path, disk: Disk, no_waiting: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "stagexec")
    journal.put(mark(0))
    journal.tick()
    disk.fill()
    for number in range(1, 6):
        journal.put(mark(number))
        journal.tick()
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    assert "Runs are not affected" in caplog.text
    disk.room = float("inf")
    journal.put(mark(6))
    journal.tick()
    (lost,) = of_type(events_in(tmp_path), "lost_events")
    assert lost["count"] == 5
    assert "No space left" in lost["reason"]
    assert numbers(events_in(tmp_path)) == [0, 6]
    assert "5 events were lost" in caplog.records[-1].message


def test_events_of_the_pause_after_a_failed_write_are_counted_too(
    journal: Journal, tmp_path: Path, disk: Disk, no_waiting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "RETRY_S", 3600.0)
    disk.fill()
    for number in range(4):
        journal.put(mark(number))
        journal.tick()
    run = started_run()
    journal.open_run(run)
    journal._shown[run.run_id] = run.ledger.open
    for _ in range(50):  # no heartbeat is made, and none is counted, while nothing can be written
        journal.tick()
    disk.room = float("inf")
    journal._retry_at = 0.0
    journal.tick()
    (lost,) = of_type(events_in(tmp_path), "lost_events")
    assert lost["count"] == 4


def test_a_line_torn_by_a_full_disk_does_not_damage_those_that_follow(
    journal: Journal, tmp_path: Path, disk: Disk, no_waiting: None
) -> None:
    disk.room = 40
    journal.put(mark(1))
    journal.tick()
    disk.room = float("inf")
    journal.put(mark(2))
    journal.tick()
    (file,) = tmp_path.glob("journal/*/*.jsonl")
    lines = file.read_bytes().split(b"\n")
    assert len(lines[0]) == 40
    assert [json.loads(line)["event_type"] for line in lines[1:-1]] == ["lost_events", "mark"]


def test_a_real_limit_on_file_size_leaves_a_run_untouched(tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("Windows has no limit on file size to set")
    script = """
import logging, resource, sys
logging.basicConfig(level=logging.WARNING)
from pathlib import Path
from stagexec.record import live
from tests.record.conftest import mark
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
live.begin_process(Path(sys.argv[1]), pid=1)
live.accept("p", {})
run = live.start("p")
for number in range(200):
    depth = run.enter("sampling")
    run.leave(depth)
    live.journal.put(mark(number))
    live.journal.tick()
live.finish(run, {}, {})
print(run.ledger.open, live.run, len(live.journal._waiting) > 100)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["None", "None", "True"]
    assert done.stderr.count("cannot be written") == 1
    events, torn = whole_and_torn(tmp_path)
    assert torn <= 1
    assert numbers(events) == list(range(200))
    assert of_type(events, "lost_events") == []
    assert events[-1]["event_type"] == "process_end"


# ---- a folder that cannot be written, or goes away ---------------------------------------------------


def test_a_read_only_folder_costs_events_but_not_the_head_of_the_journal(
    journal: Journal, tmp_path: Path, disk: Disk, no_waiting: None
) -> None:
    disk.may_open = False
    journal.put_header(START)
    journal.put(mark(1))
    journal.tick()
    assert not list(tmp_path.glob("journal/*/*"))
    disk.may_open = True
    journal.put(mark(2))
    journal.tick()
    events = events_in(tmp_path)
    assert [one["event_type"] for one in events] == ["process_start", "lost_events", "mark"]
    assert events[1]["count"] == 1


def test_a_file_in_the_place_of_the_folder_is_told_and_survived(
    tmp_path: Path, no_waiting: None, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ledger").write_text("not a folder")
    journal = Journal(tmp_path / "ledger")
    journal.put(mark(1))
    journal.tick()
    assert journal.lost == 1
    assert "cannot be written" in caplog.text


def test_losses_are_told_when_the_disk_is_well_again_though_nothing_more_happens(
    journal: Journal, tmp_path: Path, disk: Disk, no_waiting: None
) -> None:
    disk.fill()
    journal.put(mark(1))
    journal.tick()
    disk.room = float("inf")
    journal.tick()
    assert [one["event_type"] for one in events_in(tmp_path)] == ["lost_events"]


def test_a_folder_that_is_removed_is_made_again_with_the_head_of_the_journal(
    journal: Journal, tmp_path: Path
) -> None:
    journal.put_header(START)
    journal.put_header(event("seams", source="process", seams=[]))
    journal.put(mark(1))
    journal.tick()
    shutil.rmtree(tmp_path / "journal")
    journal.put(mark(2))
    journal.tick()
    assert [one["event_type"] for one in events_in(tmp_path)] == ["process_start", "seams", "mark"]
    assert numbers(events_in(tmp_path)) == [2]


def test_a_folder_that_cannot_be_made_again_at_once_gets_its_head_later(
    journal: Journal, tmp_path: Path, disk: Disk, no_waiting: None
) -> None:
    journal.put_header(START)
    journal.tick()
    shutil.rmtree(tmp_path / "journal")
    disk.may_open = False
    journal.put(mark(1))
    journal.tick()
    disk.may_open = True
    journal.put(mark(2))
    journal.tick()
    kinds = [one["event_type"] for one in events_in(tmp_path)]
    assert kinds == ["process_start", "lost_events", "mark"]


def test_a_header_event_that_changed_replaces_the_one_before_in_a_new_file(
    journal: Journal, tmp_path: Path
) -> None:
    journal.put_header(event("seams", source="process", seams=[]))
    journal.tick()
    journal.put_header(event("seams", source="process", seams=[{"seam": "a"}]))
    journal.tick()
    assert [one["seams"] for one in events_in(tmp_path)] == [[], [{"seam": "a"}]]
    shutil.rmtree(tmp_path / "journal")
    journal.put(mark(1))
    journal.tick()
    assert [one["seams"] for one in of_type(events_in(tmp_path), "seams")] == [[{"seam": "a"}]]


def test_a_condition_that_could_not_be_written_is_written_later(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "RETRY_S", 0.0)
    (tmp_path / "conditions").write_text("in the way")
    whole = manifest({"width": 64}, {})
    journal.put_condition(whole)
    journal.put(mark(1))
    journal.tick()
    assert numbers(events_in(tmp_path)) == [1]
    (tmp_path / "conditions").unlink()
    journal.tick()
    assert (tmp_path / "conditions" / f"{condition_id(whole)}.json").is_file()


# ---- no one waits for a disk -------------------------------------------------------------------------


def test_a_run_never_waits_for_a_disk_that_hangs(journal: Journal, tmp_path: Path, disk: Disk) -> None:
    disk.released.clear()
    run = started_run()
    journal.open_run(run)
    journal.start()
    journal.put(mark(0))
    assert disk.hanging.wait(5)
    for number in range(1, 1001):  # all of it happens while the writer sits in its write
        run.leave(run.enter("sampling"))
        run.span("thread:t", "x", 1, 2)
        journal.put(mark(number))
    assert not list(tmp_path.glob("journal/*/*.jsonl")) or not events_in(tmp_path)
    disk.released.set()
    assert journal.flush()
    assert numbers(events_in(tmp_path)) == list(range(1001))
    journal.stop("exit")


def test_the_end_of_the_process_does_not_wait_for_ever_for_a_disk_that_hangs(
    journal: Journal, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "STOP_S", 0.05)
    disk.released.clear()
    journal.start()
    journal.put(mark(0))
    assert disk.hanging.wait(5)
    journal.stop("exit")
    assert disk.hanging.is_set()
    assert not disk.released.is_set()
    disk.released.set()
    journal._thread.join(5)
    assert not journal._thread.is_alive()


def test_a_forked_child_writes_nothing_into_its_parents_journal(tmp_path: Path) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    script = """
import os, sys
from pathlib import Path
from stagexec.record import live
live.begin_process(Path(sys.argv[1]), pid=1)
live.journal.flush()
if os.fork() == 0:
    sys.exit(0)
os.wait()
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=60)
    assert len(of_type(events_in(tmp_path), "process_end")) == 1
