"""Copies of weights on streams of their own are spans on the device's clock."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from stagexec.host import devices
from stagexec.record import live
from tests.device.conftest import Recorder
from tests.device.fake_device import MS, FakeGpu


def offloading(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The host's two functions with ours in their place."""
    stream = gpu.new_stream()
    monkeypatch.setattr(devices, "_watching", False)
    gpu.torch.compiler = SimpleNamespace(is_compiling=lambda: False)
    module = ModuleType("host")

    def get_offload_stream(device: Any) -> Any:
        return stream

    def sync_stream(device: Any, stream: Any) -> None:
        if stream is not None:
            gpu.stream.wait_stream(stream)

    places = devices.offload_places("events")
    get = places[devices.OFFLOAD_STREAMS](module, get_offload_stream)
    sync = places[devices.JOIN_STREAM](module, sync_stream)
    return stream, get, sync


def test_a_span_reaches_from_the_first_copy_to_the_last_of_its_segment(
    recorder: Recorder, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, get, sync = offloading(gpu, monkeypatch)
    run = recorder.begin()
    depth = run.enter("sampling", "step")
    gpu.launch(2 * MS)
    for _ in range(5):
        gpu.launch(4 * MS, get(None))
        sync(None, stream)
        gpu.launch(MS)
    run.leave(depth)
    gpu.spend(100 * MS)
    shown = recorder.finish(run)
    (span,) = shown["device_spans"]
    assert (span["stage"], span["copies"], span["stream"]) == ("sampling", 5, stream.cuda_stream)
    assert 19 * MS < span["length_ns"] < 22 * MS
    assert 0 <= span["offset_ns"] < MS
    assert 20 * MS < shown["device_stages"]["sampling"] < 25 * MS


def test_five_copies_cost_two_events_and_all_go_back_to_the_pool(
    recorder: Recorder, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, get, sync = offloading(gpu, monkeypatch)
    for _ in range(2):
        run = recorder.begin()
        depth = run.enter("sampling")
        before = gpu.events_made
        for _ in range(5):
            gpu.launch(MS, get(None))
            sync(None, stream)
        made = gpu.events_made - before
        run.leave(depth)
        gpu.spend(50 * MS)
        recorder.finish(run)
    assert made == 0


def test_two_segments_have_a_span_each(
    recorder: Recorder, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, get, sync = offloading(gpu, monkeypatch)
    run = recorder.begin()
    for stage in ("conditioning", "sampling"):
        depth = run.enter(stage)
        gpu.launch(3 * MS, get(None))
        sync(None, stream)
        run.leave(depth)
    gpu.spend(50 * MS)
    spans = recorder.finish(run)["device_spans"]
    assert [one["stage"] for one in spans] == ["conditioning", "sampling"]


def test_no_offload_stream_and_no_run_are_no_spans(
    recorder: Recorder, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, get, sync = offloading(gpu, monkeypatch)
    get(None)
    sync(None, stream)
    run = recorder.begin()
    sync(None, None)
    gpu.spend(MS)
    assert recorder.finish(run)["device_spans"] == []


def test_inside_a_compiled_graph_nothing_of_ours_runs(
    recorder: Recorder, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.torch.compiler = SimpleNamespace(is_compiling=lambda: True)
    module = ModuleType("host")
    get = devices.watched(True)(module, lambda device: gpu.new_stream())
    run = recorder.begin()
    get(None)
    assert run.instruments.offload.uses == []


def test_in_baseline_the_hosts_functions_are_left_alone() -> None:
    assert devices.offload_places("baseline") == {}


def test_the_report_says_what_events_cannot_see(monkeypatch: pytest.MonkeyPatch) -> None:
    host = SimpleNamespace(NUM_STREAMS=2)
    monkeypatch.setitem(sys.modules, "comfy.model_management", host)
    monkeypatch.setitem(sys.modules, "comfy.memory_management", SimpleNamespace(aimdo_enabled=True))
    monkeypatch.setattr(devices, "_watching", False)
    told = " ".join(devices.unseen())
    assert "offloaded weights on 2 streams" in told
    assert "dynamic VRAM" in told
    monkeypatch.setattr(devices, "_watching", True)
    assert "offloaded" not in " ".join(devices.unseen())


def test_what_is_not_seen_stands_in_the_run(
    recorder: Recorder, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "unseen", lambda: ["streams that packs make"])
    run = recorder.begin()
    gpu.spend(MS)
    assert recorder.finish(run)["device_unseen"] == ["streams that packs make"]
