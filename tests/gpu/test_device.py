"""What only a GPU can show of device time. The whole file takes less than three minutes on one CUDA device.

Run alone: `python -m pytest tests/gpu -s`. Without a device every test is skipped and says why.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stagexec.host import devices
from stagexec.reading import rows, store
from stagexec.record import live
from stagexec.record.device import Recording
from stagexec.record.devices import clock_for
from stagexec.record.run import Run
from tests.device.conftest import PROCESS
from tests.faults import faults_expected, fresh_recorder, no_fault_of_ours

__all__ = ["faults_expected", "fresh_recorder", "no_fault_of_ours"]

MS = 1_000_000
SYNCHRONISING = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize")


@pytest.fixture(scope="module")
def torch() -> Any:
    import torch

    torch.ones(1, device="cuda")
    return torch


@pytest.fixture(scope="module")
def work(torch: Any) -> Any:
    """`work(n)` launches n products of large matrices and returns at once."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    b = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)

    def launch(times: int) -> None:
        for _ in range(times):
            torch.matmul(a, b)

    launch(20)
    torch.cuda.synchronize()
    return launch


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: Any) -> Iterator[Path]:
    monkeypatch.setattr(live, "device_clock", None)
    monkeypatch.setattr(live, "device_kind", lambda: "cuda")
    monkeypatch.setattr(live, "unseen", None)
    live.begin_process(tmp_path, **PROCESS)
    yield tmp_path
    torch.cuda.synchronize()


def begin() -> Run:
    run = Run("prompt", time.perf_counter_ns(), time.perf_counter_ns)
    run.timing = "events"
    assert live.journal is not None
    live.journal.open_run(run)
    return live.begin(run)


def finish(ledger: Path, run: Run) -> dict[str, Any]:
    live.finish(run, {"host_status": "success"}, {})
    assert live.journal is not None
    assert live.journal.flush()
    return rows.detail(store.load(ledger).find(run.run_id))


def test_event_time_is_the_synchronised_time_within_two_percent(ledger: Path, torch: Any, work: Any) -> None:
    run = begin()
    depth = run.enter("sampling")
    work(400)
    run.leave(depth)
    depth = run.enter("vae_decode")
    work(100)
    run.leave(depth)
    shown = finish(ledger, run)
    reference = {}
    for stage, times in (("sampling", 400), ("vae_decode", 100)):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        work(times)
        torch.cuda.synchronize()
        reference[stage] = time.perf_counter_ns() - start
    print({stage: (shown["device_stages"][stage], took) for stage, took in reference.items()})
    for stage, took in reference.items():
        assert shown["device_stages"][stage] == pytest.approx(took, rel=0.02)


def test_host_time_puts_the_samplers_tail_into_the_decode_and_device_time_does_not(
    ledger: Path, torch: Any, work: Any
) -> None:
    run = begin()
    depth = run.enter("sampling")
    work(400)
    run.leave(depth)
    depth = run.enter("vae_decode")
    torch.ones(1, device="cuda").cpu()
    run.leave(depth)
    shown = finish(ledger, run)
    assert shown["stages"]["vae_decode"] > 5 * shown["stages"]["sampling"]
    assert shown["device_stages"]["sampling"] > 5 * shown["device_stages"]["vae_decode"]


