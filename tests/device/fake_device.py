"""A scripted device behind torch's own names: streams, work that ends later, events, and faults.

Time is one simulated clock in nanoseconds, `now`, for host and device alike. Work launched on a stream
begins when the stream is free and ends by itself as `now` goes by; nothing is ever waited for unless the
script calls `synchronize`. Every synchronising call is counted: the code under test must make none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

US, MS = 1_000, 1_000_000


class DeviceError(RuntimeError):
    """What torch raises once the device is broken."""


class Stream:
    """One queue of work of one device."""

    def __init__(self, gpu: FakeGpu, device_index: int, handle: int) -> None:
        self.gpu = gpu
        self.device_index = device_index
        self.cuda_stream = handle
        self.sycl_queue = handle
        self.busy_until = 0

    def launch(self, length_ns: int) -> None:
        """Work of that length; the host goes on at once."""
        self.busy_until = max(self.busy_until, self.gpu.now) + length_ns

    def wait_stream(self, other: Stream) -> None:
        """What comes after waits for what `other` has by now."""
        self.busy_until = max(self.busy_until, other.busy_until)


class Event:
    """A timed event. Bound to the device of its first record, as CUDA's are."""

    made = itertools.count()

    def __init__(self, gpu: FakeGpu, enable_timing: bool = False) -> None:
        self.gpu = gpu
        self.timing = enable_timing
        self.device: int | None = None
        self.at: int | None = None
        gpu.events_made += 1

    def record(self, stream: Stream | None = None) -> None:
        """Mark the place on the stream."""
        gpu = self.gpu
        gpu.check()
        place = stream or gpu.stream
        if gpu.capturing:
            gpu.spoilt = True
        if self.device not in (None, place.device_index):
            raise DeviceError(f"Event device {self.device} does not match recording stream's device")
        self.device = place.device_index
        self.at = max(place.busy_until, gpu.now)
        gpu.recorded += 1

    def query(self) -> bool:
        """Has the device come past it?"""
        self.gpu.check()
        self.gpu.queries += 1
        if self.gpu.other_thread_captures:
            self.gpu.spoilt = True
        assert self.at is not None, "queried before it was recorded"
        return self.gpu.now >= self.at

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds, as a 32-bit float, to the other event."""
        self.gpu.check()
        assert self.timing, "made without enable_timing"
        assert other.timing, "made without enable_timing"
        assert self.at is not None, "never recorded"
        assert other.at is not None, "never recorded"
        if self.device != other.device:
            raise DeviceError("elapsed_time of events of two devices")
        if self.gpu.now < other.at:
            raise DeviceError("device not ready")
        return (other.at - self.at) / 1e6

    def synchronize(self) -> None:
        """Waits: counted."""
        self.gpu.synchronize()


class FakeGpu:
    """The device and the module `torch.cuda` (or `torch.xpu`) in front of it; `torch` is for the code."""

    def __init__(self, devices: int = 1) -> None:
        self.now = 1_000 * MS
        self.streams = [Stream(self, index, 0) for index in range(devices)]
        self.stream = self.streams[0]
        self.handles = itertools.count(0x1000)
        self.fault: DeviceError | None = None
        self.fault_at: int | None = None
        self.capturing = False
        self.other_thread_captures = False
        self.spoilt = False
        """A captured graph has one of our calls in it."""
        self.syncs = self.queries = self.recorded = self.events_made = 0
        self.allocated: dict[int, int] = dict.fromkeys(range(devices), 0)
        self.peaks_reset = 0
        module = SimpleNamespace(
            Event=lambda enable_timing=False: Event(self, enable_timing),
            current_stream=self.current_stream,
            is_current_stream_capturing=lambda: self.capturing,
            synchronize=self.synchronize,
            is_initialized=lambda: True,
            is_available=lambda: True,
            current_device=lambda: self.stream.device_index,
            memory_stats_as_nested_dict=self.stats,
            reset_peak_memory_stats=self.reset_peak,
            max_memory_allocated=lambda: max(self.allocated.values()),
            mem_get_info=self.mem_get_info,
        )
        mps = SimpleNamespace(
            current_allocated_memory=lambda: 0, driver_allocated_memory=lambda: 0, event=SimpleNamespace()
        )
        self.torch = SimpleNamespace(cuda=module, xpu=module, mps=mps)

    def clock(self) -> int:
        """The host's clock: every reading takes a moment."""
        self.now += 100
        return self.now

    def spend(self, ns: int) -> None:
        """The host works."""
        self.now += ns

    def launch(self, ns: int, stream: Stream | None = None) -> None:
        """Launch work on the current stream, or on `stream`."""
        self.check()
        (stream or self.stream).launch(ns)
        self.now += 5 * US

    def synchronize(self, *_args: Any) -> None:
        """The host waits for the current stream, as a copy to the host does."""
        self.syncs += 1
        self.now = max(self.now, self.stream.busy_until)
        self.check()

    def current_stream(self, *_args: Any) -> Stream:
        return self.stream

    def new_stream(self, device: int = 0) -> Stream:
        return Stream(self, device, next(self.handles))

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """`with torch.cuda.stream(stream)`, or another device's default stream."""
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    @contextmanager
    def capture(self) -> Iterator[None]:
        """A graph is captured on the current stream."""
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False

    def break_down(self, text: str, at: int | None = None) -> None:
        """A fault that stays, now or when the clock comes to `at`: every call raises from then on."""
        self.fault, self.fault_at = DeviceError(text), self.now if at is None else at

    def check(self) -> None:
        if self.fault is not None and self.fault_at is not None and self.now >= self.fault_at:
            raise self.fault

    def stats(self, device: int) -> dict[str, Any]:
        current = {"all": {"current": self.allocated[device], "peak": 10**9}}
        return {
            "allocated_bytes": current,
            "reserved_bytes": {"all": {"current": self.allocated[device] + 10}},
        }

    def reset_peak(self, *_args: Any) -> None:
        self.peaks_reset += 1

    def mem_get_info(self) -> tuple[int, int]:
        self.check()
        return 1000 - sum(self.allocated.values()), 1000
