"""The read-only HTTP routes: the page, runs, failures and metrics. All of them answer GET alone."""

from __future__ import annotations

import asyncio
import functools
import math
import pathlib
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from stagexec.answers.failures import BY, failures
from stagexec.reading import rows, store
from stagexec.reading.table import summary_of
from stagexec.views import prometheus
from stagexec.web import hosts

MOST_RUNS = 1000
DEFAULT_RUNS = 100

NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""The rules for what is no page: a browser that shows it may load, run and frame nothing."""

SAFE = {
    "Content-Security-Policy": NOTHING,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class BadRequest(Exception):
    """A query that cannot be answered; one line."""


class Site:
    """The answers to requests. `ledger` gives the folder; `metrics` counts, or says why it does not.

    `told` gives the names and addresses that the host was told to listen at; `complain` takes our faults;
    `worker` gives the state of the thread that executes prompts.
    """

    def __init__(
        self,
        ledger: Callable[[], pathlib.Path | None],
        metrics: prometheus.Metrics | prometheus.NoLibrary,
        told: Callable[[], Iterable[str]] = tuple,
        complain: Callable[[str, Exception], None] = lambda where, error: None,
        worker: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.ledger = ledger
        self.metrics = metrics
        self.told = told
        self.complain = complain
        self.worker = worker

    def routes(self) -> list[tuple[str, Callable[[Any], Awaitable[Any]]]]:
        """(path, handler) of each route."""
        found = [
            ("/stagexec", self.page),
            ("/stagexec/", self.page),
            ("/stagexec/runs", self.runs),
            ("/stagexec/runs/{id}", self.run),
            ("/stagexec/failures", self.failures),
            ("/stagexec/worker", self.worker_state),
            ("/stagexec/metrics", self.metrics_text),
        ]
        return [(path, self._fenced(handler)) for path, handler in found]

    def _fenced(self, handler: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """`handler`, whose failures are an answer: one line of JSON with a status."""

        @functools.wraps(handler)
        async def answer(request: Any) -> Any:
            try:
                return await handler(request)
            except Exception as error:  # noqa: BLE001 (the fence of the routes)
                return self.failed(error)

        return answer

    def failed(self, error: Exception) -> Any:
        """The answer to a request that met a fault of ours; its text could quote anything, so it has none."""
        self.complain("web.routes", error)
        return _json({"error": f"a fault in stagexec ({type(error).__name__}); the log has more"}, 500)

    async def page(self, request: Any) -> Any:
        """The page: one file that asks the routes beside it."""
        if why := hosts.refusal(request, self.told(), referer_counts=False):  # other pages may link to it
            return _json({"error": why}, 403)
        from stagexec.web import page

        rules = {"Content-Security-Policy": page.POLICY, "X-Frame-Options": "SAMEORIGIN"}
        return _answer(page.HTML, "text/html", 200, rules)

    async def runs(self, request: Any) -> Any:
        """Newest runs, oldest first: ?limit=, ?outcome=, ?since= (ns since 1970)."""
        return await self._json(request, self._runs)

    async def run(self, request: Any) -> Any:
        """One run in full."""
        return await self._json(request, self._run)

    async def failures(self, request: Any) -> Any:
        """Failure figures: ?by=, ?price=, ?since=."""
        return await self._json(request, self._failures)

    async def worker_state(self, request: Any) -> Any:
        """Whether the thread that executes prompts lives: {up, restarts, exception_type, at, …}."""
        return await self._json(request, lambda _request: self.worker())

    async def metrics_text(self, request: Any) -> Any:
        """The exposition for Prometheus; a scraper is no browser, so it sends no origin."""
        if why := hosts.refusal(request, self.told()):
            return _json({"error": why}, 403)
        if isinstance(self.metrics, prometheus.NoLibrary):
            return _answer(f"{self.metrics}\n", "text/plain", 501)
        return _answer(
            self.metrics.text().decode(), "text/plain", 200, {"Content-Type": prometheus.CONTENT_TYPE}
        )

    async def _json(self, request: Any, answer: Callable[[Any], Any]) -> Any:
        if why := hosts.refusal(request, self.told()):
            return _json({"error": why}, 403)
        try:
            found = await asyncio.get_running_loop().run_in_executor(None, answer, request)
            return _json(found, 200)
        except BadRequest as error:
            return _json({"error": str(error)}, 400)
        except store.NoSuchRun as error:
            return _json({"error": str(error)}, 404)
        except OSError as error:
            return _json({"error": f"the ledger cannot be read: {error.strerror or error}"}, 503)
        except Exception as error:  # noqa: BLE001 (one request's fault; its text could quote anything)
            return self.failed(error)

    def _folder(self) -> pathlib.Path:
        folder = self.ledger()
        if folder is None:
            raise store.NoSuchRun("no ledger is kept in this process")
        return folder

    def _runs(self, request: Any) -> list[dict[str, Any]]:
        from stagexec.reading import relation  # DuckDB: not before it is asked for

        limit = int(_number(request, "limit", DEFAULT_RUNS))
        if not 1 <= limit <= MOST_RUNS:
            raise BadRequest(f"limit is from 1 to {MOST_RUNS}")
        where, values = _since(request)
        outcome = request.query.get("outcome")
        if outcome is not None:
            where, values = f"{where} AND outcome = ?", [*values, outcome]
        with relation.of_ledger(self._folder(), processes=1) as found:
            return [summary_of(row) for row in found.rows(where, values, limit)]

    def _run(self, request: Any) -> dict[str, Any]:
        from stagexec.reading import lookup, relation

        folder = self._folder()
        with relation.of_ledger(folder, processes=1) as found:
            row = found.find(request.match_info["id"])
        run = lookup.run(folder, row)
        if run is None:
            raise store.NoSuchRun("the journal of this run is gone")
        return rows.detail(run)

    def _failures(self, request: Any) -> Any:
        from stagexec.reading import relation

        by = request.query.get("by")
        if by is not None and by not in BY:
            raise BadRequest(f"by is one of: {', '.join(BY)}")
        price = _number(request, "price", None)
        since = _since_ns(request)
        with relation.of_ledger(self._folder(), processes=1) as found:
            return failures(found, by, since, price)


def _number(request: Any, name: str, default: Any) -> Any:
    text = request.query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0 or math.isinf(value):
        raise BadRequest(f"{name} is a number from 0 on")
    return value


def _since(request: Any) -> tuple[str, list[Any]]:
    since = _since_ns(request)
    return ("true", []) if since is None else ("accepted_wall_ns >= ?", [since])


def _since_ns(request: Any) -> int | None:
    """?since=, ns since 1970; later than now is now, which DuckDB's integers can hold."""
    since = _number(request, "since", None)
    return None if since is None else min(int(since), time.time_ns())


def _json(value: Any, status: int) -> Any:
    # "<" never stands in the answer, so no browser that sniffs can take it for a page.
    text = msgspec.json.encode(value).decode().replace("<", "\\u003c")
    return _answer(text, "application/json", status)


def _answer(text: str, kind: str, status: int, headers: dict[str, str] | None = None) -> Any:
    told = {**SAFE, **(headers or {})}
    told.setdefault("Content-Type", f"{kind}; charset=utf-8")
    return _answer_class()(body=text.encode("utf-8", "backslashreplace"), status=status, headers=told)


@functools.cache
def _answer_class() -> Any:
    from aiohttp import web

    class Answer(web.Response):
        """An answer with the rules that we gave it: the host's middlewares put theirs over all answers'."""

        def __init__(self, *, headers: dict[str, str], **given: Any) -> None:
            super().__init__(headers=headers, **given)
            self._rules = {name: headers[name] for name in SAFE}

        async def prepare(self, request: Any) -> Any:
            """When all middlewares have had their turn."""
            self.headers.update(self._rules)
            return await super().prepare(request)

    return Answer
