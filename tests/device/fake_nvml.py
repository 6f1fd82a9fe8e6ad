"""A stand-in for libnvidia-ml: C functions by their names, which fill the caller's memory and give codes."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

OK, NOT_SUPPORTED, NOT_FOUND, SIZE, UNKNOWN = 0, 3, 6, 7, 999

Function = Callable[..., int]


class FakeNvml:
    """Two devices. `missing` are functions that the driver lacks, `refused` those it does not support."""

    def __init__(self) -> None:
        self.devices = 2
        self.missing: set[str] = set()
        self.refused: set[str] = set()
        self.broken: int = OK
        self.energy_mj = 50_000
        self.power_mw = 300_000
        self.used = 8_000_000_000
        self.processes = {os.getpid(): 3_000_000_000, 1: 5_000_000_000}
        self.calls: list[str] = []
        self.threads: set[str] = set()

    def load(self, _path: str) -> FakeNvml:
        """In place of ctypes.CDLL."""
        return self

    def __getattr__(self, name: str) -> Function:
        function = FUNCTIONS.get(name)
        if function is None or name in self.missing:
            raise AttributeError(f"undefined symbol: {name}")

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            self.threads.add(threading.current_thread().name)
            if name in self.refused:
                return NOT_SUPPORTED
            return self.broken or function(self, *arguments)

        return call


def _number(name: str) -> Function:
    """A function (handle, …, pointer to an integer) that gives an attribute of the library."""

    def get(lib: FakeNvml, *arguments: Any) -> int:
        arguments[-1]._obj.value = getattr(lib, name)
        return OK

    return get


def _fixed(value: int) -> Function:
    def get(_lib: FakeNvml, *arguments: Any) -> int:
        arguments[-1]._obj.value = value
        return OK

    return get


def _text(value: str) -> Function:
    def get(_lib: FakeNvml, *arguments: Any) -> int:
        arguments[-2].value = value.encode()
        return OK

    return get


def _uuid(_lib: FakeNvml, handle: Any, buffer: Any, _size: Any) -> int:
    buffer.value = f"GPU-fake-{index_of(handle)}".encode()
    return OK


def _handle(lib: FakeNvml, index: Any, device: Any) -> int:
    if index.value >= lib.devices:
        return NOT_FOUND
    ctypes.memset(ctypes.addressof(device._obj), 0, ctypes.sizeof(device._obj))
    pointer = ctypes.cast(ctypes.addressof(device._obj), ctypes.POINTER(ctypes.c_size_t))
    pointer[0] = index.value + 1  # an opaque pointer: the index, told apart from null
    return OK


def index_of(handle: Any) -> int:
    address = ctypes.cast(ctypes.addressof(handle), ctypes.POINTER(ctypes.c_size_t))[0]
    return int(address) - 1


def _memory(lib: FakeNvml, _handle: Any, memory: Any) -> int:
    told = memory._obj
    told.total, told.used, told.free = 80_000_000_000, lib.used, 80_000_000_000 - lib.used
    return OK


def _processes(lib: FakeNvml, _handle: Any, count: Any, array: Any) -> int:
    if array is None:
        count._obj.value = len(lib.processes)
        return SIZE if lib.processes else OK
    for place, (pid, size) in enumerate(lib.processes.items()):
        array[place].pid, array[place].usedGpuMemory = pid, size
    count._obj.value = len(lib.processes)
    return OK


def _no_processes(_lib: FakeNvml, _handle: Any, count: Any, _array: Any) -> int:
    count._obj.value = 0
    return OK


def _nothing(_lib: FakeNvml, *_arguments: Any) -> int:
    return OK


def _count(lib: FakeNvml, count: Any) -> int:
    count._obj.value = lib.devices
    return OK


FUNCTIONS: dict[str, Function] = {
    "nvmlInitWithFlags": _nothing,
    "nvmlInit_v2": _nothing,
    "nvmlDeviceGetCount_v2": _count,
    "nvmlDeviceGetHandleByIndex_v2": _handle,
    "nvmlDeviceGetUUID": _uuid,
    "nvmlDeviceGetName": _text("Fake H200"),
    "nvmlSystemGetDriverVersion": _text("575.1"),
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetEnforcedPowerLimit": _fixed(700_000),
    "nvmlDeviceGetApplicationsClock": _fixed(1980),
    "nvmlDeviceGetDefaultApplicationsClock": _fixed(1980),
    "nvmlDeviceGetPowerUsage": _number("power_mw"),
    "nvmlDeviceGetTotalEnergyConsumption": _number("energy_mj"),
    "nvmlDeviceGetTemperature": _fixed(55),
    "nvmlDeviceGetClockInfo": _fixed(1500),
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes,
    "nvmlDeviceGetGraphicsRunningProcesses_v3": _no_processes,
}
