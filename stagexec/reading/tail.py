"""Follows the journal of a living process: each run's lines and row, as soon as its end is written."""

from __future__ import annotations

import os
import pathlib
from typing import Any, NamedTuple

from stagexec.reading import lean, progress, scan, startup, table
from stagexec.reading.journal import opened
from stagexec.reading.runs import Run

FORGET_AFTER = 1000
"""So many ended runs are remembered, for events that follow their end."""

KNOWN_BY = 512
"""So many bytes before the place that was read up to say that the file is still the one that was read."""


class Closed(NamedTuple):
    """A run that has ended: its row (table.COLUMNS), and its lines for who needs all of it."""

    row: dict[str, Any]
    lines: list[bytes]
    head: list[bytes]

    def run(self) -> Run:
        """The run in full."""
        return lean.folded("", self.head, self.lines).runs[self.row["run_id"]]


class Tail:
    """Reads on in one journal at each `poll`. Not for two threads at once."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._offset: int | None = None
        self._inode = 0
        self._before = b""
        self._head: list[bytes] = []
        self._runs: dict[str, list[lean.Line]] = {}
        self._ended: dict[str, None] = {}
        self._history = startup.History()

    def poll(self) -> list[Closed]:
        """The runs whose end was written since the last poll. Raises OSError."""
        if self._offset is None and not self._begin():
            return []
        found = []
        with opened(self.path) as stream:
            status = os.fstat(stream.fileno())
            stream.seek((self._offset or 0) - len(self._before))
            if status.st_ino != self._inode or stream.read(len(self._before)) != self._before:
                return self._again()
            for line in stream:
                if line[-1:] != b"\n":
                    break
                self._offset = (self._offset or 0) + len(line)
                self._before = line[-KNOWN_BY:]
                ended = self._take(line)
                if ended is not None:
                    found.append(ended)
        return found

    def _again(self) -> list[Closed]:
        """The file was made again: its head comes first, then all that it had of the runs still open."""
        self._offset = None
        return self.poll()

    def _begin(self) -> bool:
        self._inode = os.stat(self.path).st_ino
        known = progress.start(self.path)
        self._head = [line.encode() for line in known.head]
        if not all(any(kind in line[:60] for line in self._head) for kind in scan.CHANGES):
            return False  # the head is still being written
        self._offset = known.head_end
        self._before = b""
        self._runs.clear()
        self._history = startup.History()
        return True

    def _take(self, line: bytes) -> Closed | None:
        ordered = progress.ordered(line) or b""
        kind_end = ordered.find(b'"', len(lean.PREFIX))
        id_start = kind_end + len(lean.RUN_ID)
        if ordered[kind_end:id_start] != lean.RUN_ID:
            return None
        kind = ordered[len(lean.PREFIX) : kind_end]
        run_id = ordered[id_start : ordered.find(b'"', id_start)].decode("utf-8", "replace")
        if run_id in self._ended:
            return None
        lines = self._runs.setdefault(run_id, [])
        if kind == b"run_accepted" and any(known == kind for known, _, _ in lines):
            lines.clear()  # told again in a file that was cut: what was told before is no more
        lines.append((kind, ordered, 0))
        if kind != b"run_closed":
            return None
        try:
            cells = lean.row_of(str(self.path), lean.Head(self._head), run_id, lines)
        except lean.TwoRuns:
            cells = None
        if cells is None or cells[lean.OUTCOME] is None:
            return None  # the line of its end is damaged
        self._ended[run_id] = None
        if len(self._ended) > FORGET_AFTER:
            self._ended.pop(next(iter(self._ended)))
        del self._runs[run_id]
        row = dict(zip(table.COLUMNS, cells, strict=True))
        told = (row["startup_raw"], row["startup_class"], startup.from_cell(row["models"]))
        row["startup_class"], row["startup_between"] = self._history.take(run_id, *told)
        return Closed(row, [line for _, line, _ in lines], self._head)
