"""Device time of a run, event to event, on a scripted device."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import pytest

from stagexec.record import device, live
from stagexec.record.device import NoDevice, Recording
from stagexec.record.devices import ON_CPU, clock_for
from stagexec.record.devices.events import KEEP_FREE
from stagexec.record.run import Run
from tests.device.conftest import Recorder
from tests.device.fake_device import MS, US, FakeGpu


def sample_and_decode(recorder: Recorder, gpu: FakeGpu) -> dict[str, Any]:
    """A sampler whose kernels are launched in 10 ms and take 100; a decode of 30 ms that waits for them."""
    run = recorder.begin()
    depth = run.enter("sampling", "step")
    for _ in range(10):
        gpu.spend(MS)
        gpu.launch(10 * MS)
    run.leave(depth)
    depth = run.enter("vae_decode", "decode")
    gpu.launch(30 * MS)
    gpu.synchronize()  # the copy of the frames to the host
    run.leave(depth)
    gpu.spend(MS)
    return recorder.finish(run)


def test_host_time_of_vae_decode_absorbs_the_samplers_tail_and_device_time_does_not(
    recorder: Recorder, gpu: FakeGpu
) -> None:
    shown = sample_and_decode(recorder, gpu)
    host, on_device = shown["stages"], shown["device_stages"]
    assert host["sampling"] < 15 * MS
    assert host["vae_decode"] > 115 * MS
    assert 100 * MS <= on_device["sampling"] < 103 * MS
    assert 29 * MS < on_device["vae_decode"] < 31 * MS


def test_device_time_is_exclusive_and_adds_up_from_the_first_event_to_the_last(
    recorder: Recorder, gpu: FakeGpu
) -> None:
    run = recorder.begin()
    outer = run.enter("sampling")
    gpu.launch(10 * MS)
    inner = run.enter("model_load_residency", "upload")
    gpu.launch(40 * MS)
    run.leave(inner)
    gpu.launch(20 * MS)
    run.leave(outer)
    gpu.synchronize()
    shown = recorder.finish(run)
    assert 29 * MS < shown["device_stages"]["sampling"] < 31 * MS
    assert 39 * MS < shown["device_stages"]["model_load_residency"] < 41 * MS
    assert shown["device_ns"] == sum(one for one in shown["device_stages"].values() if one is not None)
    assert shown["device_unknown"] == {}


def test_nothing_is_synchronised_or_queried_inside_a_run(recorder: Recorder, gpu: FakeGpu) -> None:
    run = recorder.begin()
    for _ in range(100):
        depth = run.enter("sampling", "step")
        gpu.launch(MS)
        run.leave(depth)
    assert (gpu.syncs, gpu.queries) == (0, 0)
    gpu.spend(200 * MS)
    recorder.finish(run)
    assert gpu.syncs == 0
    assert gpu.queries > 0


def test_one_event_is_recorded_for_each_stage_switch(recorder: Recorder, gpu: FakeGpu) -> None:
    run = recorder.begin()
    before = gpu.recorded
    run.leave(run.enter("sampling"))
    run.ledger.switch("executor_overhead")
    assert gpu.recorded - before == 3


def test_events_are_used_again_in_the_next_run(recorder: Recorder, gpu: FakeGpu) -> None:
    for _ in range(3):
        sample_and_decode(recorder, gpu)
        made = gpu.events_made
    assert sample_and_decode(recorder, gpu)["device_ns"] is not None
    assert gpu.events_made == made


def test_the_pool_does_not_grow_without_end(gpu: FakeGpu) -> None:
    clock = clock_for("cuda")
    clock.release([clock.point() for _ in range(KEEP_FREE + 10)])
    made = gpu.events_made
    for _ in range(KEEP_FREE + 1):
        clock.point()
    assert gpu.events_made == made + 1


def file_visit(run: Run, visit: int, kind: str, start: int) -> None:
    """A visit of a KSampler that began at `start` is over."""
    node, facts = (visit, "3", "KSampler", kind, None, 1, None), ("sampling", "table", False, None)
    run.pending_visits.append((*node, start, run.clock(), *facts))


def test_visits_have_their_own_device_time(recorder: Recorder, gpu: FakeGpu) -> None:
    run = recorder.begin()
    visit = run.next_visit("3", "KSampler")
    start = run.clock()
    depth = run.enter("sampling")
    gpu.launch(50 * MS)
    run.leave(depth)
    run.end_visit()
    file_visit(run, visit, "executed", start)
    gpu.synchronize()
    (shown,) = recorder.finish(run)["visits"]
    assert 50 * MS <= shown["device_ns"] < 51 * MS


def test_a_failed_run_keeps_the_device_time_it_used(recorder: Recorder, gpu: FakeGpu) -> None:
    run = recorder.begin()
    run.enter("sampling")
    gpu.launch(60 * MS)
    run.failed_in(RuntimeError("out of memory"), "sampling")  # torn out: nothing is left by the node
    gpu.spend(100 * MS)
    shown = recorder.finish(run, cause="oom", stage="sampling")
    assert 60 * MS <= shown["device_stages"]["sampling"] < 102 * MS
    assert shown["device_reason"] is None


def test_after_a_device_side_assert_the_rest_is_null_and_says_why(recorder: Recorder, gpu: FakeGpu) -> None:
    run = recorder.begin()
    run.enter("sampling")
    gpu.launch(10 * MS)
    gpu.break_down("CUDA error: device-side assert triggered\nCompile with TORCH_USE_CUDA_DSA")
    run.ledger.switch("vae_decode")
    run.ledger.switch("executor_overhead")
    shown = recorder.finish(run)
    assert shown["device_ns"] is None
    assert shown["device_unknown"]["fault"] >= 3
    assert "device-side assert triggered" in shown["device_reason"]
    assert "TORCH_USE" not in shown["device_reason"]
    assert shown["stages"]["sampling"] > 0
    assert sum(shown["stages"].values()) == shown["total_ns"]


def test_a_context_lost_after_the_run_leaves_no_device_time(recorder: Recorder, gpu: FakeGpu) -> None:
    run = recorder.begin()
    run.enter("sampling")
    gpu.break_down("CUDA error: unknown error", at=gpu.now + MS)
    gpu.spend(2 * MS)
    shown = recorder.finish(run)
    assert shown["device_ns"] is None
    assert "unknown error" in shown["device_reason"]


def test_what_was_resolved_before_the_fault_is_kept(gpu: FakeGpu) -> None:
    recording = Recording(clock_for("cuda"))
    for _ in range(4):
        recording.switched(gpu.clock())
        gpu.launch(10 * MS)
    gpu.spend(25 * MS)  # two of three lengths are complete when the device breaks
    gpu.break_down("CUDA error: lost", at=gpu.now + 1)
    clock, done = recording.clock, recording.clock.done

    def breaking(event: Any) -> bool:
        gpu.now += 1 if event is recording.points[3].event else 0
        return done(event)

    clock.done = breaking  # type: ignore[method-assign]
    columns = recording.resolve()
    assert [one is None for one in columns.device_ns] == [False, False, True, True]
    assert columns.reason == [None, None, "fault", "last"]


def test_an_event_of_the_wrong_device_is_a_fault_of_that_run_alone(recorder: Recorder, gpu: FakeGpu) -> None:
    bad = clock_for("cuda")
    assert live.device_clock is not None
    run = recorder.begin()
    gpu.streams.append(FakeGpu().streams[0])
    other = gpu.new_stream(device=1)
    point = bad.point()
    live.device_clock._free[1] = [point.event]  # type: ignore[attr-defined] (an event of device 0, misplaced)
    with gpu.on(other):
        run.enter("sampling")
    gpu.spend(MS)
    shown = recorder.finish(run)
    assert "does not match" in shown["device_reason"]
    assert sample_and_decode(recorder, gpu)["device_ns"] is not None


def test_no_event_is_recorded_while_a_graph_is_captured(recorder: Recorder, gpu: FakeGpu) -> None:
    run = recorder.begin()
    with gpu.capture():
        run.leave(run.enter("sampling", "step"))
    depth = run.enter("vae_decode")
    gpu.launch(10 * MS)
    run.leave(depth)
    gpu.synchronize()
    shown = recorder.finish(run)
    assert gpu.spoilt is False
    assert shown["device_stages"]["sampling"] is None
    assert shown["device_unknown"]["graph_capture"] >= 2
    assert shown["device_stages"]["vae_decode"] >= 10 * MS


def test_a_change_of_stream_is_noticed_and_the_length_across_it_is_null(
    recorder: Recorder, gpu: FakeGpu
) -> None:
    run = recorder.begin()
    with gpu.on(gpu.new_stream()):
        depth = run.enter("sampling")
        inner = run.enter("model_load_residency", "upload")
        gpu.launch(10 * MS)
        run.leave(inner)
        run.leave(depth)
    run.ledger.switch("executor_overhead")
    gpu.spend(50 * MS)
    shown = recorder.finish(run)
    assert 10 * MS <= shown["device_stages"]["model_load_residency"] < 11 * MS
    assert shown["device_unknown"] == {"stream_changed": 2}
    assert shown["device_reason"] == "no device time in some segments: 2 × stream_changed"


def test_a_change_of_device_is_noticed_and_each_device_has_its_own_events(
    recorder: Recorder, gpu: FakeGpu
) -> None:
    run = recorder.begin()
    with gpu.on(gpu.new_stream(device=1)):
        depth = run.enter("sampling")
        inner = run.enter("sampling", "step")
        gpu.launch(10 * MS)
        run.leave(inner)
        run.leave(depth)
    run.ledger.switch("executor_overhead")
    gpu.spend(50 * MS)
    shown = recorder.finish(run)
    assert shown["device_unknown"] == {"device_changed": 2}
    assert 10 * MS <= shown["device_stages"]["sampling"] < 11 * MS


def test_the_next_runs_capture_on_the_worker_is_not_spoilt_where_it_cannot_be_guarded(
    recorder: Recorder, gpu: FakeGpu
) -> None:
    live.device_clock._backend.elsewhere = lambda: contextlib.nullcontext(False)  # type: ignore[union-attr]
    later = []
    live.after_execution = lambda run, history: later.append(run)
    run = recorder.begin()
    depth = run.enter("sampling")
    gpu.launch(10 * MS)
    run.leave(depth)
    gpu.spend(20 * MS)
    live.finish(run, {"host_status": "success"}, {})
    gpu.other_thread_captures = True
    thread = threading.Thread(target=live.close, args=(later[0], "success", None, None))
    thread.start()
    thread.join()
    assert gpu.spoilt is False
    assert recorder.shown(run)["device_stages"]["sampling"] >= 10 * MS


def test_waiting_for_the_last_events_is_bounded_and_none_of_the_runs_time(gpu: FakeGpu) -> None:
    recording = Recording(clock_for("cuda"))
    recording.switched(gpu.clock())
    gpu.launch(10**12)
    recording.switched(gpu.clock())
    start = time.monotonic()
    columns = recording.resolve(wait_s=0.05)
    assert time.monotonic() - start < 1
    assert columns.reason == ["not_complete", "last"]


def test_a_run_with_more_switches_than_events_says_so(gpu: FakeGpu) -> None:
    recording = Recording(clock_for("cuda"), most=3)
    for _ in range(5):
        recording.switched(gpu.clock())
    gpu.spend(MS)
    columns = recording.resolve()
    assert columns.reason == [None, None, "too_many", "too_many", "too_many"]
    assert gpu.recorded == 3


def test_stages_outside_execution_have_no_device_time_and_that_is_no_gap(
    recorder: Recorder, gpu: FakeGpu
) -> None:
    shown = sample_and_decode(recorder, gpu)
    assert shown["device_stages"]["queue_wait"] is None
    assert shown["device_stages"]["delivery_commit"] is None
    assert shown["device_reason"] is None


def test_segments_without_length_are_matched_in_order(
    recorder: Recorder, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recorder.begin()
    frozen = gpu.now
    run.ledger.clock = lambda: frozen
    run.ledger.switch("conditioning")
    gpu.launch(10 * MS)
    run.ledger.switch("sampling")
    gpu.launch(20 * MS)
    run.ledger.switch("vae_decode")
    run.ledger.clock = gpu.clock
    run.ledger.switch("executor_overhead")
    gpu.spend(50 * MS)
    stages = recorder.finish(run)["device_stages"]
    assert 10 * MS <= stages["conditioning"] < 11 * MS
    assert 19 * MS <= stages["sampling"] < 21 * MS


def test_in_baseline_nothing_is_recorded_on_the_device(recorder: Recorder, gpu: FakeGpu) -> None:
    run = recorder.begin(timing="baseline")
    run.leave(run.enter("sampling"))
    shown = recorder.finish(run)
    assert (gpu.recorded, gpu.events_made) == (0, 0)
    assert shown["device_ns"] is None
    assert shown["device_reason"] == "no device events in timing mode baseline"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("cpu", ON_CPU),
        ("privateuseone", "torch offers no timed events for devices of type privateuseone"),
        ("mps", "this torch offers no timed events for mps"),
        (None, "the host's device is not known"),
    ],
)
def test_without_a_device_every_device_time_is_null_and_says_why(
    recorder: Recorder, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, kind: str | None, why: str
) -> None:
    monkeypatch.setattr(live, "device_clock", None)
    monkeypatch.setattr(live, "device_kind", lambda: kind)
    run = recorder.begin()
    run.leave(run.enter("sampling"))
    shown = recorder.finish(run)
    assert shown["device_ns"] is None
    assert {one["device_ns"] for one in shown["segments"]} == {None}
    assert set(shown["device_stages"].values()) == {None}
    assert shown["device_reason"].startswith(why)


def test_xpu_events_work_the_same_way(gpu: FakeGpu) -> None:
    recording = Recording(clock_for("xpu"))
    recording.switched(gpu.clock())
    gpu.launch(3 * MS)
    recording.switched(gpu.clock())
    gpu.spend(10 * MS)
    assert recording.clock.kind == "xpu"
    assert recording.resolve().device_ns[0] == pytest.approx(3 * MS, abs=10 * US)


def test_wasted_time_of_a_failed_run_is_device_time_where_it_is_known(
    recorder: Recorder, gpu: FakeGpu
) -> None:
    run = recorder.begin()
    visit = run.next_visit("3", "KSampler")
    start = run.clock()
    depth = run.enter("sampling")
    gpu.launch(70 * MS)
    run.leave(depth)
    run.end_visit()
    file_visit(run, visit, "failed", start)
    run.ledger.switch("executor_overhead")
    gpu.spend(100 * MS)
    shown = recorder.finish(run)
    assert shown["wasted_kind"] == "device"
    assert 70 * MS <= shown["wasted_ns"] < 71 * MS


def test_every_reason_that_the_journal_may_give_is_explained(gpu: FakeGpu) -> None:
    from stagexec.format import EVENTS

    told = EVENTS["device"]["reason"]
    assert all(word in told for word in device.REASONS)
    assert NoDevice("why").point().event is None