def test_a_switch_with_an_event_costs_ten_microseconds_at_most(ledger: Path, torch: Any, work: Any) -> None:
    run = begin()
    best = 10**9
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(500):
            run.leave(run.enter("sampling", "step"))
        best = min(best, (time.perf_counter_ns() - start) // 1000)
    print(f"one stage switch with an event: {best} ns")
    finish(ledger, run)
    assert best <= 10_000


def synchronisations(torch: Any, folder: Path, body: Any) -> Counter[str]:
    """How often the runtime was made to wait during `body`, as torch's profiler sees it."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        body()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    names = [one.get("name") for one in json.loads(path.read_text())["traceEvents"]]
    return Counter(name for name in names if name in SYNCHRONISING)


def test_no_synchronisation_is_added(ledger: Path, torch: Any, work: Any, tmp_path: Path) -> None:
    def plain() -> None:
        for _ in range(50):
            work(2)

    run = begin()

    def recorded() -> None:
        for _ in range(50):
            depth = run.enter("sampling", "step")
            work(2)
            run.leave(depth)

    without, with_events = (
        synchronisations(torch, tmp_path, plain),
        synchronisations(torch, tmp_path, recorded),
    )
    finish(ledger, run)
    assert with_events == without


def test_a_run_out_of_memory_keeps_its_device_time(ledger: Path, torch: Any, work: Any) -> None:
    run = begin()
    run.enter("sampling")
    work(100)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(2**50, device="cuda", dtype=torch.uint8)
    shown = finish(ledger, run)
    assert shown["device_stages"]["sampling"] > MS
    assert shown["device_reason"] is None
    assert shown["memory"]["device_total_bytes"] > shown["memory"]["device_used_bytes"] > 0
    assert max(one or 0 for one in shown["memory_samples"]["allocated_bytes"]) > 0


def test_async_offload_is_a_span_of_its_own(
    ledger: Path, torch: Any, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_watching", False)
    stream = torch.cuda.Stream()
    weight = torch.empty(256 * 2**20, dtype=torch.uint8).pin_memory()
    get = devices.watched(True)(ModuleType("host"), lambda device: stream)
    join = devices.watched(False)(
        ModuleType("host"), lambda device, stream: torch.cuda.current_stream().wait_stream(stream)
    )
    run = begin()
    depth = run.enter("sampling")
    for _ in range(4):
        with torch.cuda.stream(get("cuda")):
            weight.to("cuda", non_blocking=True)
        join("cuda", stream)
        work(5)
    run.leave(depth)
    torch.cuda.synchronize()
    (span,) = finish(ledger, run)["device_spans"]
    assert (span["stage"], span["copies"], span["stream"]) == ("sampling", 4, stream.cuda_stream)
    assert span["length_ns"] > 4 * MS  # a gigabyte over any bus there is
    assert span["offset_ns"] >= 0


def test_a_captured_graph_has_no_event_of_ours_and_replays(ledger: Path, torch: Any, work: Any) -> None:
    x = torch.ones(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    run = begin()
    with torch.cuda.graph(graph):
        depth = run.enter("sampling", "step")
        y = x * 2
        run.leave(depth)
    depth = run.enter("sampling", "step")
    graph.replay()
    run.leave(depth)
    torch.cuda.synchronize()
    shown = finish(ledger, run)
    assert float(y[0]) == 2.0
    assert shown["device_unknown"]["graph_capture"] >= 2
    assert shown["device_stages"]["sampling"] is not None


def test_resolving_on_another_thread_does_not_spoil_a_capture(torch: Any, work: Any) -> None:
    recording = Recording(clock_for("cuda"))
    for _ in range(300):
        recording.switched(time.perf_counter_ns())
        work(1)
    torch.cuda.synchronize()
    seen: list[Any] = []

    def resolve() -> None:
        with recording.clock.elsewhere() as safe:
            seen.append(safe)
            if safe:
                seen.append(recording.resolve().device_ns)

    x = torch.ones(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # in the default mode, which forbids other threads' queries
        thread = threading.Thread(target=resolve)
        thread.start()
        thread.join()
        x * 2
    graph.replay()
    torch.cuda.synchronize()
    assert seen[0] is True
    assert all(one > 0 for one in seen[1][:-1])


def test_a_second_device_has_events_of_its_own(ledger: Path, torch: Any) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one CUDA device")
    run = begin()
    with torch.cuda.device(1):
        depth = run.enter("sampling")
        inner = run.enter("sampling", "step")
        torch.ones(1000, 1000, device="cuda:1").matmul(torch.ones(1000, 1000, device="cuda:1"))
        run.leave(inner)
        run.leave(depth)
    shown = finish(ledger, run)
    assert shown["device_unknown"]["device_changed"] >= 1
    assert shown["device_stages"]["sampling"] is not None


def test_nvml_gives_identity_and_energy(ledger: Path, torch: Any, work: Any) -> None:
    live.sample_devices(0.05)
    assert live.sampler is not None, "NVML does not answer on this machine"
    run = begin()
    work(2000)
    torch.cuda.synchronize()
    live.finish(run, {"host_status": "success"}, {})
    time.sleep(0.3)
    live.sampler.stop()
    live.sampler = None
    assert live.journal is not None
    live.journal.flush()
    told = rows.detail(store.load(ledger).find(run.run_id))["nvml"]["devices"]
    assert told
    assert all(uuid.startswith("GPU-") for uuid in told)
    assert any((one["energy_mj"] or 0) > 0 and one["used_bytes_max"] > 0 for one in told.values())


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-s", *sys.argv[1:]]))
