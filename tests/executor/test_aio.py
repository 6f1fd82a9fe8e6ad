"""The event loop of a run: idling is external_wait, and each step belongs to the visit it works for."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from itertools import pairwise
from types import CoroutineType
from typing import Any

import pytest

from stagexec.executor import lane, leftover
from stagexec.executor.aio import span_of_task, watch
from stagexec.host import visits
from stagexec.record import clock
from stagexec.record.guard import GUARDED
from stagexec.record.run import VISIT, Run

SLEEP_S = 0.1


@pytest.fixture
def run() -> Run:
    """A run whose main lane is in the loop between visits."""
    one = Run("p", clock.now_ns(), clock.now_ns)
    one.thread = threading.get_ident()
    one.ledger.switch("executor_overhead")
    return one


def execute(run: Run, main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """`main` on an event loop that is watched for `run`, as the prompt loop does it."""

    async def watched() -> Any:
        watch(run)
        return await main()

    result = asyncio.run(watched())
    run.ledger.switch("executor_overhead")
    return result


def node_task(run: Run, node_id: str, stage: str, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task made inside the visit of an async node."""
    visit = run.next_visit(node_id, node_id)
    token = VISIT.set((run, visit, stage, None))
    try:
        task = asyncio.create_task(coro)
    finally:
        VISIT.reset(token)
        run.end_visit()
    span_of_task(run, task, node_id, visit, stage, run.clock())
    return task


def segments(run: Run, stage: str) -> Iterator[tuple[int, int | None]]:
    """(length, visit) of each segment of a stage."""
    return ((end - open_[2], open_[3]) for open_, end in run.ledger.pending if open_[0] == stage)


def total(run: Run, stage: str) -> int:
    return sum(length for length, _ in segments(run, stage))


# ---- when the loop idles ----------------------------------------------------------------------------


def test_sleeping_is_external_wait_and_working_is_not(run: Run) -> None:
    async def main() -> None:
        await asyncio.sleep(SLEEP_S)
        time.sleep(SLEEP_S)

    execute(run, main)
    assert total(run, "external_wait") >= SLEEP_S * 0.98e9
    assert total(run, "executor_overhead") >= SLEEP_S * 0.98e9


def test_external_wait_is_exactly_the_time_inside_the_selector(run: Run) -> None:
    inside: list[tuple[int, int]] = []

    async def main() -> None:
        selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
        real = selector.select

        def select(timeout: float | None = None) -> Any:
            start = run.clock()
            try:
                return real(timeout)
            finally:
                if timeout is None or timeout > 0:
                    inside.append((start, run.clock()))

        selector.select = select
        watch(run)
        for _ in range(5):
            await asyncio.sleep(0.01)

    asyncio.run(main())
    waits = [(open_[2], end) for open_, end in run.ledger.pending if open_[0] == "external_wait"]
    assert len(waits) == len(inside) >= 5
    for (start, end), (first, last) in zip(waits, inside, strict=True):
        assert start <= first <= last <= end
        assert (end - start) - (last - first) < 1_000_000


def test_a_loop_with_work_to_do_never_waits(run: Run) -> None:
    async def main() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    execute(run, main)
    assert list(segments(run, "external_wait")) == []


# ---- whose step it is -------------------------------------------------------------------------------


async def host_calls(
    _prompt_id: str, _unique_id: str, obj: Any, input_data_all: Any
) -> tuple[list[Any], Any, bool, bool]:
    """As the host's `get_output_data` of an async node of which one call of two is not done yet."""
    return [asyncio.create_task(obj(*input_data_all["seconds"])), "done"], {}, False, True


@pytest.mark.parametrize("ends", ["done", "error", "cancelled"])
def test_a_task_of_an_async_node_is_a_span_in_the_hosts_own_loop_too(run: Run, ends: str) -> None:
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)
        if ends == "error":
            raise ValueError

    async def main() -> None:
        record = lane.VisitRecord(run, "a")
        record.number, record.stage, record.start_ns = (
            run.next_visit("a", "Later"),
            "external_wait",
            run.clock(),
        )
        token = visits.RECORD.set(record)
        returned = await visits.make_watched_calls(None, host_calls)("p", "a", work, {"seconds": [SLEEP_S]})
        visits.RECORD.reset(token)
        task, other = returned[0]
        assert (other, returned[1:], len(run.pending_spans)) == ("done", ({}, False, True), 0)
        if ends == "cancelled":
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    execute(run, main)
    ((name, stage, what, visit, start, end, detail),) = run.pending_spans
    assert (name, stage, what, visit) == ("task:a", "external_wait", "async_node", 1)
    assert detail == {"outcome": ends}
    assert end - start >= (0 if ends == "cancelled" else SLEEP_S * 0.98e9)


