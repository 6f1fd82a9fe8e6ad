"""What is sent from a thread of its own: a bounded queue, so that its caller never waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from stagexec import addresses


class Outbox:
    """Calls `send(item)` for one item after another on a daemon thread `name`; what it gives back is why not.

    What cannot be sent, or finds as many waiting as may, is dropped: counted, and said once until it works.
    """

    def __init__(
        self,
        name: str,
        target: str,
        send: Callable[[Any], str | None],
        waiting: int,
        complain: Callable[[str], None],
    ) -> None:
        self.dropped = 0
        self.on_drop: Callable[[], None] | None = None
        """Called for each item that was dropped, on whichever thread."""
        self._target = target
        self._send = send
        self._complain = complain
        self._said = False
        self._queue: queue.Queue[Any] = queue.Queue(waiting)
        threading.Thread(target=self._loop, name=name, daemon=True).start()

    def put(self, item: Any) -> None:
        """Hand over one item. Never waits."""
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self._drop(f"{self._queue.maxsize} are waiting already")

    def _loop(self) -> None:
        while True:
            item = self._queue.get()
            try:
                problem = self._send(item)
            except Exception as error:  # noqa: BLE001 (the fence of this thread)
                problem = addresses.reason(error)
            if problem is None:
                self._said = False
            else:
                self._drop(problem)

    def _drop(self, problem: str) -> None:
        self.dropped += 1
        if self.on_drop is not None:
            self.on_drop()
        if not self._said:
            self._said = True
            self._complain(
                f"a run could not be posted to {self._target}, and is dropped: {problem}. Further ones are "
                "counted, and said again when one was taken."
            )
