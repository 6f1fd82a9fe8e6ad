"""What the queue's history shows of ours: one entry asked for by its id, and never the list."""

from __future__ import annotations

from typing import Any

from stagexec.executor import queue as queue_view
from stagexec.executor.queue import QueueView
from stagexec.record import live


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
