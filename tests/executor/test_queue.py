"""What the queue's history shows of ours: one entry asked for by its id, and never the list."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagexec.executor import queue as queue_view
from stagexec.executor.queue import QueueView
from stagexec.host import hooks
from stagexec.record import clock, live
from stagexec.record.journal import Journal
from tests.executor.fake_host import Host as FakeHost


class Host:
    """The host's queue, as far as its history goes."""

    def __init__(self) -> None:
        self.history = {"a": {"outputs": {}}, "b": {"outputs": {}}}

    def get_history(
        self, prompt_id: str | None = None, max_items: Any = None, offset: int = -1, map_function: Any = None
    ) -> dict[str, Any]:
        if prompt_id is None:
            return dict(self.history)
        entry = self.history.get(prompt_id)
        if entry is None:
            return {}
        return {prompt_id: map_function(entry) if map_function else dict(entry)}


class Queue(QueueView, Host):
    """Ours over the host's."""


def test_an_entry_asked_for_by_its_id_has_our_key() -> None:
    queue = Queue()
    queue.keep_brief("a", {"outcome": "success"})
    assert queue.get_history(prompt_id="a") == {"a": {"outputs": {}, "stagexec": {"outcome": "success"}}}
    assert queue.get_history("b") == {"b": {"outputs": {}}}
    assert queue.get_history("c") == {}


def test_the_list_and_mapped_entries_stay_the_hosts() -> None:
    queue = Queue()
    queue.keep_brief("a", {"outcome": "success"})
    assert queue.get_history() == {"a": {"outputs": {}}, "b": {"outputs": {}}}
    assert queue.get_history("a", None, -1, len) == {"a": 1}
    assert queue.history["a"] == {"outputs": {}}


def test_a_run_filed_without_a_history_is_closed() -> None:
    run = live.start("p")
    queue_view.done((1, None), {"status": None})
    assert run is not None
    assert live.current_for_thread() is None
    assert run.ledger.open is None


# ---- what packs do with the queue -------------------------------------------------------------------

GRAPH = {"1": {"class_type": "Load", "inputs": {}}, "2": {"class_type": "Save", "inputs": {"x": ["1", 0]}}}
Event = dict[str, Any]


class Load:
    FUNCTION = "run"

    def run(self, **_: Any) -> tuple[int]:
        return (1,)


class Save(Load):
    OUTPUT_NODE = True


@pytest.fixture
def host(tmp_path: Path) -> Iterator[FakeHost]:
    """A host in miniature, and a journal."""
    live.journal = Journal(tmp_path / "ledger")
    live.journal.start()
    yield FakeHost({"Load": Load, "Save": Save})
    live.journal.stop("over")
    live.journal = None


def item(prompt_id: Any = "p", number: float = 1, graph: Any = GRAPH, **extra: Any) -> tuple[Any, ...]:
    return number, prompt_id, graph, {"client_id": "client", **extra}, ["2"]


def told(kind: str) -> list[Event]:
    """The journal's events of a kind."""
    assert live.journal is not None
    assert live.journal.flush()
    files = sorted(live.journal.folder.rglob("*.jsonl"))
    lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
    return [one for one in map(json.loads, lines) if one["event_type"] == kind]


def created_ago(seconds: float) -> int:
    return int(time.time() * 1000) - int(seconds * 1000)


def test_a_prompt_that_came_past_put_is_described_and_has_waited_since_it_was_accepted(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "ANCHOR_MONO_NS", clock.now_ns() - 60 * 10**9)
    host.queue.queue.append(item(create_time=created_ago(5)))
    host.work()
    (accepted,) = told("run_accepted")
    assert (accepted["nodes"], accepted["selected_outputs"]) == (["1", "2"], ["2"])
    assert (accepted["direct"], accepted["condition_id"]) == (False, "c" * 64)
    (started,) = told("run_started")
    assert 5 <= (started["ts_mono_ns"] - accepted["ts_mono_ns"]) / 1e9 < 15


@pytest.mark.parametrize("created", [10**6, -60, "soon", None, True])
def test_a_time_of_acceptance_that_is_none_of_this_process_is_not_taken(host: FakeHost, created: Any) -> None:
    before = clock.now_ns()
    at = created_ago(created) if type(created) is int else created
    host.queue.queue.append(item(create_time=at))
    host.work()
    (accepted,) = told("run_accepted")
    assert accepted["ts_mono_ns"] >= before


