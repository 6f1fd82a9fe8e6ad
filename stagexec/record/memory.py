"""Memory in layers that never stand in for one another: allocator, device, process, host's own, RSS.

Reads current figures only. No peak counter is reset here or anywhere: other packs read them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from stagexec.record.guard import guarded

MIN_GAP_NS = 5_000_000
"""At stage boundaries memory is read at most this often: a reading costs some 20 µs, a boundary 1 µs."""

MAX_SAMPLES = 100_000

dynamic_vram: Callable[[], int | None] | None = None
"""The host's own figure for the bytes that its dynamic VRAM holds; set by host/, None where there is none."""

_process: Any = None


class Samples:
    """Readings at the stage boundaries of one run, as rows of MEMORY_COLUMNS; of its own thread."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.rows: list[tuple[int | None, ...]] = []
        self._next_ns = 0

    def boundary(self, at_ns: int) -> None:
        """A stage begins at `at_ns`: read memory unless that was done within MIN_GAP_NS."""
        if at_ns < self._next_ns or len(self.rows) >= MAX_SAMPLES:
            return
        self._next_ns = at_ns + MIN_GAP_NS
        self.read(at_ns)

    @guarded
    def read(self, at_ns: int) -> None:
        """One reading now."""
        device, allocated, reserved = allocator(self.kind)
        dynamic = dynamic_vram() if dynamic_vram is not None else None
        self.rows.append((at_ns, device, allocated, reserved, dynamic, rss()))


def allocator(kind: str) -> tuple[int | None, int | None, int | None]:
    """(device index, allocated bytes, reserved bytes) of torch's allocator on the current device.

    Nulls where `kind` (a torch device type) has no such allocator or it was never used.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None, None, None
    if kind in ("cuda", "xpu"):
        module = getattr(torch, kind)
        if not module.is_initialized():
            return None, None, None
        device = module.current_device()
        # The nested form is what the allocator itself gives; memory_allocated() would flatten and sort it.
        nested = getattr(module, "memory_stats_as_nested_dict", None)
        if nested is None:
            return device, module.memory_allocated(device), module.memory_reserved(device)
        stats = nested(device)
        return device, _current(stats, "allocated_bytes"), _current(stats, "reserved_bytes")
    if kind == "mps":
        return 0, torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory()
    return None, None, None


def _current(stats: dict[str, Any], name: str) -> int | None:
    found = stats.get(name, {}).get("all", {}).get("current")
    return None if found is None else int(found)


def rss() -> int | None:
    """Resident bytes of this process; None where psutil, which every ComfyUI has, is not installed."""
    global _process
    if _process is None:
        try:
            import psutil  # type: ignore[import-untyped]
        except ImportError:
            return None
        _process = psutil.Process()
    return int(_process.memory_info().rss)


@guarded
def at_end(kind: str | None) -> dict[str, int]:
    """The layers at the end of a run, {name: bytes}; a layer that is not there has no entry.

    `device_*` is the whole device, all programs together; `allocator_peak_*` is the highest since the process
    began or since other code reset it.
    """
    found: dict[str, int | None] = {"rss_bytes": rss()}
    if kind in ("cuda", "xpu", "mps"):
        _, found["allocated_bytes"], found["reserved_bytes"] = allocator(kind)
    torch = sys.modules.get("torch")
    if kind == "cuda" and torch is not None and torch.cuda.is_initialized():
        found["allocator_peak_bytes"] = torch.cuda.max_memory_allocated()
        try:
            free, total = torch.cuda.mem_get_info()
        except RuntimeError:  # after a fault of the device every call raises: this layer is not to be had
            free, total = None, None
        found["device_used_bytes"] = None if free is None else total - free
        found["device_total_bytes"] = total
    if dynamic_vram is not None:
        found["dynamic_bytes"] = dynamic_vram()
    return {name: size for name, size in found.items() if size is not None}
