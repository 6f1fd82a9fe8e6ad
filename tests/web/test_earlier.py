"""Runs that a dead process left open are told once, by the next server on the ledger."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from stagexec.reading import relation
from stagexec.views.prometheus import Metrics
from stagexec.web import earlier, setup
from stagexec.web.earlier import Earlier
from tests.reading.fake_journal import MS, TINY, FakeJournal, FakeRun, cached_run

HERE = socket.gethostname()
NO_PID = 2**22 + 1
LOST = ["runs", "wait"]


class Server:
    """What one server of the ledger told, each run by the first letters of its id."""

    def __init__(self, ledger: Path, own: Path | None = None, metrics: Metrics | None = None) -> None:
        self.told: list[tuple[str, str]] = []
        self.faults: list[str] = []
        listeners: list[Any] = [lambda ended: self.told.append((ended.row["run_id"][:4], ended.row["cause"]))]
        if metrics is not None:
            listeners.append(lambda ended: setup.observe(metrics, ended))
        self.earlier = Earlier(
            lambda: ledger,
            lambda: own,
            listeners,
            lambda where, error: self.faults.append(f"{where}: {error}"),
        )

    def look(self) -> int:
        unsure = self.earlier.look()
        assert self.faults == []
        return unsure

    @property
    def names(self) -> list[str]:
        return sorted(name for name, _ in self.told)


def dead(ledger: Path, pid: int = NO_PID, host: str = HERE, **head: Any) -> Path:
    """The journal of a process that left two runs open."""
    journal = FakeJournal(host, pid).head(**{"format_version": 2, **head})
    cached_run(journal, "done")
    run = FakeRun(journal, "runs", TINY).spend(MS).start().spend(MS).switch("sampling").flush()
    FakeRun(journal, "wait", TINY)
    journal.heartbeat(run)
    return journal.write(ledger)


def age(path: Path, seconds: float) -> None:
    at = path.stat().st_mtime_ns - round(seconds * 1e9)
    os.utime(path, ns=(at, at))


def test_each_lost_run_is_told_once_whatever_number_of_servers_and_starts(tmp_path: Path) -> None:
    dead(tmp_path)
    first, second = Server(tmp_path), Server(tmp_path)
    together = [threading.Thread(target=one.look) for one in (first, second)]
    for thread in together:
        thread.start()
    for thread in together:
        thread.join()
    assert sorted(first.names + second.names) == LOST
    later = Server(tmp_path)
    assert later.look() == 0
    assert later.told == []


def test_metrics_count_as_many_lost_runs_as_the_ledger_has(tmp_path: Path) -> None:
    for pid in range(3):
        path = dead(tmp_path, NO_PID + pid)
        path.write_bytes(path.read_bytes().replace(b'"run_id": "', b'"run_id": "%d' % pid))
        if pid == 2:
            path.with_suffix(".SIGTERM").write_text("Current thread")
    metrics = Metrics()
    Server(tmp_path, metrics=metrics).look()
    text = metrics.text().decode()
    counted = {
        cause: int(float(count))
        for cause, count in re.findall(r'stagexec_runs_total\{cause="(\w+)",outcome="lost"\} (\S+)', text)
    }
    with relation.of_ledger(tmp_path) as found:
        rows = found.ask("SELECT cause, count(*) AS n FROM runs WHERE outcome = 'lost' GROUP BY ALL")
    assert counted == {row["cause"]: row["n"] for row in rows} == {"process_died": 4, "process_stopped": 2}
    failures = re.findall(r"stagexec_failures_total\{(.*?)\} (\S+)", text)
    assert {re.findall(r'cause="(\w+)"', labels)[0] for labels, _ in failures} == {"process_died"}
    assert sum(float(count) for _, count in failures) == 4


def test_a_living_process_and_this_one_are_left_alone(tmp_path: Path) -> None:
    own = dead(tmp_path, os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        dead(tmp_path, child.pid)
        server = Server(tmp_path, own)
        assert server.look() == 1
        assert server.told == []
    finally:
        child.communicate(b"\n")
    assert server.look() == 0
    assert server.names == LOST


def test_a_process_before_a_restart_in_place_is_dead_though_its_number_lives(tmp_path: Path) -> None:
    dead(tmp_path, os.getpid())
    server = Server(tmp_path, tmp_path / "journal" / "day" / "mine.jsonl")
    server.look()
    assert server.names == LOST


def test_a_process_of_another_machine_is_dead_when_it_was_silent_for_long(tmp_path: Path) -> None:
    path = dead(tmp_path, 5, "another-machine")
    server = Server(tmp_path)
    assert server.look() == 1
    assert server.told == []
    age(path, 2 * earlier.SILENT_NS / 1e9)
    assert server.look() == 0
    assert server.names == LOST


def test_runs_of_an_earlier_release_are_old_news(tmp_path: Path) -> None:
    dead(tmp_path, format_version=1)
    server = Server(tmp_path)
    assert server.look() == 0
    assert server.told == []


@pytest.mark.parametrize("content", [b"", b"\xff\n{}\n", b'{"event_type": "process_start"'])
def test_a_journal_without_a_head_keeps_no_other_back(tmp_path: Path, content: bytes) -> None:
    path = dead(tmp_path)
    (path.parent / f"{HERE}-{NO_PID + 1}-1.jsonl").write_bytes(content)
    server = Server(tmp_path)
    assert server.look() == 1
    assert server.names == LOST


def test_a_ledger_that_cannot_be_written_tells_nothing_twice(tmp_path: Path) -> None:
    dead(tmp_path)
    (tmp_path / "told").write_text("a file, and no folder")
    server = Server(tmp_path)
    for _ in range(2):
        assert server.look() == 1
    assert server.told == []


def test_a_listener_that_faults_keeps_no_other_from_hearing(tmp_path: Path) -> None:
    dead(tmp_path)
    got: list[Any] = []
    faults: list[str] = []

    def bad(_ended: Any) -> None:
        raise RuntimeError("bad listener")

    hears = [bad, lambda ended: got.append(ended.run().outcome)]
    Earlier(lambda: tmp_path, lambda: None, hears, lambda _, error: faults.append(str(error))).look()
    assert (got, faults) == (["lost", "lost"], ["bad listener"] * 2)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no space can be reserved here")
def test_what_a_dead_process_had_reserved_is_given_back_and_its_journal_unchanged(tmp_path: Path) -> None:
    path = dead(tmp_path)
    before = path.read_bytes()
    done = subprocess.run(
        ["fallocate", "-n", "-l", str(16 * 1024**2), str(path)], capture_output=True, check=False
    )
    if done.returncode or path.stat().st_blocks * 512 < 8 * 1024**2:
        pytest.skip("this file system reserves nothing")
    written = path.stat().st_mtime_ns
    Server(tmp_path).look()
    assert path.read_bytes() == before
    assert path.stat().st_blocks * 512 < 1024**2
    assert path.stat().st_mtime_ns == written


def test_a_journal_that_has_changed_since_it_was_read_is_not_cut(tmp_path: Path) -> None:
    path = dead(tmp_path)
    seen = path.stat()
    bigger = os.stat_result(
        (*seen[:6], 10, *seen[7:10]), {"st_blocks": 10**6, "st_mtime_ns": seen.st_mtime_ns}
    )
    earlier.trim(path, bigger)
    assert path.stat().st_size == seen.st_size
