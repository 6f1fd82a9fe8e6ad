"""Machines that sleep, processes that are stopped, clocks that are set: what lives is not called lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stagexec.cli import command
from stagexec.reading import alive, index, relation, rows, store
from stagexec.reading.audit import audit
from tests.reading import damaged
from tests.reading.fake_journal import MS, TINY, WALL0, FakeJournal, FakeRun, S

HOUR = 3600 * S
HERE = socket.gethostname()
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says when a process began")


def sleeper(tmp_path: Path, asleep_ns: int = 8 * HOUR, told: bool = True) -> FakeJournal:
    """A journal of a machine that slept between two runs; `told`: its heartbeats know."""
    journal = FakeJournal(HERE, os.getpid()).head(format_version=2)
    for name, moved in (("aaaa", 0), ("bbbb", asleep_ns)):
        journal.now += S
        run = FakeRun(journal, name, TINY)
        journal.events[-1]["ts_wall"] = WALL0 + journal.now + moved
        run.spend(MS).start().spend(MS)
        beat = damaged.beat(run)
        slept = (5 + moved) if told else None
        journal.add("heartbeat", **beat, ts_wall=WALL0 + journal.now + moved, slept_ns=slept)
        run.execute().spend(MS).close()
    journal.write(tmp_path)
    return journal


def walls(ledger: Path) -> list[int]:
    with relation.of_ledger(ledger) as runs:
        return [row["accepted_wall_ns"] for row in runs.rows()]


def test_wall_times_after_a_sleep_are_those_of_the_wall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper(tmp_path)
    expected = [WALL0 + S, WALL0 + 8 * HOUR + 2 * S + 3 * MS]
    assert walls(tmp_path) == expected
    monkeypatch.setattr(relation, "SMALL", 0)
    monkeypatch.setattr(index, "SAVE_FROM_BYTES", 0)
    assert [walls(tmp_path), walls(tmp_path)] == [expected, expected]


def test_any_time_of_a_process_is_told_by_the_nearest_pair_before_it(tmp_path: Path) -> None:
    journal = sleeper(tmp_path)
    (first, last) = store.load(tmp_path).runs
    assert first.process.wall_ns(S) == WALL0 + S
    assert last.process.wall_ns(journal.now) == WALL0 + 8 * HOUR + journal.now


def test_since_finds_the_runs_after_a_sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper(tmp_path)
    monkeypatch.setattr(time, "time_ns", lambda: WALL0 + 8 * HOUR + 60 * S)
    done = CliRunner().invoke(command, ["runs", "--since", "1h", "--json", "--ledger", str(tmp_path)])
    assert done.stdout.count("run_id") == 1


def test_wall_times_of_the_first_format_come_from_the_head_as_they_always_did(tmp_path: Path) -> None:
    journal = FakeJournal().head(ts_wall=WALL0 + 50 * S)
    FakeRun(journal, "aaaa", TINY).spend(MS).start().execute().close()
    journal.write(tmp_path)
    assert walls(tmp_path) == [WALL0 + 50 * S]


@pytest.mark.parametrize(("told", "kinds"), [(True, ["slept"]), (False, ["clock_step"])])
def test_a_sleep_is_a_note_and_no_contradiction(tmp_path: Path, told: bool, kinds: list[str]) -> None:
    sleeper(tmp_path, told=told)
    found = audit(tmp_path)
    assert [(one.kind, one.severity) for one in found] == [(kind, "note") for kind in kinds]
    assert CliRunner().invoke(command, ["audit", "--ledger", str(tmp_path)]).exit_code == 0


@pytest.mark.parametrize("step", [-2 * HOUR, 2 * HOUR])
def test_a_clock_that_was_set_is_told_apart_from_a_sleep(tmp_path: Path, step: int) -> None:
    journal = FakeJournal().head(format_version=2)
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    for moved in (0, step):
        journal.add("heartbeat", **damaged.beat(run), ts_wall=WALL0 + journal.now + moved, slept_ns=7)
        run.spend(MS)
    run.execute().close()
    journal.write(tmp_path)
    (found,) = audit(tmp_path)
    assert (found.kind, found.severity) == ("clock_step", "note")
    assert f"{abs(step)} ns {'ahead' if step > 0 else 'back'}" in found.what
    assert "slept" not in found.what


def test_a_clock_that_is_corrected_slowly_is_no_step(tmp_path: Path) -> None:
    journal = FakeJournal().head(format_version=2)
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    for hour in range(30):
        journal.now = hour * HOUR + S
        wall = WALL0 + journal.now + hour * S // 4
        journal.add("heartbeat", **damaged.beat(run), ts_wall=wall, slept_ns=7)
    run.execute().close()
    journal.write(tmp_path)
    assert {finding.kind for finding in audit(tmp_path)} == {"heartbeat_gap"}


# ---- who lives ---------------------------------------------------------------------------------------


def open_run(pid: int, started: str | None, host: str = HERE, **head: Any) -> FakeJournal:
    journal = FakeJournal(host, pid).head(format_version=2, pid_started=started, **head)
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    run.switch("sampling", "step", 1, "core.sample", ("3", "KSampler")).flush()
    return journal


def outcome(journal: FakeJournal, ledger: Path, after_ns: int, age_ns: int | None = None) -> str | None:
    """How the run stands `after_ns` after its last event; `age_ns`: since its file was written to."""
    path = journal.write(ledger)
    now = WALL0 + journal.now + after_ns
    if age_ns is not None:
        os.utime(path, ns=(now - age_ns, now - age_ns))
    (run,) = store.load(ledger, now).runs
    assert rows.summary(run)["outcome"] == run.outcome
    return run.outcome


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits until it is told to end."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait(timeout=60)


@linux
def test_a_process_that_is_known_to_live_is_alive_however_long_it_was_silent(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    journal = open_run(child.pid, alive.started_of(child.pid))
    assert outcome(journal, tmp_path, 9 * HOUR, 9 * HOUR) is None
    child.send_signal(signal.SIGSTOP)
    assert outcome(journal, tmp_path, 9 * HOUR, 9 * HOUR) is None
    child.send_signal(signal.SIGCONT)
    assert child.stdin is not None
    child.stdin.close()
    child.wait(timeout=60)
    assert outcome(journal, tmp_path, S, S) == "lost"


@linux
def test_a_process_that_has_ended_is_dead_before_its_parent_has_asked() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    started = alive.started_of(process.pid)
    end = time.monotonic() + 60
    while time.monotonic() < end and alive.is_alive(HERE, process.pid, started) is not False:
        time.sleep(0.01)
    assert alive.is_alive(HERE, process.pid, started) is False
    process.wait(timeout=60)


@linux
def test_a_pid_that_was_given_out_again_is_another_process(tmp_path: Path) -> None:
    mine = alive.started_of(os.getpid())
    assert mine is not None
    place, _, ticks = mine.rpartition(":")
    assert alive.is_alive(HERE, os.getpid(), mine) is True
    assert alive.is_alive(HERE, os.getpid(), f"{place}:{int(ticks) - 1}") is False
    journal = open_run(os.getpid(), f"{place}:{int(ticks) - 1}")
    assert outcome(journal, tmp_path, 0, 0) == "lost"


@linux
@pytest.mark.parametrize("host", [HERE, "another-name"])
def test_a_process_of_another_container_is_judged_by_its_last_sign_of_life(tmp_path: Path, host: str) -> None:
    mine = alive.started_of(os.getpid())
    assert mine is not None
    boot, _, ticks = mine.split(":")
    there = f"{boot}:1:{ticks}"
    assert alive.is_alive(host, os.getpid(), there) is None
    journal = open_run(os.getpid(), there, host)
    assert outcome(journal, tmp_path, 2 * S, 9 * HOUR) is None  # an event
    assert outcome(journal, tmp_path, 9 * HOUR, 2 * S) is None  # the file alone: it is written to
    assert outcome(journal, tmp_path, 9 * HOUR, 9 * HOUR) == "lost"


def test_where_nothing_says_when_a_process_began_its_journal_must_be_young(tmp_path: Path) -> None:
    journal = open_run(os.getpid(), None)
    assert outcome(journal, tmp_path, 9 * HOUR, 2 * S) is None
    assert outcome(journal, tmp_path, 2 * S, 9 * HOUR) is None
    assert outcome(journal, tmp_path, 9 * HOUR, 9 * HOUR) == "lost"


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**62])
def test_a_pid_that_is_none_is_not_alive(pid: int) -> None:
    assert alive.is_alive(HERE, pid) is False


def test_the_index_says_the_same_of_who_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relation, "SMALL", 0)
    journal = open_run(os.getpid(), alive.started_of(os.getpid()))
    os.utime(journal.write(tmp_path))
    with relation.of_ledger(tmp_path) as runs:
        assert [row["outcome"] for row in runs.rows()] == [None]


# ---- the last sign of life ---------------------------------------------------------------------------


def test_one_time_that_is_years_off_does_not_lengthen_the_runs_that_were_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_run(1, None, "elsewhere")
    journal.add("mark", name="anything", detail=None, ts_mono_ns=2**59)
    journal.now += 500 * MS
    journal.add("mark", name="anything", detail=None)
    journal.write(tmp_path)
    (run,) = store.load(tmp_path).runs
    assert run.segments.total_ns() == journal.now
    monkeypatch.setattr(relation, "SMALL", 0)
    with relation.of_ledger(tmp_path) as runs:
        assert [row["total_ns"] for row in runs.rows()] == [journal.now]


def test_a_long_silence_is_no_damage(tmp_path: Path) -> None:
    journal = open_run(1, None, "elsewhere")
    for _ in range(2):
        journal.now += 5 * HOUR
        journal.add("mark", name="anything", detail=None)
    journal.write(tmp_path)
    (run,) = store.load(tmp_path).runs
    assert run.segments.total_ns() == journal.now
