"""A full garbage collection while a run is being verified is the executor's time, not delivery's."""

from __future__ import annotations

import gc
import threading

import pytest

from stagexec.record import live, pauses
from stagexec.record.run import Run


@pytest.fixture
def executed():
    """A run that has been executed and waits for its verification."""
    times = iter(range(0, 10_000, 10))
    run = Run("prompt", 0, lambda: next(times))
    run.ledger.switch("delivery_commit", "verify")
    live.finishing[run.run_id] = run
    yield run
    live.finishing.pop(run.run_id, None)


def stages(run):
    return [open_[0] for open_, _ in run.ledger.pending]


def test_a_full_collection_is_the_executors_time(executed):
    pauses._pause("start", {"generation": 2})
    pauses._pause("stop", {"generation": 2})
    executed.ledger.close(1_000)
    assert stages(executed) == ["queue_wait", "delivery_commit", "executor_overhead", "delivery_commit"]


def test_a_young_collection_is_not_looked_at(executed):
    pauses._pause("start", {"generation": 0})
    pauses._pause("stop", {"generation": 0})
    assert stages(executed) == ["queue_wait"]


def test_a_run_that_is_being_closed_is_left_alone(executed):
    with executed.closing:
        pauses._pause("start", {"generation": 2})
    executed.ledger.close(1_000)
    pauses._pause("stop", {"generation": 2})
    assert stages(executed) == ["queue_wait", "delivery_commit"]


def test_a_run_closed_during_the_collection_still_adds_up(executed):
    pauses._pause("start", {"generation": 2})
    executed.ledger.close(1_000)
    pauses._pause("stop", {"generation": 2})
    ends = [end for _, end in executed.ledger.pending]
    starts = [open_[2] for open_, _ in executed.ledger.pending]
    assert starts[1:] == ends[:-1]
    assert ends[-1] == 1_000


def test_the_interpreter_tells_of_its_collections(executed):
    pauses.watch()
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(pauses._pause)
    assert "executor_overhead" in [*stages(executed), executed.ledger.open[0]]


def test_a_collection_is_due_when_the_last_is_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(pauses.clock, "now_ns", lambda: now[0])
    monkeypatch.setattr(pauses, "_last_ns", None)
    monkeypatch.setattr(pauses.gc, "callbacks", [])
    assert not pauses.due(100)  # nobody watches
    pauses.watch()
    assert pauses.due(100)
    pauses._pause("stop", {"generation": 2})
    now[0] = 100
    assert not pauses.due(100)
    now[0] = 101
    assert pauses.due(100)
    pauses._pause("stop", {"generation": 1})
    assert pauses.due(100)


def test_a_collection_while_a_run_waits_for_our_thread_goes_on_as_what_the_run_does_by_then(executed):
    with executed.closing:
        executed.ledger.rebase("delivery_commit", "verify", "waiting")
    pauses._pause("start", {"generation": 2})
    with executed.closing:
        executed.ledger.rebase("delivery_commit", "verify")
    pauses._pause("stop", {"generation": 2})
    executed.ledger.close(1_000)
    seams = [open_[4] for open_, _ in executed.ledger.pending]
    assert seams == [None, None, "waiting", pauses.SEAM, None]


def test_a_collection_ends_although_another_thread_holds_the_run_for_a_moment(executed):
    pauses._pause("start", {"generation": 2})
    executed.closing.acquire()
    threading.Timer(0.05, executed.closing.release).start()
    pauses._pause("stop", {"generation": 2})
    assert executed.ledger.open[0] == "delivery_commit"
