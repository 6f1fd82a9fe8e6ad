"""What a node author gets: stages of a function, files it promises; nothing at all outside a run."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stagexec
from stagexec.executor.aio import watch
from stagexec.record import live
from stagexec.record.run import VISIT, Run
from tests.faults import faults_expected, fresh_recorder, no_fault_of_ours

__all__ = ["faults_expected", "fresh_recorder", "no_fault_of_ours"]


@pytest.fixture
def run() -> Iterator[Run]:
    """A run in execution on this thread, in the visit of node 7."""
    live.accept("p", {})
    one = live.start("p")
    assert one is not None
    one.ledger.switch("node_other", "Upscale")
    one.next_visit("7", "Upscale")
    yield one
    live.finish(one, {}, {})


def shape(run: Run) -> list[tuple[str, str | None, str | None]]:
    """(stage, part, seam) of every segment since the node's code began, the open one last."""
    assert run.ledger.open is not None
    every = [open_ for open_, _ in run.ledger.pending] + [run.ledger.open]
    return [(one[0], one[1], one[4]) for one in every][2:]


OTHER = ("node_other", "Upscale", None)


# ---- outside a run ----------------------------------------------------------------------------------


def test_outside_a_run_nothing_happens_and_nothing_is_noted() -> None:
    with stagexec.stage("sampling"), stagexec.stage("no such stage"):
        stagexec.artifact("file.png")

    @stagexec.stage("postprocess")
    def double(x: int) -> int:
        return 2 * x

    assert double(2) == 4
    assert live.run is None


def test_a_run_that_begins_inside_a_stage_is_not_touched_by_its_end() -> None:
    with stagexec.stage("sampling"):
        live.accept("p", {})
        run = live.start("p")
        assert run is not None
        before = run.ledger.open
    assert run.ledger.open is before


# ---- on the main lane -------------------------------------------------------------------------------


def test_a_with_block_is_a_stage_and_what_was_open_before_is_reopened(run: Run) -> None:
    with stagexec.stage("vae_decode", "tiled"):
        pass
    assert shape(run) == [OTHER, ("vae_decode", "tiled", "stagexec.stage"), OTHER]


def test_stages_nest(run: Run) -> None:
    with stagexec.stage("sampling"), stagexec.stage("model_load_residency", "upload"):
        pass
    sampling = ("sampling", None, "stagexec.stage")
    loading = ("model_load_residency", "upload", "stagexec.stage")
    assert shape(run) == [OTHER, sampling, loading, sampling, OTHER]


def test_one_object_may_be_entered_again_inside_itself(run: Run) -> None:
    decode = stagexec.stage("vae_decode")
    with decode, decode:
        pass
    assert run.ledger.depth() == 0
    assert shape(run)[-1] == OTHER


def test_a_decorated_function_is_a_stage_each_time_and_keeps_its_name(run: Run) -> None:
    @stagexec.stage("postprocess", "Sharpen")
    def sharpen(x: int, *, by: int = 1) -> int:
        "Sharper."
        return x + by

    assert sharpen(1, by=2) == 3
    assert sharpen(1) == 2
    assert (sharpen.__name__, sharpen.__doc__) == ("sharpen", "Sharper.")
    assert shape(run).count(("postprocess", "Sharpen", "stagexec.stage")) == 2
    assert run.ledger.depth() == 0


def test_a_decorated_function_may_call_itself(run: Run) -> None:
    @stagexec.stage("postprocess")
    def down(n: int) -> int:
        return n and down(n - 1)

    assert down(3) == 0
    assert run.ledger.depth() == 0
    assert len([one for one in shape(run) if one[0] == "postprocess"]) == 7


def test_a_decorated_coroutine_function_stays_one_and_is_timed_until_it_is_done(run: Run) -> None:
    @stagexec.stage("external_wait")
    async def fetch(x: int) -> int:
        await asyncio.sleep(0.02)
        return x

    async def main() -> int:
        watch(run)
        return await fetch(5)

    assert inspect.iscoroutinefunction(fetch)
    assert asyncio.run(main()) == 5
    mine = [(end - open_[2]) for open_, end in run.ledger.pending if open_[4] == "stagexec.stage"]
    waits = [(end - open_[2]) for open_, end in run.ledger.pending if open_[:5:4] == ("external_wait", None)]
    assert sum(mine) + sum(waits) >= 20_000_000
    assert run.ledger.depth() == 0


