"""What nodes of a run did to deliver, noted as it happens: who asked where to write, who wrote what, who
sent what to how many clients; and, of a cache entry, what it was when it was made.

Nothing here looks at a disk. What it all means is decided after the run, by delivery/.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any

import msgspec

MOST_NOTES = 100_000
"""A run that writes more files than this keeps the first ones' names only."""

MOST_KEPT = 10_000
MOST_WRITERS = 20_000


class Asked(msgspec.Struct):
    """A saver asked the host where to write: its files are named `stem…` in `folder`, with a number from
    `counter` on. `at_ns`: on the run's clock."""

    node_id: str | None
    folder: str
    stem: str
    counter: int | None
    at_ns: int


class Written(msgspec.Struct):
    """A node is about to write this file (absolute, as the node spelt it)."""

    node_id: str | None
    path: str
    at_ns: int


class Sent(msgspec.Struct):
    """Binary messages of one node: how many, how many of them reached a client, and the most sockets that one
    of them went to."""

    messages: int = 0
    reached: int = 0
    sockets: int = 0


class Kept(msgspec.Struct, eq=False):
    """What is remembered of a cache entry: who made it, which blockers kept it from being more, and the files
    that came with it, by their key: the SHA-256, or null where the file was lost to another writer."""

    run_id: str
    node_id: str
    blocked: tuple[dict[str, Any], ...] = ()
    files: dict[str, tuple[str, str | None]] = {}


class Writer(msgspec.Struct):
    """Who wrote a file last, as far as this process saw it. `at_ns`: on the process's clock."""

    run_id: str
    node_id: str | None
    at_ns: int


class Trail:
    """The notes of one run. Its visits fill them; threads of its nodes may."""

    def __init__(self) -> None:
        self.output_nodes: set[str] = set()
        self.times: dict[str, list[int]] = {}
        """Start and end of what the output nodes did, and others that asked where to write, in ns."""
        self.asked: list[Asked] = []
        self.written: list[Written] = []
        self.sent: dict[str, Sent] = {}
        self.kept: dict[str, Kept] = {}
        """What is remembered of entries that this run made."""
        self.recalled: dict[str, Kept] = {}
        """What was remembered of entries that this run was served."""

    def began(self, node_id: str, is_output: bool) -> None:
        """A visit begins."""
        if is_output:
            self.output_nodes.add(node_id)

    def ended(self, node_id: str, start_ns: int, end_ns: int) -> None:
        """A visit has ended; a node that waits or expands has several."""
        if node_id in self.output_nodes or self.asked or self.written:
            self.times.setdefault(node_id, [start_ns, end_ns])[1] = end_ns

    def made(self, run_id: str, node_id: str, outputs: Any, blocked: tuple[dict[str, Any], ...]) -> None:
        """A node made what is going to be its cache entry."""
        kept = None
        if blocked or node_id in self.output_nodes or any(one.node_id == node_id for one in self.asked):
            kept = self.kept[node_id] = Kept(run_id, node_id, blocked, {})
        remember(outputs, kept)

    def served(self, node_id: str, outputs: Any) -> Kept | None:
        """A node was served from the cache; gives what is remembered of its entry."""
        kept = recall(outputs)
        if kept is not None:
            self.recalled[node_id] = kept
        return kept

    def asks(self, asked: Asked) -> None:
        """A saver was told where to write."""
        if len(self.asked) < MOST_NOTES:
            self.asked.append(asked)

    def writes(self, run_id: str, node_id: str | None, path: Any, at_ns: int) -> None:
        """A node is about to write a file. What is no path, such as a buffer, is none."""
        if not isinstance(path, (str, os.PathLike)):
            return
        text = os.fspath(path)
        if not isinstance(text, str) or len(self.written) >= MOST_NOTES:
            return
        text = os.path.abspath(text)
        self.written.append(Written(node_id, text, at_ns))
        note_writer(key_of(text), Writer(run_id, node_id, at_ns))

    def sends(self, node_id: str, sockets: int) -> None:
        """A node sent a binary message to so many clients."""
        sent = self.sent.setdefault(node_id, Sent())
        sent.messages += 1
        sent.reached += sockets > 0
        sent.sockets = max(sent.sockets, sockets)

    def last_end(self, node_id: str | None, otherwise: int) -> int:
        """When the node's last visit ended."""
        times = self.times.get(node_id or "")
        return times[1] if times is not None else otherwise


_kept: OrderedDict[int, Kept] = OrderedDict()
_writers: OrderedDict[str, Writer] = OrderedDict()
_lock = threading.Lock()


def remember(outputs: Any, kept: Kept | None) -> None:
    """Remember of a cache entry, which is told by the identity of its list of outputs: the host hands that
    same list out again, and while it does no other list can have its address."""
    if outputs is None or (kept is None and not _kept):
        return
    with _lock:
        _kept.pop(id(outputs), None)
        if kept is not None:
            _kept[id(outputs)] = kept
            if len(_kept) > MOST_KEPT:
                _kept.popitem(last=False)


def recall(outputs: Any) -> Kept | None:
    """What is remembered of a cache entry."""
    return _kept.get(id(outputs)) if outputs is not None else None


def key_of(path: str) -> str:
    """A file by its name, in one spelling; links are followed only where a disk may be looked at."""
    return os.path.normcase(path)


def note_writer(key: str, writer: Writer) -> None:
    """This one wrote the file last."""
    with _lock:
        _writers.pop(key, None)
        _writers[key] = writer
        if len(_writers) > MOST_WRITERS:
            _writers.popitem(last=False)


def writer_of(key: str) -> Writer | None:
    """Who wrote the file last; None where no one of this process was seen to."""
    return _writers.get(key)
