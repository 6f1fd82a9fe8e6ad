"""Garbage collection of the whole heap: it stops every thread, so it is told apart from what it interrupts.

One that Python starts by itself while a run executes is a segment of that run's, where it is on its thread.
The one that the host makes after a prompt is in no run (`after`): a run whose files are being checked stands
still meanwhile (`held`), so the time of the process without all such pauses is kept here.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from typing import Any

from stagexec.record import after, clock, live
from stagexec.record.guard import guarded

SEAM = "gc"
"""What the segments of a pause say in their `seam` column."""

FULL = 2
"""The generation whose collection takes long; younger ones take microseconds and are not looked at."""

RECORD = os.path.dirname(os.path.abspath(__file__))
FRAMES = 8
"""A collection can begin wherever an object is made, so also in the middle of a switch of the ledger's: so
many frames up it is looked whether it did."""

_last_ns: int | None = None
_paused: tuple[int, int | None] = (0, None)
"""(ns of all pauses that are over, since when there is one); replaced whole: other threads read it whole."""

_most: tuple[Any, int] = (None, 0)
"""(the clock, the highest that `going_ns` has given by it). A pause's thread reads the clock and says so in
two steps: a reader between them is given more than the clock then stands still at (9 ns seen). Not under a
lock: two readers at the same instant can leave the lower one here, which matters only in such a gap again."""

_entered: tuple[Any, int] | None = None
"""The run, and the depth in its ledger, of the pause that is under way."""


def watch() -> None:
    """Hear of collections from now on."""
    if _pause not in gc.callbacks:
        gc.callbacks.append(_pause)


def due(after_ns: int) -> bool:
    """Has the whole heap not been collected for so long? False where it is not watched."""
    return _pause in gc.callbacks and (_last_ns is None or clock.now_ns() - _last_ns > after_ns)


def going_ns() -> int:
    """The monotonic clock in ns less all pauses so far. It stands still during one, and never goes back."""
    global _most
    while True:
        seen = _paused
        now = clock.now_ns()
        if seen is _paused:  # else one began or ended between the two readings
            over, since = seen
            going = (now if since is None else since) - over
            by, most = _most
            if by is clock.now_ns and going < most:
                return most
            _most = clock.now_ns, going
            return going


def _pause(phase: str, info: dict[str, Any]) -> None:
    global _last_ns, _paused
    if info.get("generation") != FULL:
        return
    over, since = _paused
    now = clock.now_ns()
    if phase == "start":
        _paused = (over, now)
        if live.run is not None:
            _begun()
    else:
        _last_ns = now
        _paused = (over if since is None else over + now - since, None)
        _ended(now if since is None else since, now)


@guarded
def _begun() -> None:
    """A run executes: name the pause in its ledger, where it is on its thread and Python's own doing."""
    global _entered
    run = live.running.get(threading.get_ident())
    # One that a node asks for is the node's work.
    if run is not None and _is_automatic() and not _in_ledger(_where()):
        _entered = run, run.enter("executor_overhead", "gc", SEAM)


@guarded
def _ended(start_ns: int, end_ns: int) -> None:
    global _entered
    entered, _entered = _entered, None
    if entered is not None:
        entered[0].leave(entered[1])
        return
    here = threading.get_ident()
    if here in live.running:
        return
    others = list(live.running.values())
    if not others:
        after.collected(start_ns, end_ns)
    elif end_ns - start_ns >= after.LEAST_NS:
        lane = f"thread:{threading.current_thread().name}"
        for run in others:  # their threads stood still as well
            run.span(lane, SEAM, start_ns, end_ns, "executor_overhead", None, {"part": "gc"})


def _is_automatic() -> bool:
    """Did Python begin this collection by itself? Then there are more young objects than it waits for."""
    most = gc.get_threshold()[0]
    return 0 < most < gc.get_count()[0]


def _where() -> Any:
    """The frame in which the collection began; None for the last one of a process, which has no caller."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code is not _pause.__code__:
        frame = frame.f_back
    return frame and frame.f_back


def _in_ledger(frame: Any) -> bool:
    """Did it begin inside our own record? A ledger must not be switched in the middle of a switch."""
    for _ in range(FRAMES):
        if frame is None:
            return False
        if frame.f_code.co_filename.startswith(RECORD):
            return True
        frame = frame.f_back
    return False
