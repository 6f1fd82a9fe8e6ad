"""Why a process ended, and until when it lived, as a reader concludes it from the files that it left."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from stagexec.reading import ends, index, relation, rows, store, unclosed
from stagexec.reading.journal import sources
from stagexec.reading.runs import Run
from tests.reading.fake_journal import MS, TINY, WALL0, FakeJournal, FakeRun, S, cached_run

HERE = socket.gethostname()
NO_PID = 2**22 + 1
"""Beyond the largest process id of Linux."""


def journal_of(ledger: Path, pid: int = NO_PID, **start: Any) -> tuple[FakeJournal, Path]:
    """A closed run, one in mid-sampling, one that waits; its last event is a heartbeat."""
    journal = FakeJournal(HERE, pid).head()
    journal.events[0].update(start)
    cached_run(journal, "done")
    run = FakeRun(journal, "runs", TINY).spend(MS).start().spend(MS)
    run.visit(1, "1", "CheckpointLoaderSimple", [("model_load_residency", 9 * MS)])
    run.switch("sampling", "step", 2, "core.sample", ("3", "KSampler")).flush().spend(300 * MS)
    FakeRun(journal, "wait", TINY)
    journal.heartbeat(run)
    return journal, journal.write(ledger)


def signal_file(path: Path, name: str, after_s: float = 0.0, text: str = "Current thread 0x1:\n") -> Path:
    """The file of a signal that came so long before the journal was last written."""
    file = path.with_suffix(f".{name}")
    file.write_text(text)
    at = path.stat().st_mtime_ns - round(after_s * 1e9)
    os.utime(file, ns=(at, at))
    return file


def outcomes(ledger: Path, **load: Any) -> dict[str, tuple[str | None, str | None]]:
    """Run -> (outcome, cause), which the fold, the rows and the index must tell alike."""
    folded = store.load(ledger, **load).runs
    by_fold = {run.run_id[:4]: (run.outcome, run.cause) for run in folded}
    with index.Index(ledger, **load) as opened:
        opened.refresh()
        found = relation.Runs(opened.connection, []).rows()
    assert {row["run_id"][:4]: (row["outcome"], row["cause"]) for row in found} == by_fold
    totals = {run.run_id: rows.summary(run)["total_ns"] for run in folded}
    assert {row["run_id"]: row["total_ns"] for row in found} == totals
    (source,) = sources(ledger)
    left = unclosed.of(source, load.get("now_wall_ns") or WALL0 + 10**18, lambda *_: False)
    open_ones = [run for run in folded if run.closed is None]
    assert {r.run_id: without_seams(r) for r in left.runs} == {r.run_id: without_seams(r) for r in open_ones}
    return by_fold


def without_seams(run: Run) -> dict[str, Any]:
    return {**rows.detail(run), "seams": None}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGQUIT"])
def test_a_signals_file_that_was_written_to_makes_a_stop(tmp_path: Path, name: str) -> None:
    _, path = journal_of(tmp_path)
    signal_file(path, name)
    stopped = ("lost", "process_stopped")
    assert outcomes(tmp_path) == {"done": ("success", None), "runs": stopped, "wait": stopped}
    error = store.load(tmp_path).find("runs").error
    assert error is not None
    assert (error.stage, error.node_class) == ("sampling", "KSampler")
    assert name in str(error.message)


@pytest.mark.parametrize(
    ("name", "after_s", "text"),
    [("SIGTERM", 0, ""), ("SIGTERM", 60, "written"), ("SIGUSR1", 0, "written"), ("life", 0, "{")],
)
def test_an_empty_or_old_file_is_no_stop(tmp_path: Path, name: str, after_s: float, text: str) -> None:
    """Process 1 of a container ignores a signal and goes on: what ends it later is another matter."""
    _, path = journal_of(tmp_path)
    signal_file(path, name, after_s, text)
    assert outcomes(tmp_path)["runs"] == ("lost", "process_died")


def test_a_process_that_is_killed_soon_after_it_ignored_the_signal_was_stopped(tmp_path: Path) -> None:
    """So a container's process 1 is stopped: ten to thirty seconds after SIGTERM comes SIGKILL."""
    _, path = journal_of(tmp_path)
    signal_file(path, "SIGTERM", 30)
    assert outcomes(tmp_path)["runs"] == ("lost", "process_stopped")


def test_the_signal_that_came_last_is_named(tmp_path: Path) -> None:
    _, path = journal_of(tmp_path)
    signal_file(path, "SIGTERM", 5)
    signal_file(path, "SIGHUP", 1)
    assert "SIGHUP" in str(rows.detail(store.load(tmp_path).find("wait"))["error"]["message"])


def test_what_was_written_after_an_end_takes_it_back(tmp_path: Path) -> None:
    journal, _ = journal_of(tmp_path)
    journal.end("restart")
    journal.write(tmp_path)
    assert outcomes(tmp_path)["wait"] == ("lost", "process_stopped")
    journal.now += MS
    journal.heartbeat()
    journal.write(tmp_path)
    assert outcomes(tmp_path)["wait"] == ("lost", "process_died")


