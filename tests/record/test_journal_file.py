"""The journal's file stays ours, has room for what matters, and begins again whole when it was removed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stagexec.reading import rows, store
from stagexec.record import clock, disks, guard, live, paths
from stagexec.record import journal as journal_module
from stagexec.record.journal import Journal, event
from stagexec.record.journal_file import RESERVE, JournalFile
from tests.record.conftest import Disk, Event, events_in, mark, numbers, started_run

START: Event = event("process_start", source="process", pid=1, hostname="elsewhere", format_version=2)


def the_file(ledger: Path) -> Path:
    (file,) = (ledger / "journal").glob("*/*.jsonl")
    return file


def accepted(run: live.Run) -> Event:
    return event(
        "run_accepted", run, source="queue", ts_mono_ns=run.accepted_ns, prompt_id=run.prompt_id, nodes=["1"]
    )


@pytest.fixture
def written(journal: Journal) -> Journal:
    """A journal whose file has a head and one mark."""
    journal.put_header(START)
    journal.put(mark(1))
    journal.tick()
    return journal


# ---- the file is known by what it is, not by its name and number -------------------------------------


def test_a_file_replaced_by_an_equal_copy_is_written_on(written: Journal, tmp_path: Path) -> None:
    file = the_file(tmp_path)
    shutil.copy(file, tmp_path / "copy")
    os.replace(tmp_path / "copy", file)
    written.put(mark(2))
    written.tick()
    assert [one["event_type"] for one in events_in(tmp_path)] == ["process_start", "mark", "mark"]
    assert numbers(events_in(tmp_path)) == [1, 2]


def test_what_was_written_between_the_copy_and_its_return_is_not_lost(
    written: Journal, tmp_path: Path
) -> None:
    file = the_file(tmp_path)
    shutil.copy(file, tmp_path / "copy")
    for number in range(2, 5000):
        written.put(mark(number))
    written.tick()
    os.replace(tmp_path / "copy", file)
    written.put(mark(5000))
    written.tick()
    assert numbers(events_in(tmp_path)) == list(range(1, 5001))
    assert len([one for one in events_in(tmp_path) if one["event_type"] == "process_start"]) == 1


def test_a_file_of_another_program_at_our_path_is_left_as_it_is(written: Journal, tmp_path: Path) -> None:
    file = the_file(tmp_path)
    (tmp_path / "foreign").write_bytes(b"a user's own notes\n")
    os.replace(tmp_path / "foreign", file)
    written.put(mark(2))
    written.tick()
    assert file.read_bytes() == b"a user's own notes\n"
    (ours,) = [other for other in file.parent.iterdir() if other != file]
    lines = [json.loads(line) for line in ours.read_bytes().splitlines()]
    assert [one["event_type"] for one in lines] == ["process_start", "mark"]


def test_a_folder_at_our_path_makes_the_journal_take_another_name(written: Journal, tmp_path: Path) -> None:
    file = the_file(tmp_path)
    file.unlink()
    file.mkdir()
    written.put(mark(2))
    written.tick()
    (ours,) = [other for other in file.parent.iterdir() if other != file]
    assert numbers([json.loads(line) for line in ours.read_bytes().splitlines()]) == [2]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_named_pipe_at_our_path_hangs_nothing(written: Journal, tmp_path: Path) -> None:
    file = the_file(tmp_path)
    file.unlink()
    os.mkfifo(file)
    written.put(mark(2))
    written.tick()
    (ours,) = [other for other in file.parent.iterdir() if other != file]
    assert numbers([json.loads(line) for line in ours.read_bytes().splitlines()]) == [2]


def test_our_descriptor_closed_by_a_node_costs_nothing_and_its_next_user_nothing(
    written: Journal, tmp_path: Path
) -> None:
    number = written._file._file
    os.close(number)
    users = os.open(tmp_path / "users", os.O_WRONLY | os.O_CREAT)
    assert users == number
    written.put(mark(2))
    written.tick()
    written.put(mark(3))
    written.tick()
    os.close(users)
    assert (tmp_path / "users").read_bytes() == b""
    assert [one["event_type"] for one in events_in(tmp_path)] == ["process_start", "mark", "mark", "mark"]


def test_our_descriptor_closed_and_not_used_again_costs_nothing(written: Journal, tmp_path: Path) -> None:
    os.close(written._file._file)
    written.put(mark(2))
    written.tick()
    assert numbers(events_in(tmp_path)) == [1, 2]


def test_what_another_program_appended_ends_before_our_next_line(written: Journal, tmp_path: Path) -> None:
    with the_file(tmp_path).open("ab") as stream:
        stream.write(b"half a li")
    written.put(mark(2))
    written.tick()
    assert the_file(tmp_path).read_bytes().split(b"\n")[2] == b"half a li"
    assert b'"number":2' in the_file(tmp_path).read_bytes().split(b"\n")[3]


# ---- a file made again is whole ----------------------------------------------------------------------


def removed(file: Path) -> None:
    file.unlink()


def folder_removed(file: Path) -> None:
    shutil.rmtree(file.parents[1])


def truncated(file: Path) -> None:
    os.truncate(file, 0)


def cut_short(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 7)


def emptied(file: Path) -> None:
    file.unlink()
    file.touch()


@pytest.mark.parametrize("injury", [removed, folder_removed, truncated, cut_short, emptied])
def test_a_run_that_is_open_when_its_journal_goes_is_whole_in_the_next_one(tmp_path: Path, injury) -> None:
    live.begin_process(tmp_path, pid=1, hostname="elsewhere", format_version=2)
    assert live.journal is not None
    live.accept("before", {"nodes": ["1"]})
    run = live.start("before")
    assert run is not None
    run.next_visit("1", "KSampler")
    for _ in range(50):
        run.leave(run.enter("sampling"))
    assert live.journal.flush()
    injury(the_file(tmp_path))
    for _ in range(50):
        run.leave(run.enter("vae_decode"))
    live.finish(run, {}, {})
    assert live.journal.flush()
    (found,) = [one for one in store.load(tmp_path).runs if one.accepted is not None]
    told = rows.detail(found)
    assert told["prompt_id"] == "before"
    assert told["outcome"] == "success_unverified"
    assert told["total_ns"] == sum(told["stages"].values()) == (found.finished_ns or 0) - found.accepted_ns
    assert len([one for one in told["segments"] if one["stage"] == "sampling"]) == 50
    assert len([one for one in told["segments"] if one["stage"] == "vae_decode"]) == 50


def test_a_waiting_run_is_in_a_journal_that_was_made_again(journal: Journal, tmp_path: Path) -> None:
    journal.put_header(START)
    run = started_run()
    run.started = False
    journal.open_run(run)
    journal.put(accepted(run))
    journal.tick()
    the_file(tmp_path).unlink()
    journal.put(mark(1))
    journal.tick()
    (found,) = [one for one in events_in(tmp_path) if one["event_type"] == "run_accepted"]
    assert found["prompt_id"] == "prompt"


def test_a_closed_run_is_not_kept_in_memory(journal: Journal) -> None:
    run = started_run()
    journal.open_run(run)
    journal.put(accepted(run))
    journal.tick()
    assert journal._kept_bytes > 0
    journal.put(event("run_closed", run, source="verifier"))
    journal.tick()
    journal.put(event("condition", run, source="process", missing=[]))
    journal.tick()
    assert (journal._kept, journal._kept_bytes) == ({}, 0)


def test_a_run_of_very_many_visits_keeps_that_it_was_there(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "KEPT_BYTES", 5000)
    run = started_run()
    journal.open_run(run)
    journal.put(accepted(run))
    for _ in range(1000):
        run.leave(run.enter("sampling"))
    journal.tick()
    assert journal._kept_bytes < 5000
    the_file(tmp_path).unlink()
    journal.put(mark(1))
    journal.tick()
    assert [one["event_type"] for one in events_in(tmp_path)] == ["run_accepted", "mark"]


# ---- a full disk -------------------------------------------------------------------------------------


def failing_run(journal: Journal, prompt_id: str = "fails") -> live.Run:
    """What the journal gets of a short run, all at once."""
    run = live.Run(prompt_id, clock.now_ns(), clock.now_ns)
    run.started = True
    journal.open_run(run)
    journal.put(accepted(run))
    run.leave(run.enter("sampling"))
    run.ledger.close(clock.now_ns())
    ended = {"outcome": "failed", "cause": "disk_full", "accepted_ns": run.accepted_ns}
    journal.put(event("run_closed", run, source="verifier", **ended))
    return run


def test_the_run_that_a_full_disk_ends_is_in_the_ledger(disk: Disk, written: Journal, tmp_path: Path) -> None:
    disk.room = 0
    failing_run(written)
    written.tick()
    (run,) = store.load(tmp_path).runs
    assert (run.prompt_id, run.outcome, run.cause) == ("fails", "failed", "disk_full")
    assert run.segments.total_ns() > 0


def test_room_that_was_set_aside_is_used_for_what_matters_first(
    disk: Disk, written: Journal, tmp_path: Path
) -> None:
    disk.room = 0
    for number in range(1000):
        failing_run(written, f"fails {number}")
        written.tick()
    kinds = [one["event_type"] for one in events_in(tmp_path)]
    assert kinds.count("run_closed") == kinds.count("run_accepted") == 1000
    assert kinds.count("segments") < 1000
    assert the_file(tmp_path).stat().st_size < RESERVE * 1.2
    disk.room = float("inf")
    assert written.flush()
    kinds = [one["event_type"] for one in events_in(tmp_path)]
    assert kinds.count("segments") == 1000
    assert "lost_events" not in kinds
    assert {run.outcome for run in store.load(tmp_path).runs} == {"failed"}


def test_what_waits_for_a_disk_is_written_in_its_order_when_there_is_room(
    journal: Journal, tmp_path: Path, disk: Disk
) -> None:
    disk.fill()
    for number in range(5):
        journal.put(mark(number))
        failing_run(journal, f"run {number}")
        journal.tick()
    disk.room = float("inf")
    journal.tick()
    kinds = [one["event_type"] for one in events_in(tmp_path)]
    assert kinds == ["mark", "run_accepted", "segments", "run_closed"] * 5


def test_a_run_begun_while_a_write_is_put_off_is_not_lost(
    journal: Journal, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.fill()
    journal.put(mark(1))
    monkeypatch.setattr(journal_module, "RETRY_S", 3600.0)
    journal.tick()
    disk.room = float("inf")
    failing_run(journal)
    journal.tick()
    assert not list(tmp_path.glob("journal/*/*.jsonl")) or events_in(tmp_path) == []
    journal._retry_at = 0.0
    journal.tick()
    assert len(store.load(tmp_path).runs) == 1


def test_memory_that_waits_is_bounded_and_what_matters_is_let_go_last(
    journal: Journal, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "WAITING_BYTES", 20_000)
    disk.fill()
    for number in range(10):
        for _ in range(20):
            journal.put(mark(number))
        failing_run(journal, f"run {number}")
        journal.tick()
    assert sum(len(line.data) for line in journal._waiting) <= 20_000
    disk.room = float("inf")
    journal.tick()
    events = events_in(tmp_path)
    kinds = [one["event_type"] for one in events]
    assert kinds.count("run_accepted") == kinds.count("run_closed") == 10
    lost = sum(one["count"] for one in events if one["event_type"] == "lost_events")
    assert lost + kinds.count("mark") + kinds.count("segments") == 210
    assert lost > 0


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 2 MiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux may mount a small file system")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))


def test_on_a_real_full_disk_the_run_is_in_the_ledger_at_once_and_whole_later(tiny_disk: Path) -> None:
    journal = Journal(tiny_disk)
    journal.put_header(START)
    journal.put(mark(1))
    journal.tick()
    with pytest.raises(OSError, match="No space left"):
        fill(tiny_disk / "full")
    for number in range(300):
        failing_run(journal, f"fails {number}")
        journal.tick()
    assert len({run.prompt_id for run in store.load(tiny_disk).runs}) == 300
    (tiny_disk / "full").unlink()
    journal._retry_at = 0.0
    assert journal.flush()
    assert journal.lost == 0
    assert all(run.segments.total_ns() > 0 for run in store.load(tiny_disk).runs)
    journal.stop("exit")
    file = the_file(tiny_disk)
    assert file.stat().st_blocks * 512 < file.stat().st_size + 2 * 4096  # what was set aside is given back


def test_a_disk_that_can_set_nothing_aside_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagexec.record.journal_file._fallocate", lambda *_: 95)
    file = JournalFile(tmp_path)
    file.prepare()
    assert file.write([b"{}\n"]) == (1, None)
    assert file.keep_reserve()
    assert file.has_room(100)


# ---- what begins a run is on the disk before the run goes on ------------------------------------------


def test_acceptance_and_start_are_on_the_disk_when_they_are_answered_for(tmp_path: Path) -> None:
    live.begin_process(tmp_path, pid=1)
    assert live.journal is not None
    assert live.journal.flush()
    end = time.monotonic() + 10
    while not live.journal.is_local and time.monotonic() < end:
        time.sleep(0.01)
    with live.journal._lock:  # the writer can do nothing
        live.accept("p", {})
        assert [one["event_type"] for one in events_in(tmp_path)][-1] == "run_accepted"
        live.start("p")
        assert [one["event_type"] for one in events_in(tmp_path)][-1] == "run_started"


@pytest.mark.parametrize("why", ["network", "hanging", "removed", "slow"])
def test_where_the_disk_may_hang_the_writer_does_it_and_nothing_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(disks, "is_local", lambda _: why != "network")
    live.begin_process(tmp_path, pid=1)
    journal = live.journal
    assert journal is not None
    assert journal.flush()
    if why == "hanging":
        assert journal._file_lock.acquire()  # as the writer holds it in a write that does not end
    if why == "removed":
        the_file(tmp_path).unlink()
    if why == "slow":
        journal._direct_again_at = time.monotonic() + 60
    begin = time.monotonic()
    for number in range(100):
        live.accept(f"p{number}", {})
    took = time.monotonic() - begin
    if why == "hanging":
        journal._file_lock.release()
    assert took < 5  # a hundred waits of DIRECT_WAIT_S are half a second, and only the first one waits
    assert journal.flush()
    assert len({run.prompt_id for run in store.load(tmp_path).runs}) == 100


def test_a_run_is_owned_before_anything_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults_expected
) -> None:
    live.begin_process(tmp_path, pid=1)
    assert live.journal is not None
    assert live.journal.flush()

    def unreachable(*_: object) -> bool:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(paths, "take_profile_flag", unreachable)
    live.accept("p", {})
    run = live.start("p")
    assert run is not None
    assert live.run is run
    live.finish(run, {}, {})
    assert live.journal.flush()
    (found,) = store.load(tmp_path).runs
    assert (found.outcome, found.prompt_id) == ("success_unverified", "p")
    assert live.journal.runs == {}


def test_a_flag_that_cannot_be_reached_arms_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    folder.write_text("a file where the folder was")
    assert paths.take_profile_flag(folder) is False


def test_on_a_disk_of_a_network_the_writer_looks_for_the_profile_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "is_local", lambda _: False)
    monkeypatch.setattr(journal_module, "FLAG_S", 0.02)
    live.begin_process(tmp_path, pid=1)
    journal = live.journal
    assert journal is not None
    assert live.take_timing() == "baseline"
    paths.profile_flag(tmp_path).touch()
    end = time.monotonic() + 10
    while paths.profile_flag(tmp_path).exists() and time.monotonic() < end:
        time.sleep(0.01)
    journal.tick()
    assert live.take_timing() == "profile"
    assert live.take_timing() == "baseline"


def test_what_the_writer_has_to_do_is_done_before_it_is_answered_for(tmp_path: Path) -> None:
    live.begin_process(tmp_path, pid=1)
    journal = live.journal
    assert journal is not None
    assert journal.flush()
    journal._direct_again_at = time.monotonic() + 60
    live.accept("p", {})
    assert [one["event_type"] for one in events_in(tmp_path)][-1] == "run_accepted"


def test_a_place_that_faults_over_and_over_does_not_fill_the_ledger(tmp_path: Path, faults_expected) -> None:
    live.begin_process(tmp_path, pid=1)
    assert live.journal is not None
    for _ in range(1000):
        guard.note("here", RuntimeError("again"))
    assert live.journal.flush()
    assert len([one for one in events_in(tmp_path) if one.get("name") == "fault"]) == 16
    assert len(faults_expected) == guard.MAX_FAULTS
