"""The profile of one chosen run: ranges named run/stage/node, torch's trace, and a memory snapshot.

Files land in `<ledger>/profiles/<run_id>/`. The run is flagged with timing mode `profile`, and its times
are never compared with other runs': recording them costs time.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stagexec.record.guard import guarded, note

TRACE = "trace.json"
SNAPSHOT = "memory.pickle"
ANCHOR = "stagexec.anchor/"
"""Name, with the monotonic time in ns behind it, of a range that ties the trace's clock to the ledger's."""

MAX_HISTORY = 200_000
"""Allocations that a memory snapshot looks back on."""

_lock = threading.Lock()
_latest: weakref.ref[Profile] | None = None
"""The profile that began last. Torch has one profiler for all threads: a second would end the first."""


class Profile:
    """The instruments of one run. Everything but `write` is called on the executing thread."""

    def __init__(self, run_id: str, folder: Path, clock: Callable[[], int]) -> None:
        self.ledger = folder
        self.folder = folder / "profiles" / run_id
        self.problems: list[str] = []
        self._name = run_id[:8]
        self._clock = clock
        self._torch: Any = sys.modules.get("torch")
        self._profiler: Any = None
        self._range: Any = None
        self._nvtx: Any = None
        self._history = False
        self.recording = False

    def start(self) -> None:
        """Begin to record. An instrument that cannot be had is a problem of its own, not of the others."""
        if self._torch is None:
            self.problems.append("torch is not imported")
            return
        if not self._take():
            self.problems.append("another run is being profiled")
            return
        for instrument in (self._start_trace, self._start_history):
            try:
                instrument()
            except Exception as error:  # noqa: BLE001 (e.g. another profiler is at work: told, and gone without)
                self.problems.append(f"{instrument.__name__[7:]}: {type(error).__name__}: {error}"[:300])

    def _take(self) -> bool:
        """Be the one that records, unless another does."""
        global _latest
        with _lock:
            other = _latest() if _latest is not None else None
            if other is None or not other.recording:
                _latest, self.recording = weakref.ref(self), True
            return self.recording

    def _start_trace(self) -> None:
        torch = self._torch
        if torch.autograd._profiler_enabled():  # a second one would end the first, whose owner then fails
            raise RuntimeError("another profiler is at work")
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        profiler = torch.profiler.profile(activities=activities)
        profiler.start()
        self._profiler = profiler
        with torch.profiler.record_function(f"{ANCHOR}{self._clock()}"):
            pass

    def _start_history(self) -> None:
        torch = self._torch
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.memory._record_memory_history(max_entries=MAX_HISTORY)
            self._history = True

    def range(self, stage: str, node: str | None) -> None:
        """From now on time belongs to `stage` and `node`: one range, in the trace and for NVTX tools."""
        if self._profiler is None:
            return
        try:
            self._end_range()
            name = f"{self._name}/{stage}/{node or '-'}"
            self._range = self._torch.profiler.record_function(name)
            self._range.__enter__()
            # Started and ended by handle: a node's own pushed ranges stay balanced.
            self._nvtx = self._torch.cuda.nvtx.range_start(name) if self._torch.cuda.is_available() else None
        except Exception as error:  # noqa: BLE001 (our own bookkeeping: noted)
            note("Profile.range", error)

    def _end_range(self) -> None:
        if self._range is not None:
            one, self._range = self._range, None
            one.__exit__(None, None, None)
        if self._nvtx is not None:
            handle, self._nvtx = self._nvtx, None
            self._torch.cuda.nvtx.range_end(handle)

    @guarded
    def stop(self) -> None:
        """End recording."""
        try:
            self._end_range()
        finally:
            self.recording = False
            if self._profiler is not None:
                self._profiler.stop()

    @guarded
    def write(self) -> list[Path]:
        """Write the files, off the worker. Gives those that are there whole."""
        written: list[Path] = []
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, ready, save in (
            (TRACE, self._profiler is not None, self._save_trace),
            (SNAPSHOT, self._history, self._save_snapshot),
        ):
            if not ready:
                continue
            try:
                save(self.folder / name)
                written.append(self.folder / name)
            except Exception as error:  # noqa: BLE001 (disk full, or torch's own trouble: told in the run)
                self.problems.append(f"{name}: {type(error).__name__}: {error}"[:300])
        return written

    def _save_trace(self, path: Path) -> None:
        profiler, self._profiler = self._profiler, None
        profiler.export_chrome_trace(str(path))

    def _save_snapshot(self, path: Path) -> None:
        memory = self._torch.cuda.memory
        try:
            memory._dump_snapshot(str(path))
        finally:
            memory._record_memory_history(enabled=None)


def compile_counters() -> dict[str, int]:
    """What torch.compile has counted so far in this process; empty when it was never used."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    if not counters:
        return {}
    return {
        "unique_graphs": int(counters.get("stats", {}).get("unique_graphs", 0)),
        "frames": int(counters.get("frames", {}).get("total", 0)),
        "graph_breaks": int(sum(counters.get("graph_break", {}).values())),
    }


@guarded
def file_facts(of: Any, attention: dict[str, Any]) -> None:
    """Marks for what was counted during a run: attention calls, and how they go; graphs compiled."""
    if of.attention:
        of.mark("attention", {"calls": of.attention, **attention})
    grown = {name: count - of.compiled_before.get(name, 0) for name, count in compile_counters().items()}
    if any(grown.values()) and of.alone:  # the counters are the process's
        of.mark("compiled", grown, source="loop")
