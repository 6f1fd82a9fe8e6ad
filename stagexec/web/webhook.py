"""Posts each closed run, and a worker's end, to an address, with patience, and never in a run's way."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import msgspec

from stagexec.views.outbox import Outbox

PAUSES_S = (1.0, 5.0, 25.0)
"""Between attempts; then the run is given up."""

TIMEOUT_S = 10.0
WAITING = 1000
"""So many runs wait for a slow receiver; what comes beyond is dropped and counted."""


class WorkerEnd(dict[str, Any]):
    """The state of the host's worker, in the place of a run's summary."""


class Webhook(Outbox):
    """One address; `put(summary)` hands over a closed run as its row of `runs`, and never waits."""

    def __init__(
        self, url: str, complain: Callable[[str], None], pauses_s: tuple[float, ...] = PAUSES_S
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"a webhook is an http or https address, not {url!r}")
        self.url = url
        self._pauses_s = pauses_s
        self._complain = complain
        super().__init__("stagexec-webhook", self._send_one, WAITING)

    def put_worker(self, told: dict[str, Any]) -> None:
        """Hand over the worker's state after one has died."""
        self.put(WorkerEnd(told))

    def _send_one(self, summary: dict[str, Any]) -> None:
        body = msgspec.json.encode({"event": "stagexec.run", "run": summary})
        if isinstance(summary, WorkerEnd):
            body = msgspec.json.encode({"event": "stagexec.worker", "worker": dict(summary)})
        problem = self._post(body)
        for pause in self._pauses_s:
            if problem is None:
                break
            time.sleep(pause)
            problem = self._post(body)
        if problem is not None:
            what = "a worker's end" if isinstance(summary, WorkerEnd) else f"run {summary.get('run_id')}"
            self._complain(f"{what} could not be posted to the webhook: {problem}")

    def _post(self, body: bytes) -> str | None:
        """What went wrong; None when it was taken."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url, body, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                return None
        except (OSError, urllib.error.URLError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
