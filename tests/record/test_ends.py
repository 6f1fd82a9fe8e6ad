"""How a process ended is told by what it left, and its end is the one that it would have had without us."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stagexec.reading import ends as reading_ends
from stagexec.reading import relation, store
from stagexec.reading.runs import Run
from stagexec.record import ends, live
from stagexec.record.run import Run as LiveRun
from tests.record.conftest import events_in

ROOT = Path(__file__).resolve().parents[2]

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

CHILD = """
import os, signal, subprocess, sys, threading, time
from pathlib import Path
from stagexec.record import clock, ends, live

if hasattr(signal, "SIGQUIT"):
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell without job control has it ignored
live.begin_process(Path(sys.argv[1]), pid=os.getpid(), hostname=__import__("socket").gethostname(),
                   format_version=2, ts_wall=clock.ANCHOR_WALL_NS)
ends.begin()
ends.EXIT_WAIT_S = 0.2
def executed(prompt_id, status="success", error=None):
    run = live.accept(prompt_id, {})
    live.start(prompt_id)
    run.error = error
    live.after_execution = lambda run, history: None   # its files are not checked
    live.finish(run, {"host_status": status}, {})
    return run
executed("filed")
live.accept("waits", {})
live.accept("runs", {})
run = live.start("runs")
run.enter("sampling", "step")
live.journal.flush()
watched = lambda: list(live.journal.path.parent.glob("*.SIG*"))
end = time.monotonic() + 20
files = ends.SIGNAL_FILES if hasattr(signal, "SIGHUP") else ()
free = [name for name in files if signal.getsignal(getattr(signal, name)) == signal.SIG_DFL]
while len(watched()) < len(free) and time.monotonic() < end:
    time.sleep(0.01)
print("ready", flush=True)
"""


class Ended:
    """A process that was ended, and what a reader makes of what it left."""

    def __init__(self, ledger: Path, code: int) -> None:
        self.ledger = ledger
        self.code = code
        loaded = store.load(ledger)
        self.runs: dict[str | None, Run] = {run.prompt_id: run for run in loaded.runs}

    def __getitem__(self, prompt_id: str) -> tuple[str | None, str | None]:
        run = self.runs[prompt_id]
        return run.outcome, run.cause

    @property
    def why(self) -> str:
        return reading_ends.of(self.runs["waits"].process).why

    def files(self) -> list[str]:
        """The suffixes of what lies in the journal's folder, sorted."""
        (day,) = (self.ledger / "journal").iterdir()
        return sorted(path.suffix for path in day.iterdir())


End = Callable[..., Ended]


