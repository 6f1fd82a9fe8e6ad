"""Full garbage collections that Python starts by itself: none in a prompt's first 10 s.

The host collects the whole heap itself, after a prompt when the last time is 10 s ago. In between Python
starts more of them, whenever the heap has grown by a quarter: a large graph's objects make it do so several
times in one prompt, 0.4 to 0.6 s each with a small model loaded. Measured at 20,000 cached nodes: two of
them were 1.2 of 1.43 s. Young objects are collected as ever, and a call of `gc.collect()` collects.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from typing import Any

from stagexec.record import clock
from stagexec.record.guard import guarded

REST_NS = 10_000_000_000
"""No automatic full collection for so long after the last full one, and after the beginning of a prompt. The
host's own interval: what it leaves uncollected for that long, so do we."""

LOOK_S = 1.0
"""How often the thread looks whether the time is over."""

IN_PIECES = sys.version_info >= (3, 14)
"""From then on Python collects old objects a piece at a time, and has no such threshold."""

FULL = 2
NEVER = 1_000_000
"""In place of the third threshold: as many collections of the second generation as no 10 s hold."""


class Restraint:
    """Raises the third of the interpreter's thresholds, and sets it back when the time is over.

    Thresholds that other code has set meanwhile stay as they are.
    """

    def __init__(self, collector: Any = gc) -> None:
        self._gc = collector
        self._before: tuple[int, int, int] | None = None
        """The thresholds to go back to, while ours are in force."""
        self._last_ns: int | None = None
        self._begun_ns: int | None = None

    def watch(self) -> None:
        """Hear of collections from now on."""
        if self._told not in self._gc.callbacks:
            self._gc.callbacks.append(self._told)

    @guarded
    def begin(self) -> None:
        """A prompt begins."""
        self._begun_ns = clock.now_ns()
        self._hold()

    @guarded
    def end(self) -> None:
        """The prompt is over."""
        self._begun_ns = None
        self.look()

    @guarded
    def look(self) -> None:
        """Let Python collect again if the time is over."""
        if self._before is None:
            return
        now = clock.now_ns()
        if all(since is None or now - since >= REST_NS for since in (self._last_ns, self._begun_ns)):
            self.release()

    def release(self) -> None:
        """Set the thresholds back, unless other code has set its own."""
        before = self._before
        if before is not None and self._gc.get_threshold() == (*before[:FULL], NEVER):
            self._gc.set_threshold(*before)
            self._before = None

    def _hold(self) -> None:
        if IN_PIECES:
            return
        now = self._gc.get_threshold()
        if self._before is None and now[0] > 0 and 0 < now[FULL] < NEVER:
            self._before = now
            self._gc.set_threshold(*now[:FULL], NEVER)

    def _told(self, phase: str, info: dict[str, Any]) -> None:
        # Runs wherever an object is made: it must take no lock.
        if phase == "stop" and info.get("generation") == FULL:
            self._last_ns = clock.now_ns()
            self._hold()


_one: Restraint | None = None


def restraint() -> Restraint:
    """The process's own, made at the first call."""
    global _one
    if _one is None:
        _one = Restraint()
        _set_up(_one)
    return _one


@guarded
def _set_up(one: Restraint) -> None:
    threading.Thread(target=_looks, args=(one,), name="stagexec-garbage", daemon=True).start()
    if hasattr(os, "register_at_fork"):  # the thread does not live on in a child
        os.register_at_fork(after_in_child=one.release)
    one.watch()


def _looks(one: Restraint) -> None:
    while True:
        time.sleep(LOOK_S)
        one.look()
