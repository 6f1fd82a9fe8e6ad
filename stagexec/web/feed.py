"""Tells of each closed run, from its journal, on a thread of its own: a run never waits for a listener."""

from __future__ import annotations

import pathlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from stagexec.reading.runs import Run
from stagexec.reading.table import summary_of
from stagexec.reading.tail import Tail

if TYPE_CHECKING:
    from stagexec.web.earlier import Earlier

WAIT_S = 5.0
"""A run whose end is not in the journal by then is reported without its times: the disk may be full."""

LOOK_S = 0.02
RECENT = 1000

BRIEF = ("run_id", "outcome", "cause", "condition_id", "total_ns", "stages", "wasted_ns", "accepted_wall")
"""What of a run stands in its history entry, and in the event."""


class Ended(Protocol):
    """A run that is over, as listeners get it."""

    @property
    def row(self) -> dict[str, Any]:
        """Its row (table.COLUMNS)."""

    def run(self) -> Run:
        """The run in full."""


Listener = Callable[[Ended], None]


def summary(ended: Ended) -> dict[str, Any]:
    """The row of `runs` of a run that is over."""
    return summary_of(ended.row)


def brief(ended: Ended) -> dict[str, Any]:
    """BRIEF of a run that is over."""
    whole = summary_of(ended.row)
    return {name: whole[name] for name in BRIEF}


def tell(listeners: Iterable[Listener], ended: Ended, complain: Callable[[str, Exception], None]) -> None:
    """Call each listener; one that faults does not stop another."""
    for listener in listeners:
        try:
            listener(ended)
        except Exception as error:  # noqa: BLE001 (the fence of the thread that tells)
            complain(getattr(listener, "__qualname__", repr(listener)), error)


class Feed:
    """Follows the journal that `path` names, once there is one, and calls the listeners."""

    def __init__(
        self, path: Callable[[], pathlib.Path | None], complain: Callable[[str, Exception], None]
    ) -> None:
        self.listeners: list[Listener] = []
        self.worker_listeners: list[Callable[[dict[str, Any]], None]] = []
        """Told, on the thread that dies, when the one that executes prompts was replaced or is dead."""
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        """Summaries of the newest runs of this process, oldest first."""
        self.earlier: Earlier | None = None
        """Who tells of the runs that earlier processes left open; begins with the feed."""
        self._path = path
        self._complain = complain
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._tail: Tail | None = None
        self._seen: set[str] = set()

    def start(self) -> None:
        """Begin to listen."""
        threading.Thread(target=self._loop, name="stagexec-feed", daemon=True).start()
        if self.earlier is not None:
            self.earlier.start()

    def closed(self, run_id: str) -> None:
        """A run was closed; its end is on its way into the journal. Never blocks."""
        self._queue.put(run_id)

    def _loop(self) -> None:
        while True:
            run_id = self._queue.get()
            end = time.monotonic() + WAIT_S
            while run_id not in self._seen and time.monotonic() < end:
                if not self._poll():
                    time.sleep(LOOK_S)
            self._seen.discard(run_id)

    def _poll(self) -> bool:
        try:
            path = self._path()
            if path is None:
                return False
            if self._tail is None or self._tail.path != path:
                self._tail = Tail(path)
            found = self._tail.poll()
        except OSError:
            return False  # not there yet, or gone: looked for again
        except Exception as error:  # noqa: BLE001 (the fence of this thread: one bad line must not silence it)
            self._complain("Feed.poll", error)
            return False
        for closed in found:
            self._seen.add(closed.row["run_id"])
            self.recent.append(summary_of(closed.row))
            tell(self.listeners, closed, self._complain)
        return bool(found)
