"""The routes over a real HTTP server: read-only, same origin, escaped, and equal to the verbs."""

from __future__ import annotations

import asyncio
import json
import socket
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


async def rules_of_the_host(request: Any, handler: Any) -> Any:
    """What the host's middleware for --disable-api-nodes does to every answer."""
    answer = await handler(request)
    answer.headers["Content-Security-Policy"] = "default-src 'self'; script-src 'self' 'unsafe-eval'"
    answer.headers["X-Frame-Options"] = "ALLOW"
    return answer


rules_of_the_host.__middleware_version__ = 1  # type: ignore[attr-defined]  (aiohttp's own decorator's mark)


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
            app = web.Application(middlewares=[rules_of_the_host])
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


ROUTES = [
    "/stagexec/",
    "/stagexec",
    "/stagexec/runs",
    "/stagexec/runs/aaaa",
    "/stagexec/failures",
    "/stagexec/metrics",
]
STRANGE = """
    evil.example evil.example:8188 EVIL.example. 127.0.0.1.nip.io localhost.evil.example a@127.0.0.1
    127.0.0.1/x local.evil.com:80 [::1].evil.com xn--e1awd7f.com \u00e9vil.example a|b.c : @
"""
OWN = """
    127.0.0.1 127.0.0.1:8188 [::1]:8188 [fe80::1] 192.168.7.8 8.8.8.8:80 localhost LocalHost:1 app.localhost
    comfy:8188 gpu-box gpu_box.lan comfy.internal comfy.render.svc.cluster.local:8188 studio.local.
"""


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("host", STRANGE.split())
def test_a_name_that_a_stranger_could_have_is_refused(served: Served, path: str, host: str) -> None:
    status, headers, body = served.get(path, Host=host)
    assert status in (400, 403)  # aiohttp itself refuses some
    if status == 403:
        assert "STAGEXEC_HOSTS" in json.loads(body)["error"]
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize("host", OWN.split())
@pytest.mark.parametrize("path", ["/stagexec/", "/stagexec/runs", "/stagexec/metrics"])
def test_addresses_and_names_of_one_s_own_network_are_answered(served: Served, path: str, host: str) -> None:
    assert served.get(path, Host=host)[0] == 200


