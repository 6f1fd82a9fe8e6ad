"""Two runs in execution at once, each on a thread of its own: both exact, and nothing of one in the other."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import stagexec
from stagexec.executor import failure
from stagexec.host.tables import SeamRow
from stagexec.host.wrap import wrap
from stagexec.record import live
from stagexec.record.run import VISIT, Run
from tests.executor.tour import PROCESS
from tests.record.conftest import Event, events_in

Thread = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    live.begin_process(tmp_path, **PROCESS)
    return tmp_path


@pytest.fixture
def other() -> Iterator[Thread]:
    """`other(work)`: the result of `work()`, always on the same second thread."""
    with ThreadPoolExecutor(1, "second") as pool:
        yield lambda work: pool.submit(work).result(10)


@pytest.fixture
def helper() -> Iterator[Thread]:
    """The same on a third thread, which executes no run."""
    with ThreadPoolExecutor(1, "ThreadPoolExecutor-9") as pool:
        yield lambda work: pool.submit(work).result(10)


def start(prompt_id: str) -> Run:
    run = live.start(prompt_id)
    assert run is not None
    return run


def seam(name: str, work: Callable[[], Any] = lambda: None) -> Any:
    """A seam round `work`, in the stage `sampling`."""
    row = SeamRow(id=name, target=("pretend:f",), kind="stage", stage="sampling", why="a test", hosts="all")
    return wrap(work, work, row)[0]


def written(ledger: Path, event_type: str, run: Run) -> list[Event]:
    assert live.journal is not None
    assert live.journal.flush()
    return [e for e in events_in(ledger) if e["event_type"] == event_type and e["run_id"] == run.run_id]


def column(ledger: Path, run: Run, name: str, event_type: str = "segments") -> list[Any]:
    return [value for one in written(ledger, event_type, run) for value in one[name]]


def assert_exact(ledger: Path, run: Run) -> None:
    (closed,) = written(ledger, "run_closed", run)
    starts, ends = column(ledger, run, "start_ns"), column(ledger, run, "end_ns")
    assert ends[:-1] == starts[1:]
    assert (starts[0], ends[-1]) == (run.accepted_ns, closed["finished_ns"])
    assert closed["segment_count"] == len(starts)


def test_runs_on_two_threads_are_both_exact_and_keep_their_own_seams(ledger: Path, other: Thread) -> None:
    first = start("worker")
    second = other(lambda: start("beside"))
    for _ in range(3):
        seam("of_first")()
        other(seam("of_second"))
    other(lambda: live.finish(second, {}, {}))
    seam("of_first")()
    live.finish(first, {}, {})
    assert [name for name in column(ledger, first, "seam") if name] == ["of_first"] * 4
    assert [name for name in column(ledger, second, "seam") if name] == ["of_second"] * 3
    assert_exact(ledger, first)
    assert_exact(ledger, second)


def test_a_run_that_starts_does_not_close_one_on_another_thread(ledger: Path, other: Thread) -> None:
    direct = other(lambda: start("direct"))
    worker = start("worker")
    assert not direct.executed
    assert live.current_for_thread() is worker
    assert other(live.current_for_thread) is direct
    live.finish(worker, {}, {})
    other(seam("late"))
    assert live.run is direct
    other(lambda: live.finish(direct, {}, {}))
    assert live.run is None
    assert column(ledger, direct, "seam").count("late") == 1
    assert_exact(ledger, direct)


def test_each_of_two_runs_names_the_other(ledger: Path, other: Thread) -> None:
    first = start("worker")
    second = other(lambda: start("beside"))
    for one, beside in ((first, second), (second, first)):
        (mark,) = written(ledger, "mark", one)
        assert (mark["name"], mark["detail"]) == (
            "beside",
            {"run_id": beside.run_id, "prompt_id": beside.prompt_id},
        )


def test_a_run_that_follows_another_is_not_beside_it(ledger: Path, other: Thread) -> None:
    first = other(lambda: start("a"))
    other(lambda: live.finish(first, {}, {}))
    second = start("b")
    assert written(ledger, "mark", second) == []


def test_a_helper_thread_with_a_context_works_for_the_run_of_that_context(
    ledger: Path, other: Thread, helper: Thread
) -> None:
    first = start("worker")
    second = other(lambda: start("beside"))
    second.next_visit("7", "Node")

    def given_context() -> contextvars.Context:
        VISIT.set((second, 1, "sampling", None))
        return contextvars.copy_context()

    context = contextvars.copy_context().run(given_context)
    helper(lambda: context.run(seam("helped")))
    with_stage = stagexec.stage("vae_decode")
    helper(lambda: context.run(with_stage(lambda: stagexec.artifact("named.png"))))
    assert column(ledger, second, "name", "spans") == ["helped", "stagexec.stage"]
    assert set(column(ledger, second, "lane", "spans")) == {"thread:ThreadPoolExecutor-9_0"}
    assert [node for _, node, _ in second.promised] == ["7"]
    assert column(ledger, first, "lane", "spans") == []
    assert first.promised == []


def test_a_helper_thread_without_a_context_works_for_the_only_run_and_for_none_of_two(
    ledger: Path, other: Thread, helper: Thread
) -> None:
    first = start("worker")
    helper(seam("alone"))
    second = other(lambda: start("beside"))
    helper(seam("two"))
    helper(lambda: stagexec.artifact("two.png"))
    other(lambda: live.finish(second, {}, {}))
    helper(seam("alone"))
    assert column(ledger, first, "name", "spans") == ["alone", "alone"]
    assert column(ledger, second, "name", "spans") == []
    assert (first.promised, second.promised) == ([], [])


def test_a_run_whose_thread_has_ended_is_finished_when_another_starts(ledger: Path) -> None:
    begun: list[Run] = []
    thread = threading.Thread(target=lambda: begun.append(start("left")))
    thread.start()
    thread.join()
    now = start("now")
    (left,) = begun
    assert left.executed
    assert_exact(ledger, left)
    assert list(live.running.values()) == [now]


class Interrupt(Exception):
    """What the host raises in a node when its flag is set."""


class Api:
    """What `failure` asks of a host."""

    interrupt_exception = Interrupt


def test_a_cancel_while_two_execute_belongs_to_the_one_that_it_ends(
    ledger: Path, other: Thread, helper: Thread
) -> None:
    first = start("worker")
    second = other(lambda: start("beside"))
    helper(live.cancel_requested)
    assert (first.cancel_ns, second.cancel_ns) == (None, None)

    def interrupted() -> None:
        failure.failed(Api, second, Interrupt(), stage=None, node_id="1", node_class="N", visit=None)
        live.finish(second, {}, {})

    other(interrupted)
    live.finish(first, {}, {})
    assert second.error is not None
    assert second.error["cause"] == "user_cancel"
    names = [one["name"] for one in written(ledger, "mark", second)]
    assert names == ["beside", "cancel_requested"]
    assert [one["name"] for one in written(ledger, "mark", first)] == ["beside"]
    assert first.cancel_ns is None


def test_a_cancel_that_ended_neither_of_two_runs_is_forgotten_with_them(
    ledger: Path, other: Thread, helper: Thread
) -> None:
    first = start("worker")
    second = other(lambda: start("beside"))
    helper(live.cancel_requested)
    other(lambda: live.finish(second, {}, {}))
    live.finish(first, {}, {})
    third = start("third")
    failure.failed(Api, third, Interrupt(), stage=None, node_id="1", node_class="N", visit=None)
    assert third.error is not None
    assert third.error["cause"] == "interrupted_by_node"


def test_many_runs_on_many_threads_stay_exact(ledger: Path) -> None:
    kept: list[tuple[Run, str]] = []

    def work(number: int) -> None:
        own = seam(f"seam_{number}")
        for turn in range(5):
            run = start(f"{number}.{turn}")
            for _ in range(40):
                own()
            live.finish(run, {}, {})
            kept.append((run, f"seam_{number}"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (live.running, live.run, len(kept)) == ({}, None, 30)
    for run, name in kept:
        assert [one for one in column(ledger, run, "seam") if one] == [name] * 40
        assert_exact(ledger, run)
