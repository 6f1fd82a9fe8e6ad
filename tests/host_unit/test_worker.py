"""The supervisor of the worker's thread, on a queue and a server in miniature."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stagexec.host import worker as host_worker
from stagexec.host.wrap import Refusal
from stagexec.record import guard, live, safe, worker
from stagexec.record.waiting import Waiting

PROMPT = {"1": {"class_type": "Odd", "inputs": {}}}


class Status:
    def __init__(self, status_str: str, completed: bool, messages: list[Any]) -> None:
        self.status_str, self.completed, self.messages = status_str, completed, messages


IDLE: set[int] = set()
"""Threads that wait for a prompt."""


class Queue:
    """Gives out one item after another; `get` may be told to raise."""

    ExecutionStatus = Status

    def __init__(self, prompts: int = 0) -> None:
        self.mutex = threading.RLock()
        self.task_counter = 0
        self.waiting = [
            (n, f"p{n}", PROMPT, {"client_id": "c"}, ["1"], {"key": "secret"}) for n in range(prompts)
        ]
        self.currently_running: dict[int, Any] = {}
        self.history: dict[str, Any] = {}
        self.more = threading.Event()
        self.error: BaseException | None = None

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        while not self.waiting:
            IDLE.add(threading.get_ident())
            self.more.wait(30)
            self.more.clear()
        item = self.waiting.pop(0)
        self.currently_running[self.task_counter] = item
        self.task_counter += 1
        return item, self.task_counter - 1

    def task_done(self, item_id: int, history: Any, status: Status, process_item: Any = None) -> None:
        item = process_item(self.currently_running.pop(item_id))
        self.history[item[1]] = (item, history, status)


class Server:
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.client_id = "c"
        self.last_node_id: str | None = "1"
        self.refuses = False
        self.loop = SimpleNamespace(call_soon_threadsafe=lambda function, message: function(message))
        self.messages = SimpleNamespace(put_nowait=self.sent.append)

    def send_sync(self, event: str, data: Any, client_id: str) -> None:
        if self.refuses:
            raise SystemExit("a pack refuses")
        self.sent.append((event, data, client_id))


@pytest.fixture
def api() -> Any:
    execution = SimpleNamespace(full_type_name=lambda kind: kind.__name__)
    return SimpleNamespace(execution=execution, facts={"sensitive_queue_item": True})


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[worker.State]:
    """A fresh state; threads that a test left are ended, and none of them says how it died."""
    monkeypatch.setattr(worker, "state", worker.State())
    monkeypatch.setattr(host_worker, "PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(threading, "excepthook", lambda _args: None)
    monkeypatch.setattr(live, "waiting", Waiting())
    monkeypatch.setattr(guard, "faults", faults := [])
    before = set(threading.enumerate())
    yield worker.state
    # One that dies is given the time to, so that how it died is said in no later test; one that waits stays.
    end = time.monotonic() + 1
    while {one.ident for one in set(threading.enumerate()) - before} - IDLE and time.monotonic() < end:
        time.sleep(0.005)
    assert faults == []


def until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def started(function: Callable[..., Any], api: Any, *args: Any, **kwargs: Any) -> threading.Thread:
    thread = threading.Thread(
        target=host_worker.make_supervised(api, function), args=args, kwargs=kwargs, daemon=True
    )
    thread.start()
    return thread


def test_each_prompt_that_kills_the_worker_is_filed_and_told_and_the_next_worker_goes_on(
    api: Any, state: worker.State
) -> None:
    queue, server, seen = Queue(12), Server(), []

    def prompt_worker(q: Queue, server_instance: Server) -> None:
        while True:
            item, _ = q.get()
            seen.append((item[1], threading.get_ident(), threading.current_thread().daemon))
            raise SystemExit(item[1])

    first = started(prompt_worker, api, queue, server_instance=server)
    until(lambda: len(queue.history) == 12)
    first.join(20)
    assert [name for name, _, _ in seen] == [f"p{n}" for n in range(12)]
    assert all(daemon for _, _, daemon in seen)
    until(lambda: state.restarts == 12)
    assert state.describe()["up"] is True
    assert state.describe()["exception_type"] == "builtins.SystemExit"
    item, history, status = queue.history["p3"]
    assert (len(item), history, status.status_str) == (5, {}, "error")
    ((event, data),) = status.messages
    assert event == "execution_error"
    assert (data["node_id"], data["node_type"], data["exception_message"]) == (
        "1",
        "Odd",
        "SystemExit('p3')\n",
    )
    mine = [one for one in server.sent if one[1]["prompt_id"] == "p3"]
    assert mine == [(event, data, "c"), ("executing", {"node": None, "prompt_id": "p3"}, "c")]
    assert server.last_node_id is None


def test_messages_go_past_a_wrapper_that_raises(api: Any) -> None:
    queue, server = Queue(1), Server()
    server.refuses = True

    def prompt_worker(q: Queue, _server: Server) -> None:
        q.get()
        raise ValueError

    started(prompt_worker, api, queue, server)
    until(lambda: len(server.sent) == 2)
    assert [event for event, _, _ in server.sent] == ["execution_error", "executing"]


def test_an_item_that_nothing_can_file_is_taken_out(api: Any) -> None:
    queue, server = Queue(1), Server()
    server.queue_updated = lambda: server.sent.append("updated")  # type: ignore[attr-defined]

    def refuses(*_args: Any, **_kwargs: Any) -> None:
        raise KeyboardInterrupt

    def prompt_worker(q: Queue, _server: Server) -> None:
        q.get()
        q.task_done = refuses  # type: ignore[method-assign]
        raise ValueError

    started(prompt_worker, api, queue, server)
    until(lambda: server.sent and server.sent[-1][0] == "executing")
    assert queue.currently_running == {}
    assert "updated" in server.sent


def test_a_prompt_that_another_thread_executes_is_left_alone(
    api: Any, state: worker.State, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, server = Queue(1), Server()
    beside = SimpleNamespace(prompt_id="other", worker=threading.current_thread())
    monkeypatch.setattr(live, "running", {threading.get_ident(): beside})
    queue.currently_running[99] = (0, "other", PROMPT, {}, [], {})

    def prompt_worker(q: Queue, _server: Server) -> None:
        q.get()
        raise ValueError

    started(prompt_worker, api, queue, server)
    until(lambda: state.restarts == 1 and queue.history)
    assert list(queue.history) == ["p0"]
    assert list(queue.currently_running) == [99]


def test_a_worker_that_takes_nothing_is_tried_a_few_times_and_then_told_dead(
    api: Any, state: worker.State
) -> None:
    queue, told = Queue(), []
    queue.error = OSError("gone")
    state.listeners.append(lambda one: told.append((one["up"], one["restarts"])))
    waits = live.accept("waits", {})
    assert waits is not None
    closed: list[Any] = []
    live.closed_callbacks.append(lambda *one: closed.append(one))
    try:
        started(lambda q, _server: q.get(), api, queue, Server())
        until(lambda: closed)
    finally:
        live.closed_callbacks.pop()
    assert told == [(True, 1), (True, 2), (True, 3), (False, 3)]
    assert closed == [(waits, "lost", "worker_died")]
    assert (worker.missing() or {})["exception_type"] == "builtins.OSError"


def test_a_prompt_in_between_begins_the_count_again(api: Any, state: worker.State) -> None:
    queue, server = Queue(), Server()
    deaths = 0

    def prompt_worker(q: Queue, _server: Server) -> None:
        nonlocal deaths
        deaths += 1
        if deaths % 3 == 0:
            q.waiting.append((0, f"p{deaths}", PROMPT, {}, [], {}))
            _, item_id = q.get()
            q.task_done(item_id, {}, Status("success", True, []), lambda one: one)
        if deaths < 20:
            raise ValueError

        threading.Event().wait()

    started(prompt_worker, api, queue, server)
    until(lambda: deaths == 20)
    assert state.up is True


def test_a_thread_that_cannot_be_started_is_a_dead_worker(
    api: Any, state: worker.State, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    supervised = host_worker.make_supervised(api, lambda _queue, _server: int("x"))

    def cannot(_thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", cannot)
    with pytest.raises(ValueError, match="invalid literal"):
        supervised(Queue(), Server())
    assert state.up is False
    assert "THE WORKER IS DEAD (ValueError: invalid literal" in caplog.text


def test_no_worker_is_started_while_the_interpreter_ends(
    api: Any, state: worker.State, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervised = host_worker.make_supervised(api, lambda _queue, _server: int("x"))
    monkeypatch.setattr(host_worker.sys, "is_finalizing", lambda: True)
    with pytest.raises(ValueError, match="invalid literal"):
        supervised(Queue(), Server())
    assert (state.up, state.restarts) == (True, 0)


def test_a_worker_that_returns_is_called_once_and_not_replaced(api: Any, state: worker.State) -> None:
    calls: list[Any] = []
    assert host_worker.make_supervised(api, calls.append)("queue") is None
    assert calls == ["queue"]
    assert state.restarts == 0


@pytest.mark.parametrize("odd", ["no queue", None])
def test_a_queue_of_another_make_keeps_no_worker_from_being_replaced(
    api: Any, state: worker.State, odd: Any
) -> None:
    deaths: list[int] = []

    def prompt_worker(*_args: Any) -> None:
        deaths.append(1)
        if len(deaths) < 3:
            raise ValueError
        threading.Event().wait()

    started(prompt_worker, api, *([odd] if odd else []))
    until(lambda: len(deaths) == 3)
    until(lambda: state.restarts == 2)
    assert len(deaths) == 3


@pytest.mark.parametrize("name", ["Supervisor._end_prompts", "Leftover.end", "tell_one"])
def test_a_fault_of_ours_keeps_no_worker_from_being_replaced(
    api: Any, state: worker.State, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*_args: Any) -> Any:
        raise ZeroDivisionError

    (found,) = [one for key, one in guard.GUARDED.items() if key.endswith(f"worker.{name}")]
    monkeypatch.setattr(found, "body", faulty)
    state.listeners.append(lambda _told: None)

    def prompt_worker(q: Queue, _server: Server) -> None:
        q.get()
        raise ValueError

    started(prompt_worker, api, Queue(2), Server())
    until(lambda: state.restarts == 2)
    assert guard.faults
    guard.faults.clear()


def test_a_fault_in_losing_what_waits_changes_nothing(
    api: Any, state: worker.State, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(*_args: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(live.lose_waiting, "body", faulty)
    queue = Queue()
    queue.error = OSError("gone")
    started(lambda q, _server: q.get(), api, queue, Server())
    until(lambda: guard.faults)
    assert state.up is False
    guard.faults.clear()


def test_what_is_not_callable_is_refused(api: Any) -> None:
    with pytest.raises(Refusal):
        host_worker.make_supervised(api, None)


def test_the_text_of_the_error_is_kept_only_where_text_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        raise ValueError("half \ud800 a secret")
    except ValueError as raised:
        error = raised
    assert host_worker.detail_of(error)["message"] is None
    monkeypatch.setattr(live, "record_text", True)
    detail = host_worker.detail_of(error)
    assert detail["message"] == "half \\ud800 a secret"
    assert (detail["exception_type"], detail["at"]) == ("builtins.ValueError", safe.place_of(error))


def test_doctor_says_when_the_supervisor_will_be_put_in_place(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("def prompt_worker(q, server): pass\n")
    assert host_worker.outlook(tmp_path) == "put in place when main.py starts its worker"
    (tmp_path / "main.py").write_text("def other(): pass\n")
    assert "not replaced" in host_worker.outlook(tmp_path)