def test_an_exception_passes_through_and_its_stage_is_remembered(run: Run) -> None:
    problem = ValueError("mine")
    with (
        pytest.raises(ValueError, match="mine") as caught,
        stagexec.stage("sampling"),
        stagexec.stage("vae_decode"),
    ):
        raise problem
    assert caught.value is problem
    assert run.failing_stage(problem) == "vae_decode"
    assert shape(run)[-1] == OTHER
    assert run.failing_stage(ValueError("another")) is None


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_what_is_no_error_passes_through_too(run: Run, kind: Any) -> None:
    with pytest.raises(kind), stagexec.stage("sampling"):
        raise kind
    assert shape(run)[-1] == OTHER


@pytest.mark.parametrize("wrong", [("smpling", None), ("sampling", "mux"), ("queue_wait", "x")])
def test_an_unknown_name_is_a_fault_and_otherwise_ignored(run: Run, wrong: Any, faults_expected) -> None:
    with stagexec.stage(*wrong):
        pass
    assert shape(run) == [OTHER]
    ((where, text),) = faults_expected
    assert where == "stagexec.stage"
    assert "unknown" in text


def test_generator_functions_are_refused_and_left_as_they_are(faults_expected) -> None:
    # Their body runs after the call has returned: what would be timed is the making of the generator.
    def frames() -> Iterator[int]:
        yield 1

    async def rows() -> Any:
        yield 1

    assert stagexec.stage("postprocess")(frames) is frames
    assert stagexec.stage("postprocess")(rows) is rows
    assert [where for where, _ in faults_expected] == ["stagexec.stage"] * 2


# ---- on other lanes ---------------------------------------------------------------------------------


def test_on_another_thread_it_is_a_span_of_that_thread(run: Run) -> None:
    def work() -> None:
        with stagexec.stage("encode_mux", "encode"):
            pass

    before = run.ledger.open
    thread = threading.Thread(target=work, name="Thread-7")
    thread.start()
    thread.join()
    assert run.ledger.open is before
    ((lane, stage, name, visit, start, end, detail),) = run.pending_spans
    assert (lane, stage, name, visit) == ("thread:Thread-7", "encode_mux", "stagexec.stage", None)
    assert start <= end
    assert detail == {"part": "encode"}


def test_in_another_task_it_is_a_span_of_that_tasks_node_and_visit(run: Run) -> None:
    async def work() -> None:
        with stagexec.stage("external_wait"):
            await asyncio.sleep(0.001)

    async def main() -> None:
        watch(run)
        VISIT.set((run, 1, "node_other", "Upscale"))
        tasks = [asyncio.create_task(work()) for _ in range(2)]
        run.next_visit("8", "Other")  # the main lane has gone on
        await asyncio.gather(*tasks)

    asyncio.run(main())
    spans = [one[:4] for one in run.pending_spans]
    assert spans == [("task:7", "external_wait", "stagexec.stage", 1)] * 2
    assert all(open_[4] != "stagexec.stage" for open_, _ in run.ledger.pending)


def test_a_task_that_belongs_to_no_visit_is_a_span_of_an_unknown_node(run: Run) -> None:
    async def work() -> None:
        with stagexec.stage("external_wait"):
            pass

    async def main() -> None:
        watch(run)
        await asyncio.create_task(work())

    asyncio.run(main())
    assert [(one[0], one[3]) for one in run.pending_spans] == [("task:unknown", None)]


# ---- artifacts --------------------------------------------------------------------------------------


def test_a_promised_file_is_kept_with_its_full_path_and_node(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stagexec.artifact("video.mp4")
    stagexec.artifact(tmp_path / "sub" / "other.mp4")
    promised = [(path, node) for path, node, _ in run.promised]
    assert promised == [(str(tmp_path / "video.mp4"), "7"), (str(tmp_path / "sub" / "other.mp4"), "7")]


def test_a_file_promised_in_an_async_node_belongs_to_that_node(run: Run) -> None:
    async def work() -> None:
        stagexec.artifact("/video.mp4")

    async def main() -> None:
        watch(run)
        VISIT.set((run, 1, "node_other", "Upscale"))
        task = asyncio.create_task(work())
        run.next_visit("8", "Other")
        await task

    asyncio.run(main())
    assert [node for _, node, _ in run.promised] == ["7"]


def test_a_path_that_is_none_is_a_fault_and_no_error(run: Run, faults_expected) -> None:
    stagexec.artifact(None)  # type: ignore[arg-type]
    assert run.promised == []
    assert [where for where, _ in faults_expected] == ["artifact"]
