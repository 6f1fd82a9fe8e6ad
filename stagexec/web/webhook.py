"""Posts each closed run, and a worker's end, to an address, with patience, and never in a run's way."""

from __future__ import annotations

import base64
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import msgspec

from stagexec import addresses
from stagexec.views.outbox import Outbox

PAUSES_S = (1.0, 5.0, 25.0)
"""Between attempts; then the run is given up."""

TIMEOUT_S = 10.0
WAITING = 1000
"""So many runs wait for a slow receiver; what comes beyond is dropped and counted."""

PASSING = (408, 425, 429)
"""Refusals (4xx) that may end by themselves. Others, and redirects, say the same at each attempt."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is no answer: followed, a POST becomes a GET, and may carry a run to another server."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none: it is then an HTTPError."""


class WorkerEnd(dict[str, Any]):
    """The state of the host's worker, in the place of a run's summary."""


class Webhook(Outbox):
    """One address; `put(summary)` hands over a closed run as its row of `runs`, and never waits.

    Raises ValueError, whose text does not hold the address, for one that cannot be used.
    """

    def __init__(
        self, url: str, complain: Callable[[str], None], pauses_s: tuple[float, ...] = PAUSES_S
    ) -> None:
        if not addresses.is_http(url):
            raise ValueError("a webhook is an http or https address, with a number as its port if it has one")
        plain, user = addresses.parted(url)
        self.url = plain
        self._headers = {"Content-Type": "application/json"}
        if user is not None:
            self._headers["Authorization"] = "Basic " + base64.b64encode(":".join(user).encode()).decode()
        self._pauses_s = pauses_s
        self._open = urllib.request.build_opener(_NoRedirect).open
        target = f"the webhook at {addresses.origin(plain)}"
        super().__init__("stagexec-webhook", target, self._send_one, WAITING, complain)

    def put_worker(self, told: dict[str, Any]) -> None:
        """Hand over the worker's state after one has died."""
        self.put(WorkerEnd(told))

    def _send_one(self, summary: dict[str, Any]) -> str | None:
        body = msgspec.json.encode({"event": "stagexec.run", "run": summary})
        if isinstance(summary, WorkerEnd):
            body = msgspec.json.encode({"event": "stagexec.worker", "worker": dict(summary)})
        problem, again = self._post(body)
        for pause in self._pauses_s:
            if problem is None or not again:
                break
            time.sleep(pause)
            problem, again = self._post(body)
        what = "a worker's end" if isinstance(summary, WorkerEnd) else f"run {summary.get('run_id')}"
        return problem if problem is None else f"{problem} ({what})"

    def _post(self, body: bytes) -> tuple[str | None, bool]:
        """(what went wrong, None when it was taken; whether another attempt may go better)."""
        request = urllib.request.Request(self.url, body, self._headers, method="POST")
        try:
            with self._open(request, timeout=TIMEOUT_S) as answer:
                code = answer.status
        except urllib.error.HTTPError as error:
            with error:
                code = error.code
        except (OSError, ValueError, http.client.HTTPException) as error:
            return addresses.reason(error), True
        if 200 <= code < 300:
            return None, False
        if 300 <= code < 400:
            return f"it answered {code}, a redirect, which is not followed", False
        return f"it answered {code}", code >= 500 or code in PASSING
