"""Posts each closed run to an address, with patience, and never in a run's way."""

from __future__ import annotations

import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import msgspec

PAUSES_S = (1.0, 5.0, 25.0)
"""Between attempts; then the run is given up."""

TIMEOUT_S = 10.0
WAITING = 1000
"""So many runs wait for a slow receiver; what comes beyond is dropped and counted."""


class Webhook:
    """One address."""

    def __init__(
        self, url: str, complain: Callable[[str], None], pauses_s: tuple[float, ...] = PAUSES_S
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"a webhook is an http or https address, not {url!r}")
        self.url = url
        self.dropped = 0
        self._pauses_s = pauses_s
        self._complain = complain
        self._queue: queue.Queue[dict[str, Any]] = queue.Queue(WAITING)
        threading.Thread(target=self._loop, name="stagexec-webhook", daemon=True).start()

    def put(self, summary: dict[str, Any]) -> None:
        """Hand over a closed run: the row of `runs`. Never waits."""
        try:
            self._queue.put_nowait(summary)
        except queue.Full:
            self.dropped += 1

    def _loop(self) -> None:
        while True:
            summary = self._queue.get()
            body = msgspec.json.encode({"event": "stagexec.run", "run": summary})
            problem = self._post(body)
            for pause in self._pauses_s:
                if problem is None:
                    break
                time.sleep(pause)
                problem = self._post(body)
            if problem is not None:
                self._complain(f"run {summary.get('run_id')} could not be posted to the webhook: {problem}")

    def _post(self, body: bytes) -> str | None:
        """What went wrong; None when it was taken."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url, body, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                return None
        except (OSError, urllib.error.URLError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
