"""The routes over a real HTTP server: read-only, same origin, escaped, and equal to the verbs."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagexec.reading import rows, table
from stagexec.reading.store import load
from stagexec.views import prometheus
from stagexec.web.routes import Site
from tests.reading.fake_journal import FakeJournal, FakeRun, S, reseeded_run, tiny_run


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    reseeded_run(journal, "bbbb")
    run = FakeRun(journal, "cccc", {"1": ("<img src=x onerror=alert(1)>", [])}).start()
    run.visit(1, "1", "<img src=x onerror=alert(1)>", [("sampling", S)], kind="failed")
    error = {"stage": "sampling", "node_id": "1", "node_class": "<img src=x onerror=alert(1)>"}
    run.execute(host_status="error").close("failed", "oom", error=error)
    journal.write(tmp_path)
    return tmp_path


class Served:
    """A Site behind aiohttp on a free port."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(10)

    def _run(self) -> None:
        from aiohttp import web

        async def start() -> web.AppRunner:
            app = web.Application()
            for path, handler in self.site.routes():
                app.router.add_get(path, handler)
            runner = web.AppRunner(app)
            await runner.setup()
            place = web.TCPSite(runner, "127.0.0.1", 0)
            await place.start()
            self.port = runner.addresses[0][1]
            return runner

        asyncio.set_event_loop(self._loop)
        runner = self._loop.run_until_complete(start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
        import http.client

        told = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, headers=told)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, dict(answer.getheaders()), body


@pytest.fixture
def served(ledger: Path) -> Iterator[Served]:
    metrics = prometheus.Metrics()
    for run in load(ledger).runs:
        metrics.observe(table.flat(run))
    one = Served(Site(lambda: ledger, metrics))
    yield one
    one.stop()


def test_runs_are_those_of_the_verb(served: Served, ledger: Path) -> None:
    status, headers, body = served.get("/stagexec/runs")
    assert status == 200
    assert headers["Content-Type"].startswith("application/json")
    assert json.loads(body) == [rows.summary(run) for run in load(ledger).runs]
    assert [r["run_id"][:4] for r in json.loads(served.get("/stagexec/runs?limit=1")[2])] == ["cccc"]
    assert len(json.loads(served.get("/stagexec/runs?outcome=success")[2])) == 2


def test_one_run_is_that_of_show(served: Served, ledger: Path) -> None:
    found = json.loads(served.get("/stagexec/runs/bbbb")[2])
    expected = rows.detail(load(ledger).find("bbbb"))
    assert found["segments"] == expected["segments"]
    assert found["executed_nodes"] == expected["executed_nodes"]


def test_failures_take_their_options(served: Served) -> None:
    found = json.loads(served.get("/stagexec/failures?by=stage&price=2.5")[2])
    assert (found["total"]["failures"], found["groups"][0]["group"]) == (1, "sampling")
    assert found["price_per_gpu_hour"] == 2.5


def test_metrics_are_an_exposition(served: Served) -> None:
    status, headers, body = served.get("/stagexec/metrics")
    assert status == 200
    assert headers["Content-Type"] == prometheus.CONTENT_TYPE
    assert 'stagexec_runs_total{cause="oom",outcome="failed"} 1.0' in body


def test_without_the_library_metrics_say_what_to_install(ledger: Path) -> None:
    one = Served(Site(lambda: ledger, prometheus.NoLibrary("pip install it")))
    try:
        assert one.get("/stagexec/metrics")[0::2] == (501, "pip install it\n")
    finally:
        one.stop()


def test_the_page_runs_only_its_own_script_and_puts_in_text_alone(served: Served) -> None:
    status, headers, body = served.get("/stagexec/")
    assert status == 200
    assert "script-src 'sha256-" in headers["Content-Security-Policy"]
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "innerHTML" not in body
    assert "//" not in body.replace("https://", "").split("<script>")[0]


def test_no_answer_has_a_tag_of_a_node_in_it(served: Served) -> None:
    for path in ("/stagexec/runs", "/stagexec/runs/cccc", "/stagexec/failures?by=node", "/stagexec/"):
        assert "<img" not in served.get(path)[2]


@pytest.mark.parametrize("path", ["/stagexec/", "/stagexec/runs", "/stagexec/failures", "/stagexec/metrics"])
def test_pages_of_another_origin_are_refused(served: Served, path: str) -> None:
    assert served.get(path, Origin="http://evil.example")[0] == 403
    assert served.get(path, Sec_Fetch_Site="cross-site")[0] == 403
    assert served.get(path, Sec_Fetch_Site="same-site")[0] == 403
    assert served.get(path, Origin=f"http://127.0.0.1:{served.port}")[0] == 200


def test_no_answer_lets_other_origins_read_it(served: Served) -> None:
    assert not [name for name in served.get("/stagexec/runs")[1] if name.startswith("Access-Control")]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_written(served: Served, method: str) -> None:
    for path, _ in served.site.routes():
        assert served.get(path.replace("{id}", "aaaa"), method=method)[0] == 405


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/stagexec/runs?limit=0", 400),
        ("/stagexec/runs?limit=many", 400),
        ("/stagexec/runs?limit=100000", 400),
        ("/stagexec/failures?by=moon", 400),
        ("/stagexec/failures?price=-1", 400),
        ("/stagexec/failures?price=nan", 400),
        ("/stagexec/runs/nothing", 404),
        ("/stagexec/runs/%FF", 404),
        ("/stagexec/runs/last~99999999999999999999", 404),
        ("/stagexec/runs/..%2f..%2fetc", 404),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line_of_json(served: Served, path: str, status: int) -> None:
    answered, _, body = served.get(path)
    assert answered == status
    assert set(json.loads(body)) == {"error"}


@pytest.mark.parametrize(
    "path", ["/stagexec/runs?since=1e300", "/stagexec/failures?since=1e300", "/stagexec/runs?outcome=%FF"]
)
def test_numbers_and_bytes_beyond_all_bounds_are_answered(served: Served, path: str) -> None:
    assert served.get(path)[0] == 200


def test_a_scrape_costs_little_after_a_hundred_thousand_runs(ledger: Path) -> None:
    import time

    metrics = prometheus.Metrics()
    some: list[dict[str, Any]] = [table.flat(run) for run in load(ledger).runs]
    for number in range(100_000):
        metrics.observe(some[number % 3])
    begin = time.perf_counter()
    metrics.text()
    assert time.perf_counter() - begin < 0.5  # the bar is 50 ms; the rest is for a busy machine


def test_a_ledger_that_cannot_be_read_is_said_in_a_line_of_json(served: Served) -> None:
    def refuse() -> Path:
        raise PermissionError(13, "Permission denied")

    served.site.ledger = refuse
    status, _, body = served.get("/stagexec/runs")
    assert (status, json.loads(body)) == (503, {"error": "the ledger cannot be read: Permission denied"})


def test_the_workers_state_is_told_to_this_origin_alone(ledger: Path) -> None:
    state = {
        "up": False,
        "restarts": 3,
        "exception_type": "builtins.OSError",
        "at": "pack:7",
        "message": None,
    }
    served = Served(Site(lambda: ledger, prometheus.NoLibrary("none"), lambda: state))
    try:
        status, _, body = served.get("/stagexec/worker")
        assert (status, json.loads(body)) == (200, state)
        assert served.get("/stagexec/worker", Origin="http://elsewhere")[0] == 403
    finally:
        served.stop()
