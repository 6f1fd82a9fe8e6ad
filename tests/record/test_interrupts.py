"""Who ended a run by the host's interrupt: the first to ask, as long as what was asked still stands."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from stagexec.record import interrupts, live
from stagexec.record.run import Run
from tests.executor.tour import PROCESS
from tests.record.conftest import events_in


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    live.begin_process(tmp_path, **PROCESS)
    return tmp_path


@pytest.fixture
def run(ledger: Path) -> Run:
    run = live.start("p")
    assert run is not None
    return run


def marks(ledger: Path) -> list[tuple[str, Any]]:
    assert live.journal is not None
    assert live.journal.flush()
    return [(one["name"], one["detail"]) for one in events_in(ledger) if one["event_type"] == "mark"]


def test_code_that_pressed_is_named_and_no_cancel_is_kept(run: Run, ledger: Path) -> None:
    interrupts.pressed_by_code("visit")
    interrupts.pressed_by_code("thread")
    assert interrupts.cause_of(run) == (
        "interrupted_by_node",
        "code outside of every node asked for the interrupt",
    )
    assert run.cancel_ns is None
    assert marks(ledger) == [("interrupt_pressed", {"door": "visit"})]


def test_of_a_person_and_code_the_first_is_the_cause(run: Run) -> None:
    interrupts.pressed_by_code("visit")
    live.cancel_requested()
    assert interrupts.cause_of(run)[0] == "interrupted_by_node"


def test_code_that_presses_after_a_person_changes_nothing(run: Run) -> None:
    live.cancel_requested()
    interrupts.pressed_by_code("visit")
    assert interrupts.cause_of(run)[0] == "user_cancel"


def test_a_flag_that_was_lowered_again_leaves_the_cause_to_who_asks_next(run: Run) -> None:
    interrupts.pressed_by_code("visit")
    interrupts.lowered()
    live.cancel_requested()
    assert interrupts.cause_of(run)[0] == "user_cancel"


def test_an_interrupt_that_was_raised_with_no_flag_is_the_nodes(run: Run) -> None:
    assert interrupts.cause_of(run)[0] == "interrupted_by_node"


def test_what_code_pressed_in_one_run_does_not_end_the_next(run: Run) -> None:
    interrupts.pressed_by_code("visit")
    live.finish(run, {}, {})
    following = live.start("q")
    assert following is not None
    live.cancel_requested()
    assert interrupts.cause_of(following)[0] == "user_cancel"


def test_a_press_while_nothing_executes_is_forgotten(ledger: Path) -> None:
    interrupts.pressed_by_code("thread")
    run = live.start("p")
    assert run is not None
    live.cancel_requested()
    assert (interrupts.cause_of(run)[0], marks(ledger)[0][0]) == ("user_cancel", "cancel_requested")


def test_a_prompt_that_code_took_from_the_queue_failed_and_was_not_cancelled(ledger: Path) -> None:
    gone = live.accept("gone", {})
    assert gone is not None
    thread = threading.Thread(target=live.forget, args=([], True))
    thread.start()
    thread.join()
    assert live.journal is not None
    assert live.journal.flush()
    (closed,) = [one for one in events_in(ledger) if one["event_type"] == "run_closed"]
    assert (closed["outcome"], closed["cause"], closed["error"]["stage"], closed["cancel_ns"]) == (
        "failed",
        "interrupted_by_node",
        "queue_wait",
        None,
    )


def test_a_fault_as_a_person_asks_leaves_the_cause_open(
    run: Run, monkeypatch: pytest.MonkeyPatch, faults_expected: list[tuple[str, str]]
) -> None:
    def faulty(*_args: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(live, "_cancel", faulty)
    live.cancel_requested()
    assert run.cancel_ns is None
    assert [where for where, _ in faults_expected] == ["cancel_requested"]