@pytest.mark.parametrize(("after", "cause"), [(S, "process_stopped"), (60 * S, "process_died")])
def test_a_successor_that_was_started_is_a_restart_if_the_end_came_soon(
    tmp_path: Path, after: int, cause: str
) -> None:
    journal, _ = journal_of(tmp_path)
    journal.add("mark", source="process", name="restart_begun", detail={})
    journal.now += after
    journal.heartbeat()
    journal.write(tmp_path)
    assert outcomes(tmp_path)["wait"] == ("lost", cause)


def test_an_exception_out_of_main_is_a_crash_and_an_older_reason_a_stop(tmp_path: Path) -> None:
    for reason, cause in (("exception", "process_died"), ("SIGTERM", "process_stopped")):
        journal, _ = journal_of(tmp_path)
        journal.end(reason)
        journal.write(tmp_path)
        assert outcomes(tmp_path)["runs"] == ("lost", cause)


def test_a_run_that_the_host_had_filed_is_not_lost_by_a_stop(tmp_path: Path) -> None:
    journal, _ = journal_of(tmp_path)
    FakeRun(journal, "good", TINY).start().spend(MS).execute().flush()
    error = {"cause": "oom", "stage": "sampling", "node_id": "3"}
    FakeRun(journal, "fail", TINY).start().spend(MS).execute(host_status="error", executed=error).flush()
    path = journal.write(tmp_path)
    signal_file(path, "SIGTERM")
    found = outcomes(tmp_path)
    assert (found["good"], found["fail"]) == (("success_unverified", None), ("failed", "oom"))
    good = store.load(tmp_path).find("good")
    assert any("SIGTERM" in note for note in good.notes)
    path.with_suffix(".SIGTERM").unlink()
    assert outcomes(tmp_path)["good"] == ("lost", "process_died")


# --- the watcher's file -------------------------------------------------------------------------------


def life(path: Path, **told: Any) -> None:
    content = {"pid": NO_PID, "mono_ns": 0, "wall_ns": WALL0, "state": "died", **told}
    path.with_suffix(".life").write_text(json.dumps(content))


def test_the_last_segment_ends_where_the_watcher_last_saw_the_process_alive(tmp_path: Path) -> None:
    journal, path = journal_of(tmp_path)
    life(path, mono_ns=journal.now + 4 * S)
    assert outcomes(tmp_path)["runs"] == ("lost", "process_died")
    for name, stage in (("runs", "sampling"), ("wait", "queue_wait")):
        run = store.load(tmp_path).find(name)
        assert run.finished_ns == journal.now + 4 * S
        assert run.segments.stage[-1] == stage
        assert list(run.segments.start_ns[1:]) == list(run.segments.end_ns[:-1])


@pytest.mark.parametrize(
    "told",
    [
        {"mono_ns": 5},
        {"mono_ns": 1 << 70},
        {"mono_ns": "soon"},
        {"mono_ns": 10**18, "pid": 7},
        {"mono_ns": 10**18, "wall_ns": None},
    ],
)
def test_a_watchers_file_that_cannot_be_right_changes_nothing(tmp_path: Path, told: dict[str, Any]) -> None:
    journal, path = journal_of(tmp_path)
    life(path, **told)
    assert outcomes(tmp_path)["runs"] == ("lost", "process_died")
    assert store.load(tmp_path).find("runs").finished_ns == journal.now
    path.with_suffix(".life").write_bytes(b'{"pid": \xff')
    assert outcomes(tmp_path)["runs"] == ("lost", "process_died")


def test_the_watchers_file_of_a_living_process_ends_nothing(tmp_path: Path) -> None:
    journal, path = journal_of(tmp_path, pid=os.getpid())
    life(path, pid=os.getpid(), mono_ns=journal.now + S, state="alive")
    (run, *_) = [
        r for r in store.load(tmp_path, now_wall_ns=WALL0 + journal.now).runs if r.run_id[:4] == "runs"
    ]
    assert (run.outcome, run.segments.end_ns[-1]) == (None, journal.now)


@pytest.mark.parametrize(
    ("state", "boot", "why"),
    [
        ("alive", "another", "machine"),
        ("died", "another", "killed"),
        ("alive", "this", "killed"),
        (None, "x", "killed"),
    ],
)
def test_a_machine_that_went_down_is_told_from_a_process_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str | None, boot: str, why: str
) -> None:
    (tmp_path / "boot").write_text("this\n")
    monkeypatch.setattr(ends, "BOOT", tmp_path / "boot")
    journal, path = journal_of(tmp_path, pid_started=f"{boot}:1:1")
    if state is not None:
        life(path, mono_ns=journal.now + MS, state=state)
    later = WALL0 + journal.now + 3600 * S  # a boot that is over is told by the silence since
    (run, *_) = [r for r in store.load(tmp_path, now_wall_ns=later).runs if r.run_id[:4] == "runs"]
    assert ends.of(run.process).why == why
    assert run.cause == "process_died"