def test_names_that_the_server_was_told_are_answered(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def status(host: str) -> int:
        return served.get("/stagexec/runs", Host=host)[0]

    served.site.told = lambda: ["0.0.0.0", "render.example.org"]
    assert (status("Render.example.org:8188"), status("other.example.org")) == (200, 403)
    monkeypatch.setattr(socket, "gethostname", lambda: "GPU.example.net")
    assert (status("gpu.example.net"), status("cpu.example.net")) == (200, 403)
    monkeypatch.setenv("STAGEXEC_HOSTS", "comfy.example.com; .fleet.example.com")
    assert (status("comfy.example.com"), status("a.fleet.example.com")) == (200, 200)
    assert (status("fleet.example.com"), status("afleet.example.com")) == (403, 403)
    monkeypatch.setenv("STAGEXEC_HOSTS", "*")
    assert (status("any.example"), status("not a name.example")) == (200, 403)


def test_an_old_client_without_a_host_is_answered(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as asking:
        asking.sendall(b"GET /stagexec/runs HTTP/1.0\r\n\r\n")
        assert b" 200 " in asking.recv(64)


def test_two_hosts_in_one_request_are_refused(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as asking:
        asking.sendall(b"GET /stagexec/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n")
        assert asking.recv(64).split()[1] in (b"400", b"403")


@pytest.mark.parametrize("name", ["Origin", "Referer"])
@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("http://127.0.0.1:{port}", 200),
        ("HTTP://127.0.0.1:{port}/page?x", 200),
        ("http://127.0.0.1:1", 403),
        ("http://127.0.0.1", 403),
        ("https://evil.example/127.0.0.1:{port}", 403),
        ("http://127.0.0.1:{port}@evil.example", 403),
        ("http://[", 403),
        ("null", 403),
        ("file:///x", 403),
    ],
)
def test_a_request_from_another_place_is_refused(served: Served, name: str, source: str, status: int) -> None:
    given = {name: source.format(port=served.port)}
    assert served.get("/stagexec/runs", **given)[0] == status
    assert served.get("/stagexec/", **given)[0] == (status if name == "Origin" else 200)  # links lead there


def test_default_ports_of_an_origin_are_its_host_s(served: Served) -> None:
    assert served.get("/stagexec/runs", Host="comfy", Origin="http://comfy:80")[0] == 200
    assert served.get("/stagexec/runs", Host="comfy:443", Origin="https://comfy")[0] == 200
    assert served.get("/stagexec/runs", Host="comfy:8188", Origin="http://comfy")[0] == 403


@pytest.mark.parametrize("path", [*ROUTES, "/stagexec/runs/nothing", "/stagexec/runs?limit=0"])
def test_every_answer_has_rules_that_no_middleware_takes_away(served: Served, path: str) -> None:
    _, headers, _ = served.get(path)
    page = path in ("/stagexec", "/stagexec/")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == ("SAMEORIGIN" if page else "DENY")
    assert f"frame-ancestors '{'self' if page else 'none'}'" in headers["Content-Security-Policy"]
    assert "unsafe-eval" not in headers["Content-Security-Policy"]


def test_a_fault_of_ours_is_one_line_of_json_and_told(served: Served) -> None:
    told: list[str] = []
    served.site.complain = lambda where, error: told.append(f"{where}: {error}")

    def broken() -> Path:
        raise ValueError("quoted text")

    served.site.ledger = broken
    status, _, body = served.get("/stagexec/runs")
    assert (status, set(json.loads(body))) == (500, {"error"})
    assert "quoted text" not in body
    assert told == ["web.routes: quoted text"]


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


@pytest.mark.parametrize(
    "trouble",
    [OSError(5, "Input/output error"), RuntimeError("no such\nluck"), MemoryError(), ValueError("x" * 9000)],
    ids=lambda one: type(one).__name__,
)
@pytest.mark.parametrize("path", ["/stagexec/runs", "/stagexec/runs/aaaa", "/stagexec/failures"])
def test_whatever_goes_wrong_is_answered_in_one_line_of_json_with_a_status(
    served: Served, path: str, trouble: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stagexec.reading import relation

    def fails(*_: Any, **__: Any) -> None:
        raise trouble

    monkeypatch.setattr(relation, "of_ledger", fails)
    status, headers, body = served.get(path)
    assert status in (500, 503)
    assert headers["Content-Type"].startswith("application/json")
    assert set(json.loads(body)) == {"error"}
    assert "\n" not in body
    assert "Traceback" not in body
    assert len(body) < 500


def test_a_scrape_that_goes_wrong_is_answered_in_one_line_too(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> bytes:
        raise RuntimeError("no registry")

    monkeypatch.setattr(served.site.metrics, "text", fails)
    status, _, body = served.get("/stagexec/metrics")
    assert (status, set(json.loads(body))) == (500, {"error"})


def test_a_bad_line_and_a_bad_index_leave_the_routes_answering(
    served: Served, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stagexec.reading import relation

    (path,) = ledger.glob("journal/*/*.jsonl")
    with path.open("ab") as out:
        out.write(b'{"event_type":"run_accepted","run_id":"dddd","ts_mono_ns":%d}\n' % 2**70)
        out.write(b"\xff\xfe\x00\n")
    (ledger / "index.duckdb").write_bytes(b"not a database")
    for small in (0, relation.SMALL):
        monkeypatch.setattr(relation, "SMALL", small)
        answers = [
            served.get(path)
            for path in ("/stagexec/runs", "/stagexec/runs/aaaa", "/stagexec/failures?by=stage")
        ]
        assert [status for status, _, _ in answers] == [200, 200, 200]
        assert {"aaaa", "bbbb", "cccc", "dddd"} == {one["run_id"][:4] for one in json.loads(answers[0][2])}


def test_the_workers_state_is_told_to_this_origin_alone(ledger: Path) -> None:
    state = {
        "up": False,
        "restarts": 3,
        "exception_type": "builtins.OSError",
        "at": "pack:7",
        "message": None,
    }
    served = Served(Site(lambda: ledger, prometheus.NoLibrary("none"), worker=lambda: state))
    try:
        status, _, body = served.get("/stagexec/worker")
        assert (status, json.loads(body)) == (200, state)
        assert served.get("/stagexec/worker", Origin="http://elsewhere")[0] == 403
    finally:
        served.stop()