def test_calls_that_are_all_done_leave_no_span_in_the_hosts_own_loop(run: Run) -> None:
    async def at_once(*, input_data_all: Any) -> tuple[list[Any], Any, bool, bool]:
        return [[1]], {}, False, False

    async def older(*, input_data_all: Any) -> tuple[list[Any], Any, bool]:
        return [[1]], {}, False

    async def main() -> None:
        token = visits.RECORD.set(lane.VisitRecord(run, "a"))
        for original in (at_once, older):
            made = visits.make_watched_calls(None, original)
            assert (await made(input_data_all={}))[:3] == ([[1]], {}, False)
        visits.RECORD.reset(token)

    execute(run, main)
    assert not run.pending_spans


def test_three_nodes_that_sleep_side_by_side_wait_once_and_are_three_overlapping_spans(run: Run) -> None:
    async def main() -> None:
        tasks = [node_task(run, node, "external_wait", asyncio.sleep(SLEEP_S)) for node in "abc"]
        await asyncio.gather(*tasks)

    execute(run, main)
    assert (
        SLEEP_S * 0.98e9 <= total(run, "external_wait") < 2.5 * SLEEP_S * 1e9
    )  # a loaded machine wakes late
    spans = sorted((start, end, lane) for lane, _, _, _, start, end, _ in run.pending_spans)
    assert [lane for _, _, lane in spans] == ["task:a", "task:b", "task:c"]
    assert max(start for start, _, _ in spans) < min(end for _, end, _ in spans)
    assert all(end - start >= SLEEP_S * 0.98e9 for start, end, _ in spans)


def test_each_step_is_charged_to_its_own_visit_and_stage(run: Run) -> None:
    async def node(seconds: float) -> None:
        for _ in range(2):
            time.sleep(seconds)
            await asyncio.sleep(0.01)

    async def main() -> None:
        one = node_task(run, "a", "postprocess", node(0.02))
        two = node_task(run, "b", "conditioning", node(0.01))
        await asyncio.gather(one, two)

    execute(run, main)
    assert {visit for length, visit in segments(run, "postprocess")} == {1}
    assert {visit for length, visit in segments(run, "conditioning")} == {2}
    assert total(run, "postprocess") >= 38_000_000
    assert total(run, "conditioning") >= 19_000_000
    assert run.visit is None
    assert run.ledger.depth() == 0


def test_a_task_that_a_nodes_task_makes_belongs_to_the_same_visit(run: Run) -> None:
    async def inner() -> None:
        time.sleep(0.02)

    async def node() -> None:
        await asyncio.gather(asyncio.create_task(inner()), asyncio.create_task(inner()))

    async def main() -> None:
        await node_task(run, "a", "postprocess", node())

    execute(run, main)
    assert {visit for _, visit in segments(run, "postprocess")} == {1}
    assert total(run, "postprocess") >= 38_000_000


def test_a_task_of_no_visit_is_no_business_of_ours(run: Run) -> None:
    async def main() -> Any:
        return type(asyncio.create_task(asyncio.sleep(0)).get_coro())

    assert execute(run, main) is CoroutineType
    assert {open_[0] for open_, _ in run.ledger.pending} <= {"queue_wait", "executor_overhead"}


def test_the_ledger_is_a_partition_while_tasks_interleave(run: Run) -> None:
    async def node(number: int) -> None:
        for _ in range(5):
            depth = run.enter("sampling", None, "seam")
            run.leave(depth)
            await asyncio.sleep(0.001 * (number % 3))

    async def main() -> None:
        await asyncio.gather(*[node_task(run, str(n), "postprocess", node(n)) for n in range(20)])

    execute(run, main)
    end = run.clock()
    run.ledger.close(end)
    pieces = [(open_[2], end) for open_, end in run.ledger.pending]
    assert pieces[0][0] == run.accepted_ns
    assert all(before[1] == after[0] for before, after in pairwise(pieces))
    assert sum(end - start for start, end in pieces) == end - run.accepted_ns


