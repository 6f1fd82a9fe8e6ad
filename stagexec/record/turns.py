"""Waits that tell a slow disk from a node that holds the interpreter's lock.

A thread that comes back from a system call waits for that lock before it can look at a clock: a node that
holds it for half a second makes a write of some microseconds look like one of half a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable

HELD_S = 0.05
"""A wait that ended so much later than it was to end was for the lock; Python hands it over each 5 ms."""

TURNS = 4
"""A wait that the lock made longer is begun again, at most so often."""


def is_held() -> bool:
    """Does something hold the interpreter's lock for long? Gives it up for a moment, and waits for it."""
    begin = time.monotonic()
    time.sleep(0)
    return time.monotonic() - begin > HELD_S


def patiently(wait: Callable[[float], bool], timeout_s: float) -> bool:
    """`wait(timeout_s)`, begun again where the lock took the time that the other side had for it."""
    for _ in range(TURNS):
        begin = time.monotonic()
        if wait(timeout_s):
            return True
        if time.monotonic() - begin < timeout_s + HELD_S:
            return False
    return False
