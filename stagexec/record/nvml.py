"""NVIDIA's management library: what a device is, and samples of it taken by a thread while runs execute.

Only when asked for (`--stagexec-nvml SECONDS`). An absent or broken library is a reason, never an error.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from stagexec.record.guard import note

SAMPLE_FIELDS = (
    "uuid",
    "used_bytes",
    "process_bytes",
    "power_mw",
    "energy_mj",
    "temperature_c",
    "sm_clock_mhz",
    "memory_clock_mhz",
)

_lock = threading.Lock()
_reason: str | None = None
_ready = False


def library() -> tuple[Any, str | None]:
    """(pynvml, None) when NVML answers, else (None, why not). Initialised once per process."""
    global _ready, _reason
    with _lock:
        if not _ready:
            _ready = True
            _reason = _initialise()
    if _reason is not None:
        return None, _reason
    import pynvml

    return pynvml, None


def _initialise() -> str | None:
    try:
        import pynvml
    except ImportError:
        return "the package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
        pynvml.nvmlDeviceGetCount()
    except Exception as error:  # noqa: BLE001 (a broken library raises what it likes; all of it is a reason)
        return f"NVML does not answer: {error}"
    return None


def forget() -> None:
    """Ask the library again next time. For tests."""
    global _ready, _reason
    with _lock:
        _ready, _reason = False, None


def ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """The answer of one NVML function, text decoded; None where this device or driver gives none."""
    try:
        answer = function(*arguments)
    except Exception:  # noqa: BLE001 (NVMLError_NotSupported and the like: the figure is not to be had)
        return None
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer


def handles() -> list[Any]:
    """A handle of each device; empty without NVML."""
    nvml, _ = library()
    if nvml is None:
        return []
    count = ask(nvml.nvmlDeviceGetCount) or 0
    found = (ask(nvml.nvmlDeviceGetHandleByIndex, index) for index in range(count))
    return [one for one in found if one is not None]


def handle_of(uuid: str | None, index: int = 0) -> Any:
    """The handle of the device with this uuid (with or without `GPU-`), else of the one at `index`.

    NVML numbers devices by bus and knows nothing of CUDA_VISIBLE_DEVICES: prefer the uuid.
    """
    found = handles()
    if uuid is not None:
        nvml, _ = library()
        wanted = uuid.removeprefix("GPU-")
        return next((h for h in found if (ask(nvml.nvmlDeviceGetUUID, h) or "").endswith(wanted)), None)
    return found[index] if index < len(found) else None


def facts(handle: Any) -> dict[str, Any]:
    """What does not change while a process lives: uuid, name, driver, memory_bytes, power_limit_mw,
    clocks_policy (`locked` where application clocks differ from the default, `free` where not)."""
    nvml, _ = library()
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    return {
        "uuid": ask(nvml.nvmlDeviceGetUUID, handle),
        "name": ask(nvml.nvmlDeviceGetName, handle),
        "driver": ask(nvml.nvmlSystemGetDriverVersion),
        "memory_bytes": None if memory is None else int(memory.total),
        "power_limit_mw": ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle),
        "clocks_policy": _clocks_policy(nvml, handle),
    }


def _clocks_policy(nvml: Any, handle: Any) -> str | None:
    now = ask(nvml.nvmlDeviceGetApplicationsClock, handle, nvml.NVML_CLOCK_SM)
    usual = ask(nvml.nvmlDeviceGetDefaultApplicationsClock, handle, nvml.NVML_CLOCK_SM)
    if now is None or usual is None:
        return None
    return "free" if now == usual else f"application clock {now} MHz"


def sample(handle: Any, uuid: str | None) -> tuple[Any, ...]:
    """One reading as SAMPLE_FIELDS says; a figure that this device does not give is None."""
    nvml, _ = library()
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    return (
        uuid,
        None if memory is None else int(memory.used),
        process_bytes(nvml, handle, os.getpid()),
        ask(nvml.nvmlDeviceGetPowerUsage, handle),
        ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle),
        ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
        ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
    )


def process_bytes(nvml: Any, handle: Any, pid: int) -> int | None:
    """Device memory of one process. None where the driver does not tell, as inside most containers."""
    for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        for one in ask(getattr(nvml, name), handle) or ():
            if one.pid == pid and one.usedGpuMemory is not None:
                return int(one.usedGpuMemory)
    return None


class Sampler:
    """A thread that samples every device every `period_s` seconds while it is asked for.

    `take(fields)` is called on that thread with one dict a device. `poke` asks for a sample at once: at
    the start and the end of a run, so that its energy is known to the reaction time of the thread.
    """

    def __init__(
        self, period_s: float, clock: Callable[[], int], take: Callable[[dict[str, Any]], None]
    ) -> None:
        self.period_s = period_s
        self.reason: str | None = None
        self.facts: list[dict[str, Any]] = []
        self._clock = clock
        self._take = take
        self._handles: list[Any] = []
        self._poked = threading.Event()
        self._busy = False
        self._stop = False
        self._thread = threading.Thread(target=self._loop, name="stagexec-nvml", daemon=True)

    def start(self) -> str | None:
        """Find the devices and begin. Gives the reason when there is nothing to sample."""
        _, self.reason = library()
        self._handles = handles()
        if self.reason is None and not self._handles:
            self.reason = "NVML knows no device"
        if self.reason is None:
            self.facts = [facts(handle) for handle in self._handles]
            self._thread.start()
        return self.reason

    def poke(self, busy: bool) -> None:
        """A run begins (busy) or ends: sample now, and go on at the stated rate while it is busy."""
        self._busy = busy
        self._poked.set()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stop = True
        self._poked.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _loop(self) -> None:
        while True:
            self._poked.wait(self.period_s if self._busy else None)
            self._poked.clear()
            if self._stop:
                return
            try:
                self._round()
            except Exception as error:  # noqa: BLE001 (the fence of this thread)
                note("nvml.Sampler", error)

    def _round(self) -> None:
        for handle, known in zip(self._handles, self.facts, strict=True):
            at = self._clock()
            row = dict(zip(SAMPLE_FIELDS, sample(handle, known["uuid"]), strict=True))
            self._take({"ts_mono_ns": at, **row})