# ---- nothing else changes ---------------------------------------------------------------------------


def test_results_and_exceptions_pass_through_unchanged(run: Run) -> None:
    problem = ValueError("the node's own")

    async def good() -> int:
        await asyncio.sleep(0)
        return 7

    async def bad() -> None:
        await asyncio.sleep(0)
        raise problem

    async def main() -> Any:
        one = node_task(run, "a", "postprocess", good())
        two = node_task(run, "b", "postprocess", bad())
        return await asyncio.gather(one, two, return_exceptions=True)

    result, error = execute(run, main)
    assert result == 7
    assert error is problem
    assert [one[6] for one in run.pending_spans] == [{"outcome": "done"}, {"outcome": "error"}]


def test_a_cancel_reaches_the_node_and_may_be_swallowed_by_it(run: Run) -> None:
    heard = []

    async def node(swallow: bool) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            heard.append(swallow)
            if not swallow:
                raise
        return "went on"

    async def main() -> Any:
        tasks = [node_task(run, str(swallow), "postprocess", node(swallow)) for swallow in (True, False)]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    went_on, cancelled = execute(run, main)
    assert went_on == "went on"
    assert isinstance(cancelled, asyncio.CancelledError)
    assert heard == [True, False]
    assert {one[6]["outcome"] for one in run.pending_spans} == {"done", "cancelled"}
    assert run.ledger.depth() == 0


def test_a_cancel_before_the_first_step_or_at_a_bare_yield_reaches_the_node(run: Run) -> None:
    heard = []

    async def node(yields: bool) -> None:
        heard.append(f"began {yields}")
        try:
            await asyncio.sleep(0)
            heard.append("went on")
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    async def main() -> Any:
        before = node_task(run, "a", "postprocess", node(False))
        before.cancel()
        amid = node_task(run, "b", "postprocess", node(True))
        asyncio.get_running_loop().call_soon(amid.cancel)
        return await asyncio.gather(before, amid, return_exceptions=True)

    results = execute(run, main)
    assert [type(one) for one in results] == [asyncio.CancelledError] * 2
    assert heard == ["began True", "cancelled"]


def test_an_exception_thrown_into_a_waiting_node_is_its_own(run: Run) -> None:
    async def node() -> str:
        failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, failing.set_exception, KeyError("x"))
        try:
            await failing
        except KeyError:
            return "caught"
        return "missed"

    async def main() -> Any:
        return await node_task(run, "a", "postprocess", node())

    assert execute(run, main) == "caught"


def test_a_nodes_coroutine_sees_the_same_frames_above_it_as_without_us(run: Run) -> None:
    async def node() -> list[str]:
        await asyncio.sleep(0)
        frame: Any = sys._getframe()
        names = []
        while frame is not None and frame.f_code.co_name != "run_until_complete":
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        return names

    async def main() -> Any:
        return await node_task(run, "a", "postprocess", node())

    watched = execute(run, main)
    assert watched == asyncio.run(main()) == ["node", "_run", "_run_once", "run_forever"]
    assert {visit for _, visit in segments(run, "postprocess")} == {1}


def test_another_task_factory_is_left_in_place_and_its_tasks_are_charged_too(run: Run) -> None:
    def theirs(loop: Any, coro: Any, **kwargs: Any) -> Any:
        return asyncio.Task(coro, loop=loop, **kwargs)

    async def work() -> None:
        time.sleep(0.01)

    async def main() -> Any:
        asyncio.get_running_loop().set_task_factory(theirs)
        watch(run)
        await node_task(run, "a", "postprocess", work())
        return asyncio.get_running_loop().get_task_factory()

    assert asyncio.run(main()) is theirs
    assert total(run, "postprocess") >= 9_000_000


def test_a_task_is_pythons_own_and_keeps_its_coroutine(run: Run) -> None:
    async def main() -> Any:
        VISIT.set((run, 1, "postprocess", None))
        more = {} if sys.version_info < (3, 11) else {"context": __import__("contextvars").copy_context()}
        task = asyncio.create_task(asyncio.sleep(0, 5), name="mine", **more)
        assert type(task.get_coro()) is CoroutineType
        assert "mine" in repr(task)
        return await task

    assert execute(run, main) == 5


