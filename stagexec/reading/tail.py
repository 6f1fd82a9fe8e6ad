"""Follows the journal of a living process: each run's lines and row, as soon as its end is written."""

from __future__ import annotations

import pathlib
from typing import Any, NamedTuple

from stagexec.reading import lean, progress, scan, table
from stagexec.reading.runs import Run

FORGET_AFTER = 1000
"""So many ended runs are remembered, for events that follow their end."""


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
        self._head: list[bytes] = []
        self._runs: dict[str, list[lean.Line]] = {}
        self._ended: dict[str, None] = {}

    def poll(self) -> list[Closed]:
        """The runs whose end was written since the last poll. Raises OSError."""
        if self._offset is None and not self._begin():
            return []
        found = []
        with self.path.open("rb") as stream:
            stream.seek(self._offset or 0)
            for line in stream:
                if line[-1:] != b"\n":
                    break
                self._offset = (self._offset or 0) + len(line)
                ended = self._take(line)
                if ended is not None:
                    found.append(ended)
        return found

    def _begin(self) -> bool:
        known = progress.start(self.path)
        self._head = [line.encode() for line in known.head]
        if not all(any(kind in line[:60] for line in self._head) for kind in scan.CHANGES):
            return False  # the head is still being written
        self._offset = known.head_end
        return True

    def _take(self, line: bytes) -> Closed | None:
        ordered = line if line.startswith(lean.PREFIX) else lean.in_order(line) or b""
        kind_end = ordered.find(b'"', len(lean.PREFIX))
        id_start = kind_end + len(lean.RUN_ID)
        if ordered[kind_end:id_start] != lean.RUN_ID:
            return None
        kind = ordered[len(lean.PREFIX) : kind_end]
        run_id = ordered[id_start : ordered.find(b'"', id_start)].decode("utf-8", "replace")
        if run_id in self._ended:
            return None
        lines = self._runs.setdefault(run_id, [])
        lines.append((kind, ordered, 0))
        if kind != b"run_closed":
            return None
        cells = lean.row_of(str(self.path), lean.Head(self._head), run_id, lines)
        if cells is None or cells[lean.OUTCOME] is None:
            return None  # the line of its end is damaged
        self._ended[run_id] = None
        if len(self._ended) > FORGET_AFTER:
            self._ended.pop(next(iter(self._ended)))
        del self._runs[run_id]
        row = dict(zip(table.COLUMNS, cells, strict=True))
        return Closed(row, [line for _, line, _ in lines], self._head)
