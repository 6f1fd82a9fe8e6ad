"""Garbage collection of the whole heap: it stops every thread, so a run that is being verified waits for it.

The host collects right after a prompt (0.4 s with a small model loaded). Without this, that time would stand
in the ledger as delivery.
"""

from __future__ import annotations

import gc
from typing import Any

from stagexec.record import clock, live
from stagexec.record.guard import guarded
from stagexec.record.ledger import NO_DEPTH

SEAM = "gc"
"""What the segments of a pause say in their `seam` column."""

FULL = 2
"""The generation whose collection takes long; younger ones take microseconds and are not looked at."""


HELD_S = 1.0
"""A run's `closing` lock is held for some microseconds at a time."""

_last_ns: int | None = None


def watch() -> None:
    """Be told of collections from now on."""
    if _pause not in gc.callbacks:
        gc.callbacks.append(_pause)


def due(after_ns: int) -> bool:
    """Has the whole heap not been collected for so long? False where nobody watches."""
    return _pause in gc.callbacks and (_last_ns is None or clock.now_ns() - _last_ns > after_ns)


def _pause(phase: str, info: dict[str, Any]) -> None:
    global _last_ns
    if info.get("generation") != FULL:
        return
    if phase == "stop":
        _last_ns = clock.now_ns()
    if live.finishing:
        _file(phase)


@guarded
def _file(phase: str) -> None:
    for run in list(live.finishing.values()):
        # At the start it is held where the run is being closed, perhaps by this very thread: not waited for.
        # A pause that did begin has to end, and whoever holds the lock then is another thread.
        begun = phase == "stop" and run.pause_depth != NO_DEPTH
        if not run.closing.acquire(timeout=HELD_S if begun else 0):
            continue
        try:
            if phase == "start":
                run.pause_depth = run.enter("executor_overhead", None, SEAM)
            else:
                run.leave(run.pause_depth)
                run.pause_depth = NO_DEPTH
        finally:
            run.closing.release()