@pytest.fixture
def end(tmp_path: Path) -> Iterator[End]:
    """`end(code, send=signal)`: a child that goes on with `code`, or is sent a signal once it is ready."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str = "time.sleep(60)", send: int | None = None, before: str = "") -> Ended:
        child = subprocess.Popen(
            [sys.executable, "-c", before + CHILD + code, str(tmp_path)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n", child.stderr.read() if child.stderr else ""
        if send is not None:
            child.send_signal(send)
        child.communicate(timeout=60)
        return Ended(tmp_path, child.returncode)

    yield run
    for child in started:
        if child.poll() is None:
            child.kill()
            child.wait()


STOPPED = ("lost", "process_stopped")
DIED = ("lost", "process_died")
UNCHECKED = ("success_unverified", None)


def test_an_exit_stops_its_runs_and_closes_what_the_host_had_filed(end: End) -> None:
    ended = end("sys.exit(3)")
    assert (ended.code, ended.why) == (3, "exit")
    assert (ended["filed"], ended["waits"], ended["runs"]) == (UNCHECKED, STOPPED, STOPPED)
    assert ends.UNCHECKED in ended.runs["filed"].notes
    assert ended.runs["waits"].error is not None
    assert ended.runs["waits"].error.stage == "queue_wait"
    assert ended.runs["runs"].error is not None
    assert ended.runs["runs"].error.stage == "sampling"
    assert ended.files() == [".jsonl"]


@POSIX
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGQUIT"])
def test_a_signal_ends_the_process_as_ever_and_is_told_from_a_crash(end: End, name: str) -> None:
    number = getattr(signal, name)
    ended = end(send=number)
    assert (ended.code, ended.why) == (-number, f"signal {name}")
    assert (ended["filed"], ended["waits"], ended["runs"]) == (UNCHECKED, STOPPED, STOPPED)
    with relation.of_ledger(ended.ledger) as found:
        told = found.ask("SELECT prompt_id, outcome, cause FROM runs ORDER BY 1")
    assert told == [
        {"prompt_id": "filed", "outcome": "success_unverified", "cause": None},
        {"prompt_id": "runs", "outcome": "lost", "cause": "process_stopped"},
        {"prompt_id": "waits", "outcome": "lost", "cause": "process_stopped"},
    ]


@POSIX
def test_a_signal_is_noted_while_the_gil_is_held(end: End) -> None:
    ended = end("import ctypes; ctypes.PyDLL(None).sleep(60)", send=signal.SIGTERM)
    assert (ended.code, ended.why, ended["runs"]) == (-signal.SIGTERM, "signal SIGTERM", STOPPED)


@POSIX
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed"),
        ("os._exit(0)", "killed"),
        ("os.abort()", "killed"),
        ("ends.leaving(ValueError('x'), False)", "exception"),
    ],
)
def test_a_crash_or_kill_counts_against_its_runs(end: End, code: str, why: str) -> None:
    ended = end(code)
    assert ended.why == why
    assert (ended["waits"], ended["runs"]) == (DIED, DIED)
    assert ended.runs["runs"].error is not None
    assert ended.runs["runs"].error.message
    told = ended.runs["runs"].process.end
    assert (told.exception_type if told is not None else None) == (
        "ValueError" if why == "exception" else None
    )


def test_ctrl_c_is_told_from_other_exits(end: End) -> None:
    assert end("ends.leaving(None, True)").why == "signal SIGINT"


@POSIX
@pytest.mark.parametrize(
    ("before", "number"),
    [
        ("import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n", "SIGHUP"),
        ("import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n", "SIGTERM"),
    ],
)
def test_a_signal_that_somebody_has_a_use_for_stays_theirs(end: End, before: str, number: str) -> None:
    ended = end(f"os.kill(os.getpid(), signal.{number}); time.sleep(0.2); sys.exit(8)", before=before)
    assert ended.code == (7 if number == "SIGTERM" else 8)
    assert (ended.why, ended["runs"]) == ("exit", STOPPED)


@POSIX
def test_a_handler_that_a_pack_puts_in_later_is_the_only_one(end: End) -> None:
    code = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); os.kill(os.getpid(), signal.SIGTERM)"
    ended = end(f"{code}; time.sleep(9)")
    assert (ended.code, ended.why, ended.files()) == (7, "exit", [".jsonl"])


@POSIX
def test_python_and_its_packs_see_no_handler_of_ours(end: End) -> None:
    code = (
        "import json; print(json.dumps([signal.getsignal(n) == signal.SIG_DFL "
        "for n in (signal.SIGTERM, signal.SIGHUP)] + [signal.getsignal(signal.SIGINT) == "
        "signal.default_int_handler]), file=open(sys.argv[1] + '/seen', 'w')); sys.exit(0)"
    )
    assert json.loads((end(code).ledger / "seen").read_text()) == [True, True, True]


@POSIX
def test_a_child_that_is_forked_and_ended_says_nothing_of_its_parent(end: End) -> None:
    code = (
        "child = os.fork()\nif not child: time.sleep(60)\ntime.sleep(0.3); os.kill(child, signal.SIGTERM)\n"
        "assert os.waitpid(child, 0)[1] == signal.SIGTERM\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = end(code)
    assert (ended.code, ended.why, ended["runs"]) == (-signal.SIGKILL, "killed", DIED)


@POSIX
def test_a_node_that_closes_every_descriptor_it_finds_does_not_get_our_text(end: End) -> None:
    code = (
        "os.closerange(3, 256)\nmine = [open(sys.argv[1] + f'/mine{n}', 'w') for n in range(40)]\n"
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)"
    )
    ended = end(code)
    assert ended.code == -signal.SIGTERM
    assert {path.stat().st_size for path in ended.ledger.glob("mine*")} == {0}


def test_a_restart_is_said_before_it_happens(end: End) -> None:
    ended = end("ends.restarting(); os._exit(0)")
    assert ended.why == "restart"
    assert (ended["filed"], ended["waits"], ended["runs"]) == (UNCHECKED, STOPPED, STOPPED)


def test_a_successor_that_was_started_makes_an_end_without_a_word_a_restart(end: End) -> None:
    ended = end("ends.restart_begun(); os._exit(0)")
    assert (ended.why, ended["waits"], ended["runs"]) == ("restart", STOPPED, STOPPED)


def test_a_restart_that_fails_lets_the_journal_go_on(end: End) -> None:
    code = (
        "resume = ends.restarting(); resume()\nrun.leave(1); live.accept('later', {}); live.journal.flush()\n"
        "time.sleep(0.2); os._exit(0)"
    )
    ended = end(code)
    assert ended.why == "killed"
    assert (ended["runs"], ended["later"]) == (DIED, DIED)
    assert [one.name for one in ended.runs["later"].process.faults] == []


@POSIX
def test_what_an_earlier_process_left_empty_is_removed_by_the_next(end: End) -> None:
    first = end("os.kill(os.getpid(), signal.SIGKILL)")
    assert first.files() == [".SIGHUP", ".SIGQUIT", ".SIGTERM", ".jsonl"]
    second = end("time.sleep(0.5); sys.exit(0)")
    assert second.files() == [".jsonl", ".jsonl"]
    told = end(send=signal.SIGTERM)
    assert ".SIGTERM" in told.files()
    assert ".SIGTERM" in end("time.sleep(0.5); sys.exit(0)").files(), "it tells of a signal"


# --- in this process ----------------------------------------------------------------------------------


def executed(prompt_id: str) -> LiveRun:
    run = live.accept(prompt_id, {})
    live.start(prompt_id)
    assert run is not None
    live.after_execution = lambda run, history: None
    live.finish(run, {"host_status": "success"}, {})
    return run


def test_a_check_that_ends_in_time_decides_and_no_second_end_is_written(tmp_path: Path) -> None:
    live.begin_process(tmp_path, pid=0, hostname="h", format_version=2)
    run = executed("p")
    live.close(run, "success", None, None)
    ends.close_executed(0.0)
    live.close(run, "failed", None, None)
    assert live.journal is not None
    live.journal.flush()
    closed = [one for one in events_in(tmp_path) if one["event_type"] == "run_closed"]
    assert [(one["outcome"], one["reason"]) for one in closed] == [("success", None)]


def test_what_is_not_checked_in_time_is_closed_as_the_host_has_filed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stagexec.delivery import outcome

    monkeypatch.setattr(ends, "unchecked", outcome.unchecked)
    live.begin_process(tmp_path, pid=0, hostname="h", format_version=2)
    runs = {name: executed(name) for name in ("good", "bad", "cancelled")}
    runs["bad"].error = {"cause": "oom", "visit": None, "stage": "sampling", "message": None}
    runs["cancelled"].error = {"cause": "user_cancel", "visit": None, "stage": "sampling", "message": None}
    ends.close_executed(0.0)
    assert live.journal is not None
    live.journal.flush()
    by_id = {run.run_id: name for name, run in runs.items()}
    closed = {
        by_id[one["run_id"]]: (one["outcome"], one["cause"], one["reason"])
        for one in events_in(tmp_path)
        if one["event_type"] == "run_closed"
    }
    assert closed == {
        "good": ("success_unverified", None, ends.UNCHECKED),
        "bad": ("failed", "oom", ends.UNCHECKED),
        "cancelled": ("cancelled", "user_cancel", ends.UNCHECKED),
    }


def test_a_disk_that_hangs_does_not_keep_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live.begin_process(tmp_path, pid=0, hostname="h", format_version=2)
    assert live.journal is not None
    monkeypatch.setattr(ends, "_begun_by", os.getpid())
    monkeypatch.setattr(ends, "RESTART_S", 0.05)
    journal = live.journal
    journal.flush()
    with journal._lock:  # the writer is in a write that does not come back
        begun = time.monotonic()
        ends.restarting()
        assert time.monotonic() - begun < 4
    for _ in range(200):
        if events_in(tmp_path)[-1]["event_type"] == "process_end":
            break
        time.sleep(0.05)
    assert events_in(tmp_path)[-1]["reason"] == "restart"


def test_nothing_is_noted_outside_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "_begun_by", 0)
    ends.begin()
    ends.leaving(None, False)
    assert ends.restarting() is None
    ends.at_exit()
    assert ends._begun_by == 0