def test_an_item_put_back_waits_on_as_the_same_run(host: FakeHost) -> None:
    host.queue.put(item())
    taken, number = host.queue.get()
    host.queue.currently_running.pop(number)
    host.queue.put(taken)
    assert live.current_for_thread() is None
    host.work()
    (accepted,) = told("run_accepted")
    assert {one["run_id"] for one in told("run_executed")} == {accepted["run_id"]}
    stages = [stage for one in told("segments") for stage in one["stage"]]
    assert stages[:3] == ["queue_wait", "executor_prepare", "queue_wait"]


def test_of_two_prompts_with_one_id_each_gets_its_own_run(host: FakeHost) -> None:
    other = {"1": {"class_type": "Load", "inputs": {}}, "2": GRAPH["2"], "3": GRAPH["2"]}
    host.queue.put(item(number=5))
    host.queue.put(item(number=-1, graph=other))
    host.work()
    first = live.waiting.take("p")
    assert first is not None
    assert list(first.class_of) == ["1", "2"], "the one that is left is the one that was not taken"


def test_an_item_that_a_pack_replaced_is_told_of_as_what_is_executed(host: FakeHost) -> None:
    host.queue.put(item())
    host.queue.queue[0] = item(graph={**GRAPH, "9": GRAPH["1"]})
    host.work()
    before, after = told("run_accepted")
    assert before["run_id"] == after["run_id"]
    assert after["nodes"] == ["1", "2", "9"]
    assert before["ts_mono_ns"] == after["ts_mono_ns"]


def test_a_prompt_that_is_deleted_from_the_list_by_hand_is_closed_at_the_next_look(host: FakeHost) -> None:
    host.queue.put(item("gone"))
    host.queue.put(item("stays", 2))
    del host.queue.queue[0]
    host.work()
    (closed,) = [one for one in told("run_closed") if one["outcome"] == "cancelled"]
    (gone,) = [one for one in told("run_accepted") if one["prompt_id"] == "gone"]
    assert closed["run_id"] == gone["run_id"]
    assert not live.waiting


def test_a_prompt_that_is_being_put_is_not_missing(host: FakeHost) -> None:
    run = live.accept("p", {}, item=object())
    assert run is not None
    queue_view.forget_missing(host.queue)  # another thread, before the host has taken the item
    assert live.waiting.take("p") is run


@pytest.mark.parametrize(
    "odd",
    [("short",), (), None, {"a": 1}, (1, "p"), (1, "p", None, None), (1, "p", {"1": "no node"}, {}, [])],
)
def test_an_item_without_a_prompt_is_no_run_and_no_fault(host: FakeHost, odd: Any) -> None:
    host.queue.queue.append(item("before", 0))
    queue_view.take(host, (odd, 0))
    assert queue_view.accept(host, odd, {}) is None
    assert live.current_for_thread() is None


def test_a_number_for_an_id_is_one_run(host: FakeHost) -> None:
    host.queue.put(item(7))
    host.work()
    (accepted,) = told("run_accepted")
    assert accepted["prompt_id"] == "7"
    assert len(told("run_executed")) == 1


def test_an_executor_that_a_pack_calls_is_told_of_whole(host: FakeHost) -> None:
    host.executor.execute(GRAPH, "own", {"create_time": created_ago(0)}, ["2"])
    (accepted,) = told("run_accepted")
    assert (accepted["nodes"], accepted["direct"]) == (["1", "2"], True)


# ---- the seam's state -------------------------------------------------------------------------------

STATE = {"seam": "prompt_queue", "state": "installed", "reason": None}


class Held:
    """A pack's object in whose methods no look finds ours."""

    def __init__(self, queue: Any) -> None:
        self.held = {"put": queue.put, "get": queue.get}

    def put(self, item: Any) -> Any:
        return self.held["put"](item)


def state_of(queue: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    import sys
    from types import SimpleNamespace

    server = SimpleNamespace(PromptServer=SimpleNamespace(instance=SimpleNamespace(prompt_queue=queue)))
    monkeypatch.setitem(sys.modules, "server", server)
    return hooks.queue_state(STATE)


def test_a_method_in_front_of_ours_that_was_seen_to_call_it_is_no_loss(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert state_of(host.queue, monkeypatch) == STATE
    host.queue.put = Held(host.queue).put
    assert state_of(host.queue, monkeypatch)["state"] == "lost"
    host.queue.put(item())
    assert state_of(host.queue, monkeypatch)["state"] == "installed"
    host.queue.put = host.queue.queue.append
    assert state_of(host.queue, monkeypatch)["state"] == "lost"


def test_a_queue_of_another_make_is_a_loss_unless_ours_is_in_it(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Before:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

    assert state_of(Before(None), monkeypatch)["state"] == "lost"
    assert state_of(Before(host.queue), monkeypatch)["state"] == "installed"
    assert state_of(type("Sub", (type(host.queue),), {})(), monkeypatch) == STATE