def test_a_loop_that_goes_on_is_left_as_it_was(run: Run) -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        before = dict(vars(loop)), dict(vars(loop._selector))
        unwatch = watch(run)
        assert unwatch is not None
        assert vars(loop) != before[0]
        await asyncio.sleep(0.01)
        unwatch()
        assert run.task is None
        assert (set(vars(loop)), set(vars(loop._selector))) == (set(before[0]), set(before[1]))

    asyncio.run(main())


def test_a_pack_that_stands_before_us_on_the_loop_stays_there(run: Run) -> None:
    async def main() -> bool:
        loop: Any = asyncio.get_running_loop()
        unwatch = watch(run)
        ours = loop.call_soon

        def theirs(*args: Any, **kwargs: Any) -> Any:
            return ours(*args, **kwargs)

        loop.call_soon = theirs
        assert unwatch is not None
        unwatch()
        return loop.call_soon is theirs

    assert asyncio.run(main())


def test_a_fault_while_watching_leaves_the_loop_as_it_was(
    run: Run, monkeypatch: pytest.MonkeyPatch, faults_expected
) -> None:
    def broken(*_args: Any) -> Any:
        raise RuntimeError("ours")

    monkeypatch.setattr("stagexec.executor.aio._idle", broken)

    async def main() -> int:
        return await node_task(run, "a", "postprocess", asyncio.sleep(0.01, 4))

    assert execute(run, main) == 4
    assert [where for where, _ in faults_expected] == ["watch"]


# ---- what is left on the loop ---------------------------------------------------------------------------


def left_marks(
    run: Run, monkeypatch: pytest.MonkeyPatch, main: Callable[[], Coroutine[Any, Any, Any]]
) -> Any:
    """The marks of what `main` leaves on the loop, of a prompt whose last node is then done."""
    told: list[tuple[Any, ...]] = []

    def keep(_of: Any, _type: str, *, detail: dict[str, Any], **fields: Any) -> None:
        told.append((detail["what"], detail["name"].rpartition(".")[2], fields["node_id"], fields["visit"]))

    monkeypatch.setattr("stagexec.record.live.journal_event", keep)

    async def prompt() -> None:
        unwatch = watch(run)
        await main()
        unwatch(True)

    asyncio.run(prompt())
    leftover.over(run)
    run.ledger.switch("executor_overhead")
    return told


def lasts(seconds: float) -> None:
    time.sleep(seconds)


async def lingers(seconds: float) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(seconds)


@pytest.mark.parametrize("by", ["run_in_executor", "to_thread"])
def test_a_call_left_on_a_thread_is_marked_and_waited_for_in_its_nodes_name(
    run: Run, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    async def main() -> None:
        visit = run.next_visit("7", "Leaves")
        token = VISIT.set((run, visit, "node_other", None))
        if by == "to_thread":
            kept.append(asyncio.create_task(asyncio.to_thread(lasts, 0.6)))
            await asyncio.sleep(0)
        else:
            kept.append(asyncio.get_running_loop().run_in_executor(None, lasts, 0.6))
        VISIT.reset(token)
        run.end_visit()

    kept: list[Any] = []
    told = left_marks(run, monkeypatch, main)
    assert ("thread", "lasts", "7", 1) in told
    assert sum(length for length, visit in segments(run, "external_wait") if visit == 1) >= 50_000_000


def test_a_task_left_behind_is_marked_with_its_coroutine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        kept.append(node_task(run, "8", "sampling", lingers(0.1)))
        await asyncio.sleep(0)

    kept: list[Any] = []
    assert left_marks(run, monkeypatch, main) == [("task", "lingers", "8", 1)]
    assert sum(length for length, visit in segments(run, "external_wait") if visit == 1) >= 50_000_000


def test_a_loop_with_nothing_left_is_told_of_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        await node_task(run, "8", "sampling", asyncio.sleep(0.01))

    assert left_marks(run, monkeypatch, main) == []


def test_a_fault_in_noting_a_call_changes_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, faults_expected: Any
) -> None:
    def faulty(*_: Any) -> Any:
        raise ValueError("a fault of ours")

    async def main() -> None:
        assert await asyncio.get_running_loop().run_in_executor(None, str, 5) == "5"

    monkeypatch.setattr(GUARDED["stagexec.executor.leftover.Began.call"], "body", faulty)
    assert left_marks(run, monkeypatch, main) == []
    assert [where for where, _ in faults_expected] == ["Began.call"]
