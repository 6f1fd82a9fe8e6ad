"""A node that holds the interpreter's lock is not taken for a slow disk."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from pathlib import Path

import pytest

from stagexec.record import live, turns
from tests.record.conftest import events_in


def hold(times: int) -> threading.Thread:
    """A thread that holds the interpreter's lock for 0.6 s at a time."""
    nap = ctypes.PyDLL(None).usleep

    def work() -> None:
        for _ in range(times):
            nap(600_000)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.skipif(sys.platform == "win32", reason="needs usleep")
def test_a_prompt_accepted_while_a_node_holds_the_lock_is_on_the_disk_when_it_is_answered_for(
    tmp_path: Path,
) -> None:
    live.begin_process(tmp_path, pid=1)
    journal = live.journal
    assert journal is not None
    assert journal.flush()
    live.accept("before", {})
    holding = hold(12)
    accepted = 0
    while holding.is_alive():
        live.accept(f"p{accepted}", {})
        accepted += 1
        assert not journal._queue  # nothing was left to the writer, which may never have a turn
        assert not journal._waiting
        time.sleep(0.3)
    assert accepted
    assert (journal._direct_again_at, journal._wait_again_at) == (0.0, 0.0)
    told = [one["prompt_id"] for one in events_in(tmp_path) if one["event_type"] == "run_accepted"]
    assert told == ["before", *(f"p{number}" for number in range(accepted))]


def test_a_wait_in_vain_is_begun_again_only_where_the_lock_took_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(turns.time, "monotonic", lambda: now[0])
    took = iter([0.6, 0.6, 0.1])
    waits: list[float] = []

    def wait(timeout_s: float) -> bool:
        waits.append(timeout_s)
        now[0] += next(took)
        return False

    assert not turns.patiently(wait, 0.1)
    assert waits == [0.1] * 3
    took = iter([9.0] * 9)
    assert not turns.patiently(wait, 0.1)
    assert len(waits) == 3 + turns.TURNS
