"""Parts of the loop's time that the host's functions take are named in the run of their thread."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from stagexec.executor import parts
from stagexec.record import clock, live
from stagexec.record.run import Run

MS = 1_000_000


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The run that this thread executes, between two nodes."""
    one = Run("prompt", clock.now_ns(), clock.now_ns)
    one.thread = threading.get_ident()
    one.ledger.switch("executor_overhead")
    monkeypatch.setattr(live, "run", one)
    monkeypatch.setattr(live, "running", {one.thread: one})
    return one


def slow(value: Any) -> Any:
    time.sleep(0.03)
    return value


def named(run: Run) -> list[tuple[str, str | None]]:
    """(stage, part) of all segments; they are one partition."""
    run.ledger.close(clock.now_ns())
    rows = list(run.ledger.pending)
    assert [open_[2] for open_, _ in rows][1:] == [end for _, end in rows][:-1]
    return [open_[:2] for open_, _ in rows]


def length(run: Run, part: str) -> int:
    return sum(end - open_[2] for open_, end in run.ledger.pending if open_[1] == part)


def test_what_the_cache_gives_back_between_two_nodes_is_eviction(run: Run) -> None:
    assert parts.eviction(None, slow)("kept") == "kept"
    assert ("executor_overhead", "eviction") in named(run)
    assert length(run, "eviction") >= 30 * MS


def test_inside_a_stage_it_stays_that_stages_time(run: Run) -> None:
    depth = run.enter("model_load_residency", "upload")
    parts.eviction(None, slow)("kept")
    run.leave(depth)
    assert ("executor_overhead", "eviction") not in named(run)


@pytest.mark.parametrize("in_visit", [True, False])
def test_of_a_node_that_the_hosts_loop_visits_its_inputs_are_taken_out(run: Run, in_visit: bool) -> None:
    depth = run.enter("postprocess", "Upscale")
    assert parts.timed("inputs", slow, lambda: in_visit)("kept") == "kept"
    run.leave(depth)
    stages = named(run)
    assert (("executor_overhead", "inputs") in stages) is in_visit
    assert stages.count(("postprocess", "Upscale")) == (2 if in_visit else 1)


def test_what_another_thread_does_is_not_in_the_run(run: Run) -> None:
    thread = threading.Thread(target=parts.eviction(None, slow), args=("kept",))
    thread.start()
    thread.join()
    assert ("executor_overhead", "eviction") not in named(run)


def test_the_hosts_error_goes_on_its_way_and_its_time_is_named(run: Run) -> None:
    def raises() -> None:
        time.sleep(0.03)
        raise ValueError("the host's own")

    with pytest.raises(ValueError, match="the host's own"):
        parts.eviction(None, raises)()
    assert length(run, "eviction") >= 30 * MS
