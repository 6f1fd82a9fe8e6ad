"""What is sent from a thread of its own: a bounded queue, so that whoever hands over never waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


class Outbox:
    """Calls `send(item)`, which must not raise, for one item after another on a daemon thread `name`."""

    def __init__(self, name: str, send: Callable[[Any], None], waiting: int) -> None:
        self.dropped = 0
        self._send = send
        self._queue: queue.Queue[Any] = queue.Queue(waiting)
        threading.Thread(target=self._loop, name=name, daemon=True).start()

    def put(self, item: Any) -> None:
        """Hand over one item; dropped, and counted, when as many as may wait do so already."""
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self.dropped += 1

    def _loop(self) -> None:
        while True:
            self._send(self._queue.get())
