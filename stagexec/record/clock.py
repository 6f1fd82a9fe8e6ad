"""One monotonic clock for every duration, and one anchor to the wall for people."""

from __future__ import annotations

import time

now_ns = time.perf_counter_ns


def anchor() -> tuple[int, int]:
    """(monotonic ns, wall ns since 1970 UTC), read as close together as three tries allow."""
    best: tuple[int, int, int] | None = None
    for _ in range(3):
        before = now_ns()
        wall = time.time_ns()
        after = now_ns()
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) // 2, wall)
    assert best is not None
    return best[1], best[2]


ANCHOR_MONO_NS, ANCHOR_WALL_NS = anchor()


def wall_ns(mono_ns: int) -> int:
    """Wall time of a monotonic instant of this process, by its anchor."""
    return ANCHOR_WALL_NS + (mono_ns - ANCHOR_MONO_NS)


def mono_ns(wall_time_ns: int) -> int:
    """Monotonic instant of a wall time of this process, by its anchor."""
    return ANCHOR_MONO_NS + (wall_time_ns - ANCHOR_WALL_NS)


def slept_ns() -> int | None:
    """How long this machine has slept since it was started, which the clock leaves out; None if unknown."""
    try:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    except (AttributeError, OSError):
        return None
