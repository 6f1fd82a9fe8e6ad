"""NVML: devices and samples where it answers, a reason where it does not; on a fake library in C's place."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from stagexec.host import devices
from stagexec.record import live, nvml
from stagexec.record.run import Run
from tests.device.conftest import Recorder
from tests.device.fake_device import MS, FakeGpu
from tests.device.fake_nvml import UNKNOWN, FakeNvml


@pytest.fixture(autouse=True)
def fresh_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """pynvml and ours as they were when the process began."""
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(live, "sampler", None)
    nvml.forget()
    yield
    nvml.forget()


@pytest.fixture
def lib(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setattr(pynvml, "CDLL", fake.load)
    return fake


def test_what_a_device_is_comes_from_the_library(lib: FakeNvml) -> None:
    assert nvml.facts(nvml.handle_of(None, 1)) == {
        "uuid": "GPU-fake-1",
        "name": "Fake H200",
        "driver": "575.1",
        "memory_bytes": 80_000_000_000,
        "power_limit_mw": 700_000,
        "clocks_policy": "free",
    }


def test_a_sample_has_device_and_process_apart(lib: FakeNvml) -> None:
    row = dict(zip(nvml.SAMPLE_FIELDS, nvml.sample(nvml.handles()[0], "GPU-fake-0"), strict=True))
    assert row == {
        "uuid": "GPU-fake-0",
        "used_bytes": 8_000_000_000,
        "process_bytes": 3_000_000_000,
        "power_mw": 300_000,
        "energy_mj": 50_000,
        "temperature_c": 55,
        "sm_clock_mhz": 1500,
        "memory_clock_mhz": 1500,
    }


def test_a_device_is_found_by_its_uuid_however_torch_numbers_it(lib: FakeNvml) -> None:
    assert nvml.facts(nvml.handle_of("fake-1"))["uuid"] == "GPU-fake-1"
    assert nvml.handle_of("GPU-of-another-machine") is None
    assert nvml.handle_of(None, 7) is None


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetTotalEnergyConsumption", "energy_mj"),
        ("nvmlDeviceGetPowerUsage", "power_mw"),
        ("nvmlDeviceGetTemperature", "temperature_c"),
        ("nvmlDeviceGetMemoryInfo", "used_bytes"),
    ],
)
@pytest.mark.parametrize("how", ["missing", "refused"])
def test_a_figure_that_a_driver_does_not_give_is_null_and_the_others_are_there(
    lib: FakeNvml, function: str, field: str, how: str
) -> None:
    getattr(lib, how).add(function)
    row = dict(zip(nvml.SAMPLE_FIELDS, nvml.sample(nvml.handles()[0], "u"), strict=True))
    assert row[field] is None
    assert sum(value is None for value in row.values()) == 1


def test_a_process_that_the_driver_does_not_list_has_no_figure(lib: FakeNvml) -> None:
    lib.processes = {1: 5}
    assert nvml.sample(nvml.handles()[0], "u")[2] is None


def test_locked_clocks_are_named(lib: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetDefaultApplicationsClock", lambda handle, kind: 1095)
    assert nvml.facts(nvml.handles()[0])["clocks_policy"] == "application clock 1980 MHz"


def test_a_library_that_is_not_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> Any:
        raise OSError(f"{path}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "CDLL", missing)
    answer, reason = nvml.library()
    assert answer is None
    assert reason == "NVML does not answer: NVML Shared Library Not Found"
    assert nvml.handles() == []


def test_a_library_without_its_first_function_is_a_reason(lib: FakeNvml) -> None:
    lib.missing = {"nvmlInitWithFlags"}
    assert nvml.library()[1] == "NVML does not answer: Function Not Found"


def test_a_library_that_fails_is_a_reason(lib: FakeNvml) -> None:
    lib.broken = UNKNOWN
    assert nvml.library()[1] == "NVML does not answer: Unknown Error"


def test_without_the_package_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.library()[1] == "the package nvidia-ml-py is not installed"


@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia/version"), reason="this machine has NVIDIA's driver")
def test_on_a_machine_without_the_driver_the_real_package_gives_the_reason() -> None:
    answer, reason = nvml.library()
    assert answer is None
    assert reason is not None
    assert reason.startswith("NVML does not answer: ")


def until(true: Any, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)


def test_the_thread_samples_while_a_run_is_in_execution_and_not_while_idle(lib: FakeNvml) -> None:
    taken: list[dict[str, Any]] = []
    sampler = nvml.Sampler(0.01, time.perf_counter_ns, taken.append)
    assert sampler.start() is None
    time.sleep(0.05)
    assert taken == []
    sampler.poke(busy=True)
    until(lambda: len(taken) > 6)
    sampler.poke(busy=False)
    time.sleep(0.05)
    idle = len(taken)
    time.sleep(0.1)
    assert len(taken) <= idle + 2
    sampler.stop()
    assert lib.threads >= {"stagexec-nvml"}
    assert {row["uuid"] for row in taken} == {"GPU-fake-0", "GPU-fake-1"}


def test_a_run_never_waits_for_the_library(
    recorder: Recorder, gpu: FakeGpu, lib: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.sample_devices(0.05)
    assert live.sampler is not None
    monkeypatch.setattr(nvml, "sample", lambda handle, uuid: time.sleep(1) or (uuid, *[None] * 7))
    start = time.monotonic()
    run = recorder.begin()
    gpu.spend(MS)
    live.finish(run, {"host_status": "success"}, {})
    assert time.monotonic() - start < 0.9
    live.sampler.stop()


def test_energy_of_a_run_is_the_difference_of_the_counter_at_its_start_and_end(
    lib: FakeNvml, tmp_path: Path
) -> None:
    from stagexec.reading import rows, store
    from tests.device.conftest import PROCESS

    live.begin_process(tmp_path, **{**PROCESS, "timing": "baseline"})
    live.sample_devices(0.02)
    assert live.journal is not None
    assert live.sampler is not None
    run = Run("prompt", time.perf_counter_ns(), time.perf_counter_ns)
    live.journal.open_run(run)
    live.begin(run)
    calls = len(lib.calls)
    until(lambda: len(lib.calls) > calls + 20)
    lib.energy_mj += 1_234
    lib.used += 500
    until(lambda: len(lib.calls) > calls + 60)
    live.finish(run, {"host_status": "success"}, {})

    def told() -> dict[str, Any]:
        assert live.journal is not None
        live.journal.flush()
        found: dict[str, Any] = rows.detail(store.load(tmp_path).find("last"))["nvml"]
        return found

    until(lambda: told()["devices"]["GPU-fake-1"]["energy_mj"] is not None)
    live.sampler.stop()
    whole = told()
    first = whole["devices"]["GPU-fake-0"]
    assert (whole["reason"], whole["period_ns"]) == (None, 20_000_000)
    assert first["energy_mj"] == 1_234
    assert first["used_bytes_max"] == 8_000_000_500
    assert first["samples"] >= 2


def test_absent_nvml_is_told_in_the_run_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from stagexec.reading import rows, store
    from tests.device.conftest import PROCESS

    monkeypatch.setitem(sys.modules, "pynvml", None)
    live.begin_process(tmp_path, **PROCESS)
    live.sample_devices(0.5)
    assert live.sampler is None
    run = Run("prompt", time.perf_counter_ns(), time.perf_counter_ns)
    assert live.journal is not None
    live.journal.open_run(run)
    live.begin(run)
    live.finish(run, {"host_status": "success"}, {})
    live.journal.flush()
    told = rows.detail(store.load(tmp_path).find("last"))["nvml"]
    assert told == {"reason": "the package nvidia-ml-py is not installed", "period_ns": None, "devices": {}}
    assert "no NVML samples: the package nvidia-ml-py is not installed" in caplog.text


def test_nothing_is_asked_of_the_library_unless_somebody_asks_us(recorder: Recorder, lib: FakeNvml) -> None:
    live.sample_devices(None)
    run = recorder.begin()
    assert recorder.finish(run)["nvml"] is None
    assert lib.calls == []


def test_a_conditions_device_fields_come_from_nvml_or_say_why_not(
    lib: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SimpleNamespace(type="cuda", index=0)
    host = SimpleNamespace(get_torch_device=lambda: device)
    properties = SimpleNamespace(uuid="fake-1", name="torch's name", total_memory=1)
    cuda = SimpleNamespace(get_device_properties=lambda one: properties)
    monkeypatch.setitem(sys.modules, "comfy.model_management", host)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    told = devices.identity()
    assert set(told) == set(devices.GPU_FIELDS)
    assert (told["gpu_uuid"], told["gpu_model"], told["gpu_power_limit_mw"]) == (
        "GPU-fake-1",
        "Fake H200",
        700_000,
    )
    lib.broken = UNKNOWN
    nvml.forget()
    told = devices.identity()
    assert (told["gpu_uuid"], told["gpu_model"], told["driver"]) == ("GPU-fake-1", "torch's name", None)
    assert devices.identity_reasons()["driver"] == "NVML does not answer: Unknown Error"
    device.type = "cpu"
    assert devices.identity() == {}
    assert devices.identity_reasons()["gpu_uuid"] == "no device in use"
