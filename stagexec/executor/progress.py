"""The host's progress messages, kept from growing with the square of the graph.

The host sends the state of every touched node at each start and finish of a node: up to SMALL touched nodes
that is what is sent here too, message for message. Above, a state is sent when the time that states have cost
so far is a bounded share of the time gone by; the last one is always sent, also when nothing follows it.
"""

from __future__ import annotations

import threading
from typing import Any

from stagexec.executor.states import Entry, States, is_plain
from stagexec.executor.wire import EVENT
from stagexec.record import clock

SMALL = 200
"""Touched nodes up to which every state is sent."""

SHARE = 0.02
"""Of the time since the graph was no longer small, at most this goes into states."""

COST_NS = 1_000
"""What one node's entry costs from building to the websocket, on the worker's thread and on the server's,
which shares the interpreter with it: measured 0.3 µs on an idle machine, more under load."""

HOSTS_COST_NS = 6_000
"""The same where the host's JSON has to write it: measured 3.4 µs."""

COST_CHAR_NS = 10
"""The same for each character of its id: those of nested expansions are thousands of characters long."""


class CoalescedProgress:
    """Mixed into a subclass of the host's `WebUIProgressHandler`."""

    registry: Any
    server_instance: Any
    _hosts_sender: Any = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._hosts_sender = super()._send_progress_state  # type: ignore[misc]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._entries: dict[str, Entry] = {}
        self._later: dict[str, tuple[Any, Any, Any]] = {}
        """(value, max, state) of nodes whose entry has yet to be made, or made again."""
        self._of: Any = None
        self._by_hand = False
        self._noted = 0
        self._plain = True
        self._in_order = True
        self._characters = 0
        self._spent_ns = 0
        self._large_since: int | None = None
        self._unsent: tuple[Any, ...] | None = None
        self._timer: threading.Timer | None = None
        self._lock = threading.RLock()  # between the worker and the timer

    def start_handler(self, node_id: str, state: Any, *args: Any, **kwargs: Any) -> Any:
        """A node starts."""
        self._note(node_id, state)
        return super().start_handler(node_id, state, *args, **kwargs)  # type: ignore[misc]

    def update_handler(
        self, node_id: str, value: Any, max_value: Any, state: Any, *args: Any, **kw: Any
    ) -> Any:
        """A node goes on."""
        self._note(node_id, state)
        return super().update_handler(node_id, value, max_value, state, *args, **kw)  # type: ignore[misc]

    def finish_handler(self, node_id: str, state: Any, *args: Any, **kwargs: Any) -> Any:
        """A node is finished."""
        self._note(node_id, state)
        return super().finish_handler(node_id, state, *args, **kwargs)  # type: ignore[misc]

    def enable(self) -> None:
        """Told again of progress, after a time of not being told: what is remembered may be old."""
        super().enable()  # type: ignore[misc]
        self._forget()
        self._in_order = False

    def reset(self) -> None:
        """The next prompt begins: nothing is said about this one any more."""
        super().reset()  # type: ignore[misc]
        self._let_go()
        self._forget()  # the registry and its handlers hold each other, until garbage is collected

    def _forget(self) -> None:
        with self._lock:
            self._entries.clear()
            self._later.clear()
            self._noted = self._characters = 0

    def _note(self, node_id: str, state: Any) -> None:
        """Keep what a node's entry is to say. While every state is sent, the entry is made at once."""
        registry = self.registry
        if registry is not self._of:
            self._by_hand = self._of is not None
            self._of = registry
        if self._by_hand or registry is None or registry.nodes.get(node_id) is not state:
            self._by_hand = True  # what is told now is not what we keep: the host's own looks it up
            return
        value, most = state["value"], state["max"]
        if not (is_plain(value) and is_plain(most)):
            self._plain = False
        nodes = registry.nodes
        with self._lock:
            if node_id not in self._entries and node_id not in self._later:
                self._noted += 1
                self._in_order = self._in_order and len(nodes) == self._noted
                self._characters += len(node_id)
            if len(nodes) > SMALL:
                self._later[node_id] = (value, most, state["state"])
                return
        entry = self._entries[node_id] = self._entry(node_id, value, most, state["state"])
        entry.tell(node_id)  # this entry is in every state from now on

    def _entry(self, node_id: str, value: Any, most: Any, state: Any) -> Entry:
        """A new one each time: messages that wait to be sent hold the old one."""
        before = self._entries.get(node_id)
        if before is not None:  # what a node is part of is settled when it begins
            return Entry(before, value=value, max=most, state=state.value)
        dynprompt = self.registry.dynprompt
        return Entry(
            {
                "value": value,
                "max": most,
                "state": state.value,
                "node_id": node_id,
                "prompt_id": self.registry.prompt_id,
                "display_node_id": dynprompt.get_display_node_id(node_id),
                "parent_node_id": dynprompt.get_parent_node_id(node_id),
                "real_node_id": dynprompt.get_real_node_id(node_id),
            }
        )

    def _states(self, nodes: dict[str, Any]) -> dict[str, Any]:
        """The entries of all touched nodes in the host's order; `nodes` may grow meanwhile."""
        with self._lock:
            later, self._later = self._later, {}
            for node_id, told in later.items():
                self._entries[node_id] = self._entry(node_id, *told)
        if self._in_order and nodes is self.registry.nodes and len(nodes) == len(self._entries):
            return self._told(self._entries)  # each was the last of the nodes when it was noted
        states = {}
        for node_id, state in list(nodes.items()):
            if node_id not in self._entries:
                if state["state"].value == "pending":
                    continue
                # Touched while this handler was not told.
                self._entries[node_id] = self._entry(node_id, state["value"], state["max"], state["state"])
                self._plain = self._plain and is_plain(state["value"]) and is_plain(state["max"])
            states[node_id] = self._entries[node_id]
        return self._told(states)

    def _told(self, entries: dict[str, Any]) -> dict[str, Any]:
        return States(entries) if self._plain else dict(entries)

    def _send_progress_state(self, prompt_id: str, nodes: dict[str, Any]) -> None:
        if self.server_instance is None:
            return
        if len(nodes) <= SMALL:
            self._send(prompt_id, nodes)
            return
        with self._lock:
            now = clock.now_ns()
            if self._large_since is None:
                self._large_since = now
            if self._spent_ns <= SHARE * (now - self._large_since):
                self._send(prompt_id, nodes)
                return
            self._unsent = (prompt_id, nodes)
            if self._timer is None:
                self._wait_for_turn(now)

    def flush(self) -> None:
        """Send the state that was held back, if one was: the last is always sent."""
        with self._lock:
            unsent = self._let_go()
            if unsent is not None:
                self._send(*unsent)

    def _let_go(self) -> tuple[Any, ...] | None:
        """Forget what was held back and when it was to be sent; the held back state."""
        with self._lock:
            unsent, self._unsent = self._unsent, None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return unsent

    def _send(self, prompt_id: str, nodes: dict[str, Any]) -> None:
        self._unsent = None
        if self._large_since is not None:
            self._spent_ns += self._cost_ns()
        sender = super()._send_progress_state  # type: ignore[misc]
        replaced = getattr(sender, "__func__", None) is not type(self)._hosts_sender
        if replaced or self._by_hand or self.registry is None or prompt_id != self.registry.prompt_id:
            sender(prompt_id, nodes)  # a pack has put its own there, or calls by itself
            return
        message = {"prompt_id": prompt_id, "nodes": self._states(nodes)}
        self.server_instance.send_sync(EVENT, message, self.server_instance.client_id)

    def _cost_ns(self) -> int:
        each = COST_NS if self._plain else HOSTS_COST_NS
        return each * self._noted + COST_CHAR_NS * self._characters

    def _wait_for_turn(self, now: int) -> None:
        assert self._large_since is not None
        due = self._large_since + int(self._spent_ns / SHARE)
        self._timer = threading.Timer(max(due - now, 0) / 1e9, self._overdue)
        self._timer.daemon = True
        self._timer.start()

    def _overdue(self) -> None:
        """Nothing has followed for a while, as in a long node: send what was held back."""
        with self._lock:
            unsent, self._unsent = self._unsent, None
            self._timer = None
            if unsent is not None:
                self._send(*unsent)
