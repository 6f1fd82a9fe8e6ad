"""Timed events of torch's devices: CUDA (and ROCm, which torch calls cuda), XPU and MPS."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from stagexec.record.device import Point

KEEP_FREE = 8192
"""Events kept for reuse, per device; what a longer run made beyond is given up."""

THREAD_LOCAL = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: captures of other threads do not forbid us our queries, nor are
they spoilt by them."""


class Backend(Protocol):
    """What differs between kinds of device."""

    kind: str

    def current(self) -> tuple[Any, int, int]:
        """(stream object, device index, stream handle) that the calling thread works on now."""
        ...

    def of(self, stream: Any) -> tuple[int, int]:
        """(device index, stream handle) of a stream object."""
        ...

    def capturing(self) -> bool:
        """Is a graph being captured on the current stream?"""
        ...

    def new_event(self) -> Any:
        """An event with timing, bound to the device it is first recorded on."""
        ...

    def record(self, event: Any, stream: Any) -> None:
        """Record `event` on `stream`."""
        ...

    def elsewhere(self) -> AbstractContextManager[bool]:
        """See DeviceClock."""
        ...


class EventClock:
    """A DeviceClock on a backend's events, with a pool per device: an event belongs to one device."""

    reason: str | None = None

    def __init__(self, backend: Backend) -> None:
        self.kind = backend.kind
        self._backend = backend
        self._free: dict[int, list[Any]] = {}

    def point(self) -> Point:
        """See DeviceClock."""
        backend = self._backend
        stream, device, handle = backend.current()
        if backend.capturing():
            return Point(None, device, handle, "graph_capture")
        free = self._free.get(device)
        event = free.pop() if free else backend.new_event()
        backend.record(event, stream)
        return Point(event, device, handle, None)

    def point_on(self, stream: Any, event: Any = None) -> Point:
        """See DeviceClock."""
        backend = self._backend
        device, handle = backend.of(stream)
        if backend.capturing():
            return Point(None, device, handle, "graph_capture")
        if event is None:
            free = self._free.get(device)
            event = free.pop() if free else backend.new_event()
        backend.record(event, stream)
        return Point(event, device, handle, None)

    def done(self, event: Any) -> bool:
        """See DeviceClock."""
        return bool(event.query())

    def between_ns(self, first: Any, second: Any) -> int:
        """See DeviceClock. The driver gives milliseconds as a 32-bit float: neighbours, never far ends."""
        length: float = first.elapsed_time(second)
        return round(length * 1e6)

    def release(self, points: list[Point]) -> None:
        """See DeviceClock."""
        for point in points:
            if point.event is not None and point.device is not None:
                free = self._free.setdefault(point.device, [])
                if len(free) < KEEP_FREE:
                    free.append(point.event)

    def elsewhere(self) -> AbstractContextManager[bool]:
        """See DeviceClock."""
        return self._backend.elsewhere()


class Cuda:
    """torch.cuda."""

    kind = "cuda"

    def __init__(self, torch: Any) -> None:
        self._stream = torch.cuda.current_stream
        self._event = torch.cuda.Event
        self.capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing

    def current(self) -> tuple[Any, int, int]:
        """See Backend."""
        stream = self._stream()
        return stream, stream.device_index, stream.cuda_stream

    def of(self, stream: Any) -> tuple[int, int]:
        """See Backend."""
        return stream.device_index, stream.cuda_stream

    def new_event(self) -> Any:
        """See Backend."""
        return self._event(enable_timing=True)

    def record(self, event: Any, stream: Any) -> None:
        """See Backend."""
        event.record(stream)

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[bool]:
        """A query on this thread would spoil a graph that another thread captures in the default mode:
        exchange this thread's capture mode meanwhile. False where the driver cannot be asked to."""
        exchange = capture_mode_exchange()
        mode = ctypes.c_int(THREAD_LOCAL)
        if exchange is None or exchange(ctypes.byref(mode)) != 0:
            yield False
            return
        try:
            yield True
        finally:
            exchange(ctypes.byref(mode))  # now holds what it was before


class Xpu:
    """torch.xpu, whose events can be timed since torch 2.6 or so."""

    kind = "xpu"

    def __init__(self, torch: Any) -> None:
        self._stream = torch.xpu.current_stream
        self._event = torch.xpu.Event
        capturing = getattr(torch.xpu, "is_current_stream_capturing", None)
        self.capturing: Callable[[], bool] = capturing or never

    def current(self) -> tuple[Any, int, int]:
        """See Backend."""
        stream = self._stream()
        return stream, stream.device_index, stream.sycl_queue

    def of(self, stream: Any) -> tuple[int, int]:
        """See Backend."""
        return stream.device_index, stream.sycl_queue

    def new_event(self) -> Any:
        """See Backend."""
        return self._event(enable_timing=True)

    def record(self, event: Any, stream: Any) -> None:
        """See Backend."""
        event.record(stream)

    def elsewhere(self) -> AbstractContextManager[bool]:
        """SYCL forbids nothing across threads."""
        return contextlib.nullcontext(True)


class Mps:
    """torch.mps: one device, one stream."""

    kind = "mps"

    def __init__(self, torch: Any) -> None:
        self._event = torch.mps.event.Event
        self.capturing: Callable[[], bool] = never

    def current(self) -> tuple[Any, int, int]:
        """See Backend."""
        return None, 0, 0

    def of(self, stream: Any) -> tuple[int, int]:
        """See Backend."""
        return 0, 0

    def new_event(self) -> Any:
        """See Backend."""
        return self._event(enable_timing=True)

    def record(self, event: Any, stream: Any) -> None:
        """See Backend."""
        event.record()

    def elsewhere(self) -> AbstractContextManager[bool]:
        """Metal forbids nothing across threads."""
        return contextlib.nullcontext(True)


BACKENDS: dict[str, Callable[[Any], Backend]] = {"cuda": Cuda, "xpu": Xpu, "mps": Mps}


def never() -> bool:
    """These devices capture no graphs."""
    return False


def capture_mode_exchange() -> Any:
    """The CUDA driver's function that exchanges a thread's capture mode, or None without that driver."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        return library.cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):  # ROCm, or a driver before CUDA 10.1
        return None
