"""Files that are written after their node has returned, by its thread or a program: waited for, so long."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from stagexec.delivery import pulse
from stagexec.delivery.verify import CHANGED, Check

COMES_S = 3.0
"""A file that is not there when its run has been executed may still come, so long. Per run, not per file."""

GROWS_S = 60.0
"""One that grows is waited for, so long at most."""

STILL_S = 0.4
"""A file that was written to after its node had returned is whole when nothing has changed it for so long."""

CUT_S = 1.5
"""The same for one that is cut short, or empty: its writer may take a breath."""

LOOK_S = 0.05

SLACK_NS = 20_000_000
"""A close that ends as the visit does, by another clock, counts as in time."""


class Patience:
    """How long one run waits for its files.

    `waits(True, True)`: it begins; `waits(False, came)`: it is over, and did a file come of it?
    """

    def __init__(self, waits: Callable[[bool, bool], None] = lambda _waiting, _came: None) -> None:
        self.waits = waits
        self._lock = threading.Lock()
        self._comes: float | None = None
        self._grows: float | None = None

    def left_to_come(self) -> bool:
        """May a file that is not there still come? The time runs from when this is first asked."""
        with self._lock:
            self._comes = self._comes or time.monotonic() + COMES_S
            return time.monotonic() < self._comes

    def left_to_grow(self) -> bool:
        """The same for one that is not whole."""
        with self._lock:
            self._grows = self._grows or time.monotonic() + GROWS_S
            return time.monotonic() < self._grows

    def look_again_later(self) -> None:
        """Wait a little."""
        pulse.beat()
        self.waits(True, True)
        time.sleep(LOOK_S)
        pulse.beat()


def check(look: Callable[[Path], Check], path: Path, ended_wall_ns: int, patience: Patience) -> Check:
    """The check of a file that an executed node named, once nothing more seems to happen to it.

    `ended_wall_ns`: when the node returned. A file that was whole by then is looked at once.
    """
    waited = came = False
    try:
        while True:
            found, stamp = look(path), _stamp(path)
            if found.state == "missing" or stamp is None:
                if not patience.left_to_come():
                    return found
                waited = True
                patience.look_again_later()
                continue
            came = came or waited  # it came, or has changed
            still_s = _patience_with(found, stamp, ended_wall_ns)
            if still_s is None or _is_old(stamp, still_s):
                return found
            waited = True
            if not _changes(path, stamp, still_s, patience):
                return found
    finally:
        if waited:
            patience.waits(False, came)


def _patience_with(found: Check, stamp: tuple[int, int], ended_wall_ns: int) -> float | None:
    """For how long the file must stay as it is to be taken for whole; None: it is."""
    if found.state == "corrupt":
        return CUT_S
    changed = found.state == "unverified" and found.reason == CHANGED
    return STILL_S if changed or stamp[1] > ended_wall_ns + SLACK_NS else None


def _is_old(stamp: tuple[int, int], still_s: float) -> bool:
    """Has nothing changed it for so long already, by the file's own age?"""
    return time.time_ns() - stamp[1] > still_s * 1e9


def _changes(path: Path, stamp: tuple[int, int] | None, still_s: float, patience: Patience) -> bool:
    """Wait until the file has been still for so long; has it changed meanwhile?"""
    first, since = stamp, time.monotonic()
    while time.monotonic() - since < still_s and patience.left_to_grow():
        patience.look_again_later()
        now = _stamp(path)
        if now != stamp:
            stamp, since = now, time.monotonic()
    return stamp != first


def _stamp(path: Path) -> tuple[int, int] | None:
    """(size, time of modification in ns); None where it cannot be had."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns
