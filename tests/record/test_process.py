"""A tiny process beside ours notes until when ours lived, also while a node holds the interpreter's lock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stagexec.reading import relation, store
from stagexec.record import process

ROOT = Path(__file__).resolve().parents[2]

CHILD = """
import ctypes, os, sys, time
from pathlib import Path
from stagexec.record import live
live.begin_process(Path(sys.argv[1]), watched=True, pid=os.getpid())
while live.journal._watcher is None:
    time.sleep(0.01)
if sys.argv[2] != "idle":
    live.accept("p", {})
    run = live.start("p")
    run.next_visit("7", "HoldsTheLock")
    run.enter("node_other", "HoldsTheLock")
    live.show_open(run)
print(time.perf_counter_ns(), flush=True)
if sys.argv[2] == "closes":
    os.close(live.journal._watcher._pipe)
if sys.argv[2] == "lock":
    ctypes.PyDLL(None).usleep(60_000_000)
elif sys.argv[2] == "exec":
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"])
elif sys.argv[2] != "exit":
    time.sleep(60)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the watcher is proven on Linux alone")


def begun(ledger: Path, what: str) -> subprocess.Popen[str]:
    """A process with a watcher, which has done what it is to be killed in."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(ledger), what],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    return child


def life_of(ledger: Path) -> dict[str, Any]:
    (file,) = ledger.glob("journal/*/*.life")
    found: dict[str, Any] = json.loads(file.read_bytes().strip() or b"{}")
    return found


def told(ledger: Path, state: str, seconds: float = 10.0) -> dict[str, Any]:
    """What the watcher says when it has come to this state."""
    end = time.monotonic() + seconds
    while life_of(ledger).get("state") != state:
        assert time.monotonic() < end, life_of(ledger)
        time.sleep(0.01)
    return life_of(ledger)


def kill_group(child: subprocess.Popen[str]) -> None:
    os.killpg(child.pid, signal.SIGKILL)


def kill_one(child: subprocess.Popen[str]) -> None:
    child.kill()


@pytest.mark.parametrize("what", ["lock", "sleep", "idle"])
@pytest.mark.parametrize("kill", [kill_one, kill_group])
def test_the_moment_of_a_kill_is_known(tmp_path: Path, what: str, kill: Any) -> None:
    child = begun(tmp_path, what)
    time.sleep(0.7)
    before = time.perf_counter_ns()
    kill(child)
    child.wait()
    life = told(tmp_path, "died")
    assert before <= life["mono_ns"] <= time.perf_counter_ns()
    assert life["pid"] == child.pid
    if what != "idle":
        _, (stage, part, start_ns, visit, _), node = life["open"]
        assert (stage, part, visit, node) == ("node_other", "HoldsTheLock", 1, ["7", "HoldsTheLock"])
        assert start_ns < before


def test_a_run_killed_in_a_node_that_holds_the_lock_has_all_its_time_in_that_node(tmp_path: Path) -> None:
    child = begun(tmp_path, "lock")
    started = time.perf_counter_ns()
    time.sleep(1.0)
    child.kill()
    killed = time.perf_counter_ns()
    child.wait()
    told(tmp_path, "died")
    (run,) = store.load(tmp_path).runs
    assert (run.outcome, run.cause) == ("lost", "process_died")
    assert run.error is not None
    assert (run.error.stage, run.error.node_id, run.error.node_class) == ("node_other", "7", "HoldsTheLock")
    ends = run.segments.end_ns[-1]
    assert killed - 1_000_000 <= ends <= time.perf_counter_ns()
    in_node = sum(
        end - start
        for stage, start, end in zip(
            run.segments.stage, run.segments.start_ns, run.segments.end_ns, strict=True
        )
        if stage == "node_other"
    )
    assert in_node >= killed - started
    assert run.segments.total_ns() == ends - run.accepted_ns
    with relation.of_ledger(tmp_path, processes=1) as found:
        (row,) = found.rows("true", [], 10)
    assert (row["total_ns"], row["outcome"]) == (run.segments.total_ns(), "lost")


def test_a_sign_of_life_comes_while_a_node_holds_the_lock(tmp_path: Path) -> None:
    child = begun(tmp_path, "lock")
    try:
        time.sleep(1.5)
        age_ns = time.perf_counter_ns() - told(tmp_path, "alive")["mono_ns"]
    finally:
        child.kill()
        child.wait()
    assert age_ns < 1_000_000_000 + 1_000_000_000  # half a second, and what a loaded machine adds


def test_a_process_without_runs_costs_no_write(tmp_path: Path) -> None:
    child = begun(tmp_path, "idle")
    try:
        time.sleep(1.5)
        assert life_of(tmp_path) == {}
    finally:
        child.kill()
        child.wait()


def test_an_orderly_end_leaves_no_file(tmp_path: Path) -> None:
    child = begun(tmp_path, "exit")
    child.wait(30)
    end = time.monotonic() + 10
    while list(tmp_path.glob("journal/*/*.life")):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_process_that_becomes_another_program_is_watched_no_longer(tmp_path: Path) -> None:
    child = begun(tmp_path, "exec")
    try:
        assert told(tmp_path, "died")["pid"] == child.pid
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_the_watcher_is_no_child_of_ours_and_ends_with_us(tmp_path: Path) -> None:
    child = begun(tmp_path, "sleep")
    watchers = watching(child.pid)
    assert len(watchers) == 1
    assert watchers[0][1] != child.pid
    child.kill()
    child.wait()
    end = time.monotonic() + 10
    while watching(child.pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def watching(pid: int) -> list[tuple[int, int]]:
    """(process, its parent) of the watchers of process `pid`."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if str(pid).encode() in words and any(word.endswith(b"record/process.py") for word in words):
            found.append((int(folder.name), parent))
    return found


def test_a_process_is_told_from_a_later_one_with_its_number() -> None:
    ours = process.started_of()
    assert ours is not None
    assert ours == process.started_of(os.getpid())
    assert len(ours.split(":")) == 3
    time.sleep(0.02)  # two processes of one tick of the clock, 10 ms, cannot have one number
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as later:
        assert process.started_of(later.pid) != ours
        later.kill()
    assert process.started_of(2**22 + 1) is None


def test_a_watcher_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    watcher = process.Watcher(tmp_path / "x.life")
    assert "no-python" in (watcher.start() or "")
    watcher.tell(True)


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no watcher")
def test_what_a_node_opens_under_the_number_of_our_pipe_is_never_written_to(tmp_path: Path) -> None:
    watcher = process.Watcher(tmp_path / "x.life")
    assert watcher.start() is None
    number = watcher._pipe
    assert number is not None
    os.close(number)
    user = os.open(tmp_path / "user.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(user, number)
    for busy in (True, False, True):
        watcher.tell(busy)
    os.close(user)
    os.close(number)
    assert (tmp_path / "user.txt").read_bytes() == b""


def test_a_node_that_closes_the_pipe_does_not_make_the_watcher_leave(tmp_path: Path) -> None:
    child = begun(tmp_path, "closes")
    try:
        time.sleep(1.0)
        assert life_of(tmp_path)["state"] == "alive"
    finally:
        before = time.perf_counter_ns()
        child.kill()
        child.wait()
    assert told(tmp_path, "died")["mono_ns"] >= before
