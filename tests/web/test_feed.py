"""A listener gets each closed run once, in order, and can do no harm."""

from __future__ import annotations

import contextlib
import functools
import http.client
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stagexec.reading import rows, table
from stagexec.reading.runs import Process, Run
from stagexec.reading.store import load
from stagexec.reading.tail import Tail
from stagexec.views import otlp
from stagexec.views.outbox import Outbox
from stagexec.views.prometheus import Metrics
from stagexec.web import setup
from stagexec.web.feed import Feed, brief, summary
from stagexec.web.webhook import Webhook
from tests.reading.fake_journal import FakeJournal, cached_run, reseeded_run, tiny_run


def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_tail_gives_each_run_once_as_its_end_is_written(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    for name, make in (("aaaa", tiny_run), ("bbbb", cached_run), ("cccc", reseeded_run)):
        make(journal, name)
    data = b"".join(journal.lines())
    path = journal.write(tmp_path)
    path.write_bytes(b"")
    tail, got = Tail(path), []
    for cut in range(0, len(data) + 700, 700):
        path.write_bytes(data[:cut])
        got += tail.poll()
    assert [summary(closed) for closed in got] == [rows.summary(run) for run in load(tmp_path).runs]
    assert [closed.run().run_id for closed in got] == [run.run_id for run in load(tmp_path).runs]
    assert tail.poll() == []


def test_events_after_a_runs_end_make_no_second_run(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = tiny_run(journal, "aaaa")
    run.know_condition("ab" * 32)
    tail = Tail(journal.write(tmp_path))
    assert len(tail.poll()) == 1
    assert tail.poll() == []


def test_one_listeners_fault_is_told_and_stops_no_other(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = tiny_run(journal, "aaaa")
    path = journal.write(tmp_path)
    faults: list[Exception] = []
    got: list[dict[str, Any]] = []

    def bad(_closed: Any) -> None:
        raise RuntimeError("bad listener")

    feed = Feed(lambda: path, lambda _where, error: faults.append(error))
    feed.listeners += [bad, lambda closed: got.append(brief(closed))]
    feed.start()
    feed.closed(run.run_id)
    until(lambda: bool(got))
    assert [str(fault) for fault in faults] == ["bad listener"]
    assert got[0]["outcome"] == "success"
    assert set(got[0]) >= {"run_id", "stages", "total_ns"}


class Receiver(http.server.BaseHTTPRequestHandler):
    got: list[Any]
    refuse: int

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind = type(self)
        if kind.refuse:
            kind.refuse -= 1
            self.send_response(503)
        else:
            kind.got.append(body)
            self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server of this machine that answers by `handler`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def receiver() -> Iterator[tuple[str, type[Receiver]]]:
    handler = type("Handler", (Receiver,), {"got": [], "refuse": 0})
    with serving(handler) as address:
        yield f"{address}/hook", handler


def test_a_webhook_is_tried_again_until_it_is_taken(receiver: tuple[str, type[Receiver]]) -> None:
    url, handler = receiver
    handler.refuse = 2
    said: list[str] = []
    Webhook(url, said.append, pauses_s=(0.01, 0.01, 0.01)).put({"run_id": "r", "outcome": "success"})
    until(lambda: bool(handler.got))
    assert handler.got == [{"event": "stagexec.run", "run": {"run_id": "r", "outcome": "success"}}]
    assert said == []


def test_a_webhook_that_nobody_answers_is_told_and_never_waited_for() -> None:
    said: list[str] = []
    hook = Webhook("http://127.0.0.1:9/", said.append, pauses_s=(0.0,))
    begin = time.perf_counter()
    for _ in range(1500):
        hook.put({"run_id": "r"})
    assert time.perf_counter() - begin < 1
    until(lambda: bool(said))
    assert "could not be posted" in said[0]


def test_a_redirect_is_no_answer_and_is_not_followed(receiver: tuple[str, type[Receiver]]) -> None:
    url, handler = receiver
    asked: list[str] = []

    class Redirecting(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.command)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(int(self.path[1:]))
            self.send_header("Location", url)
            self.end_headers()

        def do_GET(self) -> None:
            asked.append(self.command)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with serving(Redirecting) as address:
        for code in (301, 302, 303, 307, 308):
            said: list[str] = []
            hook = Webhook(f"{address}/{code}", said.append, pauses_s=(0.0,))
            hook.put({"run_id": "r"})
            until(lambda hook=hook: hook.dropped == 1)
            assert f"{code}, a redirect, which is not followed" in said[0]
    assert asked == ["POST"] * 5
    assert handler.got == []


@pytest.mark.parametrize(("code", "attempts"), [(500, 3), (429, 3), (404, 1), (199, 1), (204, 1)])
def test_only_a_2xx_is_taken_and_only_what_may_pass_is_tried_again(code: int, attempts: int) -> None:
    asked: list[int] = []

    class Answering(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(code)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(code)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with serving(Answering) as address:
        said: list[str] = []
        hook = Webhook(address, said.append, pauses_s=(0.0, 0.0))
        hook.put({"run_id": "r"})
        until(lambda: len(asked) == attempts and (code == 204 or bool(said)))
    assert (hook.dropped, len(asked)) == (int(code != 204), attempts)


def test_what_was_dropped_is_counted_and_said_once_until_it_works_again() -> None:
    said: list[str] = []
    answers = iter(["no", "no", None, "no"])
    box = Outbox("stagexec-test", "a target", lambda _: next(answers), 10, said.append)
    counted: list[int] = []
    box.on_drop = lambda: counted.append(1)
    for number in range(4):
        box.put(number)
    until(lambda: box.dropped == 3)
    assert (len(counted), len(said)) == (3, 2)
    assert "a target" in said[0]


def test_a_sender_that_raises_does_not_end_its_thread() -> None:
    got: list[int] = []

    def send(item: int) -> str | None:
        if not item:
            raise http.client.BadStatusLine("s3cr3t")
        got.append(item)
        return None

    said: list[str] = []
    box = Outbox("stagexec-test", "a target", send, 10, said.append)
    box.put(0)
    box.put(1)
    until(lambda: got == [1])
    assert box.dropped == 1
    assert "s3cr3t" not in said[0]


def test_dropped_messages_stand_in_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGEXEC_WEBHOOK", "http://127.0.0.1:9/")
    metrics = Metrics()
    (listener,) = setup.outside(lambda _: None, metrics)
    assert "stagexec_webhook_dropped_total 0.0" in metrics.text().decode()
    row = table.flat(Run("r", Process("")))
    for _ in range(1100):
        listener(SimpleNamespace(row=row))
    assert "stagexec_webhook_dropped_total 0.0" not in metrics.text().decode()


SECRET = "s3cr3t-w0rd"


@pytest.mark.parametrize("variable", ["STAGEXEC_WEBHOOK", "STAGEXEC_OTLP"])
@pytest.mark.parametrize(
    "address",
    [
        f"http://me:{SECRET}@127.0.0.1:9/hook",
        f"http://127.0.0.1:9/services/{SECRET}",
        f"http://127.0.0.1:9/?token={SECRET}",
        f"http://127.0.0.1:{SECRET}/",
        f"http://me:{SECRET}/x@127.0.0.1:9/",
        f"ftp://me:{SECRET}@127.0.0.1/",
        f"http://[{SECRET}/",
        f"http://[{SECRET}]/",
        f"{SECRET}",
        f"http://127.0.0.1:9/ {SECRET}",
    ],
)
def test_no_message_holds_what_is_secret_in_an_address(
    variable: str,
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(variable, address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"api-key={SECRET},no header {SECRET}")
    monkeypatch.setattr(setup, "Webhook", functools.partial(Webhook, pauses_s=()))
    monkeypatch.setattr(otlp, "TIMEOUT_S", 0.2)
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    tail = Tail(journal.write(tmp_path))
    (closed,) = tail.poll()
    said: list[str] = []
    for listener in setup.outside(said.append):
        listener(closed)
    until(lambda: bool(said))
    assert SECRET not in "".join(said) + caplog.text
    assert SECRET not in str([record.args for record in caplog.records])


def test_user_and_password_of_an_address_are_sent_as_a_header() -> None:
    hook = Webhook("http://me:a%20b@127.0.0.1:9/x", lambda _: None, pauses_s=())
    assert hook.url == "http://127.0.0.1:9/x"
    assert hook._headers["Authorization"] == "Basic bWU6YSBi"


def test_an_address_that_is_none_is_warned_of_and_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGEXEC_WEBHOOK", "file:///etc/passwd")
    said: list[str] = []
    assert setup.outside(said.append) == []
    assert "STAGEXEC_WEBHOOK" in said[0]


def test_a_workers_end_is_posted_as_an_event_of_its_own(
    receiver: tuple[str, type[Receiver]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = receiver
    monkeypatch.setenv("STAGEXEC_WEBHOOK", url)
    _, feed = setup.make(lambda: None, lambda: None, lambda _where, _error: None, lambda _text: None)
    (tell,) = feed.worker_listeners
    tell({"up": False, "restarts": 3, "exception_type": "builtins.OSError"})
    until(lambda: bool(handler.got))
    told = {"up": False, "restarts": 3, "exception_type": "builtins.OSError"}
    assert handler.got == [{"event": "stagexec.worker", "worker": told}]


def test_the_metrics_say_whether_the_worker_is_up_and_how_often_it_was_restarted() -> None:
    state: dict[str, Any] = {"up": None, "restarts": 0}
    site, _ = setup.make(
        lambda: None, lambda: None, lambda _w, _e: None, lambda _t: None, worker=lambda: dict(state)
    )
    metrics: Any = site.metrics

    def lines() -> list[str]:
        found = metrics.text().decode().splitlines()
        return [one for one in found if one.startswith("stagexec_worker") and "_created" not in one]

    assert lines() == ["stagexec_worker_up NaN", "stagexec_worker_restarts_total 0.0"]
    state.update(up=True, restarts=2)
    assert lines() == ["stagexec_worker_up 1.0", "stagexec_worker_restarts_total 2.0"]
    state.update(up=False)
    assert lines() == ["stagexec_worker_up 0.0", "stagexec_worker_restarts_total 2.0"]


def test_a_journal_that_cannot_be_read_is_told_and_the_feed_goes_on(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = tiny_run(journal, "aaaa")
    path = journal.write(tmp_path)
    faults: list[str] = []
    got: list[Any] = []
    broken = [True]

    def where() -> Path:
        if broken.pop() if broken else False:
            raise ValueError("a bad line")
        return path

    feed = Feed(where, lambda _where, error: faults.append(str(error)))
    feed.listeners.append(got.append)
    feed.start()
    feed.closed(run.run_id)
    until(lambda: bool(got))
    assert faults == ["a bad line"]
