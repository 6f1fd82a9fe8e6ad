"""Who listens is told of each closed run once, in order, and can do no harm."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stagexec.reading import rows
from stagexec.reading.store import load
from stagexec.reading.tail import Tail
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


@pytest.fixture
def receiver() -> Iterator[tuple[str, type[Receiver]]]:
    handler = type("Handler", (Receiver,), {"got": [], "refuse": 0})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", handler
    server.shutdown()
    thread.join()
    server.server_close()


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
        lambda: None, lambda: None, lambda _w, _e: None, lambda _t: None, lambda: dict(state)
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
