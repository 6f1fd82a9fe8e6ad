"""Whether all arms' servers may live at once: memory that is free against what the first one takes.

An idle server keeps its model. Where all of them fit, arms alternate within seconds. Where they do not, idle
ones would have to drop their models, and the next run of each would load again: no state that keeps a server
(`recompute`, `cached` …) allows that, so arms then take turns by launches. A host that finds less free device
memory than usual also loads only a part of a model, and would be another arm than alone: hence the margins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stagexec.answers.words import size

MARGIN = 0.1
"""Of all memory: what is left free for everybody else."""
LEAST_MARGIN = 1 << 30
"""Of a device, bytes: what the host itself keeps free there."""
WORK = 0.5
"""Of a server's device memory when idle: what a run needs beside its weights, for the one that runs."""
CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)


@dataclass(frozen=True)
class Memory:
    """One kind of memory, bytes: how much there is, is free now, and one server takes, idle and at most."""

    name: str
    total: int
    free: int
    used: int
    peak: int


@dataclass(frozen=True)
class Room:
    """The answer: `fits`, one sentence, and the figures behind it."""

    fits: bool
    why: str
    figures: list[dict[str, Any]] = field(default_factory=list)


def judge(memories: list[Memory], more: int) -> Room:
    """Whether `more` servers like the measured one fit beside it. Each runs alone, the others idle."""
    figures = []
    short = []
    for one in memories:
        margin = max(round(MARGIN * one.total), LEAST_MARGIN if one.name != "memory" else 0)
        need = more * one.used + max(0, one.peak - one.used) + margin
        figures.append(
            {"memory": one.name, "total_bytes": one.total, "free_bytes": one.free, "server_bytes": one.used,
             "peak_bytes": one.peak, "more": more, "need_bytes": need}
        )  # fmt: skip
        if need > one.free:
            short.append(
                f"a server takes {size(one.used)} of {one.name}, {more} more would need {size(need)} with a "
                f"margin, and {size(one.free)} are free"
            )
    if short:
        return Room(False, "; ".join(short), figures)
    told = ", ".join(f"{size(one.used)} of {one.name}" for one in memories)
    return Room(True, f"{more} more servers fit beside the first ({told} each)", figures)


def measure(pid: int, before: dict[str, int], on_device: bool) -> list[Memory] | None:
    """What the server `pid` takes of each memory. `before`: device bytes in use before it was started.

    None when it works on a device whose memory cannot be read.
    """
    import psutil  # type: ignore[import-untyped]

    family = [psutil.Process(pid)]
    family += family[0].children(recursive=True)
    used = sum(one.memory_info().rss for one in family)
    whole = psutil.virtual_memory()
    total, free = _limited(int(whole.total), int(whole.available))
    found = [Memory("memory", total, free, used, max(used, _peak(pid)))]
    devices = _devices(pid, before)
    if on_device and not devices:
        return None
    return found + (devices if on_device else [])


def _peak(pid: int) -> int:
    """The most resident memory that a process has had, bytes; 0 where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    told = re.search(r"^VmHWM:\s+(\d+) kB", text, flags=re.MULTILINE)
    return int(told[1]) * 1024 if told else 0


def _limited(total: int, free: int) -> tuple[int, int]:
    """Total and free memory under a container's limit, which the system's own figures do not know."""
    for limit_file, used_file, stat_file in CGROUPS:
        try:
            limit, used = (int(Path(file).read_text()) for file in (limit_file, used_file))
            stat = Path(stat_file).read_text()
        except (OSError, ValueError):  # no such limit ("max"), or no such file
            continue
        cached = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, flags=re.MULTILINE)
        left = limit - used + (int(cached[1]) if cached else 0)
        return min(total, limit), min(free, max(0, left))
    return total, free


def device_bytes() -> dict[str, int]:
    """Device memory in use, bytes, by the device's uuid; empty without NVML."""
    return {uuid: int(memory.used) for uuid, _, memory in _each_device()}


def _devices(pid: int, before: dict[str, int]) -> list[Memory]:
    """Of each device the server is on. Drivers in containers name no processes: then the growth counts."""
    import pynvml

    found = []
    for uuid, handle, memory in _each_device():
        used = None
        for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            for one in _ask(getattr(pynvml, name), handle) or ():
                if one.pid == pid and one.usedGpuMemory is not None:
                    used = int(one.usedGpuMemory)
        if used is None:
            used = max(0, int(memory.used) - before.get(uuid, 0))
        if used:
            peak = round(used * (1 + WORK))
            found.append(Memory(f"device {uuid[:12]}", int(memory.total), int(memory.free), used, peak))
    return found


def _each_device() -> list[tuple[str, Any, Any]]:
    """(uuid, handle, memory) of every device that NVML knows; none without it."""
    try:
        import pynvml

        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
    except Exception:  # noqa: BLE001 (no driver, no library, a broken one: there is no device to ask)
        return []
    found = []
    for index in range(count):
        handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        uuid, memory = _ask(pynvml.nvmlDeviceGetUUID, handle), _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        if uuid is not None and memory is not None:
            found.append((uuid.decode() if isinstance(uuid, bytes) else str(uuid), handle, memory))
    return found


def device_state() -> dict[str, dict[str, int | None]]:
    """uuid -> its clock (`sm_mhz`) and temperature (`celsius`) now; empty without NVML."""
    devices = _each_device()
    if not devices:
        return {}
    import pynvml

    return {
        uuid: {
            "sm_mhz": _ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
            "celsius": _ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        }
        for uuid, handle, _ in devices
    }


def _ask(function: Any, *arguments: Any) -> Any:
    """The answer of one NVML function; None where this device or driver gives none."""
    try:
        return function(*arguments)
    except Exception:  # noqa: BLE001 (NVMLError_NotSupported and the like)
        return None
