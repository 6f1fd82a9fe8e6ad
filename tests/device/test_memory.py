"""Memory layers: read between stages and at the end, never standing in for one another, no peak reset."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from stagexec.record import live, memory
from stagexec.record.memory import MIN_GAP_NS, Samples
from tests.device.conftest import Recorder
from tests.device.fake_device import MS, FakeGpu


def test_allocator_figures_are_read_at_stage_boundaries(recorder: Recorder, gpu: FakeGpu) -> None:
    run = recorder.begin()
    for amount in (100, 400, 200):
        gpu.spend(10 * MS)
        gpu.allocated[0] = amount
        run.ledger.switch("sampling")
    gpu.spend(MS)
    samples = recorder.finish(run)["memory_samples"]
    assert samples["allocated_bytes"] == [0, 100, 400, 200]
    assert samples["reserved_bytes"][-1] == 210
    assert set(samples["device"]) == {0}


def test_boundaries_close_together_are_read_once(gpu: FakeGpu) -> None:
    samples = Samples("cuda")
    for at in (0, 1000, MIN_GAP_NS - 1, MIN_GAP_NS, MIN_GAP_NS + 5):
        samples.boundary(at)
    assert [row[0] for row in samples.rows] == [0, MIN_GAP_NS]


def test_no_peak_counter_is_reset_and_the_peak_of_the_process_is_told_as_such(
    recorder: Recorder, gpu: FakeGpu
) -> None:
    run = recorder.begin()
    gpu.allocated[0] = 700
    run.ledger.switch("sampling")
    gpu.spend(MS)
    told = recorder.finish(run)["memory"]
    assert gpu.peaks_reset == 0
    assert told["allocator_peak_bytes"] == 700
    assert (told["allocated_bytes"], told["device_used_bytes"], told["device_total_bytes"]) == (
        700,
        700,
        1000,
    )
    assert told["rss_bytes"] > 1_000_000


def test_a_layer_that_is_not_there_has_no_entry(
    recorder: Recorder, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "device_kind", lambda: "cpu")
    run = recorder.begin()
    gpu.spend(MS)
    assert set(recorder.finish(run)["memory"]) == {"rss_bytes"}


def test_a_broken_device_costs_its_own_layer_only(recorder: Recorder, gpu: FakeGpu) -> None:
    run = recorder.begin()
    gpu.break_down("CUDA error: lost")
    told = recorder.finish(run)["memory"]
    assert "device_used_bytes" not in told
    assert told["rss_bytes"] > 0


def test_the_hosts_dynamic_vram_is_a_layer_of_its_own(
    recorder: Recorder, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stagexec.host import devices

    monkeypatch.setattr(memory, "dynamic_vram", devices.dynamic_vram_bytes)
    monkeypatch.setitem(sys.modules, "comfy.memory_management", SimpleNamespace(aimdo_enabled=True))
    control = SimpleNamespace(get_total_vram_usage=lambda: 5000)
    monkeypatch.setitem(sys.modules, "comfy_aimdo.control", control)
    run = recorder.begin()
    gpu.spend(MS)
    shown = recorder.finish(run)
    assert shown["memory"]["dynamic_bytes"] == 5000
    assert set(shown["memory_samples"]["dynamic_bytes"]) == {5000}
    monkeypatch.setitem(sys.modules, "comfy.memory_management", SimpleNamespace(aimdo_enabled=False))
    assert devices.dynamic_vram_bytes() is None


def test_without_psutil_the_resident_size_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_process", None)
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert memory.rss() is None


def test_an_allocator_that_was_never_used_is_not_started(gpu: FakeGpu) -> None:
    gpu.torch.cuda.is_initialized = lambda: False
    asked: list[Any] = []
    gpu.torch.cuda.memory_stats_as_nested_dict = asked.append
    assert memory.allocator("cuda") == (None, None, None)
    assert asked == []
