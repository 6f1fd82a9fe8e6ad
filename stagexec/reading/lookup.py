"""Single runs of a large ledger, from the places of their lines, without folding the rest."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Sequence
from typing import Any

from stagexec.reading import alive, lean, progress, relation, store
from stagexec.reading.fold import Alive, fold
from stagexec.reading.journal import Source, sources
from stagexec.reading.runs import Run

AFTER = 1024**2
"""Bytes after a run's last line in which what may follow its end is looked for."""

BEFORE = 20
"""So many earlier runs of the same process come along: questions about one run compare it with them."""


class Large(store.Store):
    """A ledger whose runs are read one by one: `runs` are those found, and some before them."""

    def __init__(self, ledger: pathlib.Path) -> None:
        super().__init__([], [])
        self.ledger = ledger

    def find(self, name: str) -> Run:
        """See Store.find. Raises NoSuchRun, OSError."""
        with relation.of_ledger(self.ledger) as found:
            row = found.find(name)
            values = [row["file"], row["first_byte"]]
            near = found.rows("file = $1 AND first_byte <= $2 AND outcome IS NOT NULL", values, BEFORE)
        runs = {run.run_id: run for run in several(self.ledger, row, near)}
        if row["run_id"] not in runs:
            raise store.NoSuchRun(f"{name}: its journal is gone")
        self.runs += [run for run in runs.values() if all(run.run_id != one.run_id for one in self.runs)]
        return runs[row["run_id"]]


def run(
    ledger: pathlib.Path,
    row: dict[str, Any],
    now_wall_ns: int | None = None,
    is_alive: Alive = alive.is_alive,
) -> Run | None:
    """The run of a row of relation.of_ledger; None when its journal is gone. Raises OSError."""
    found = several(ledger, row, [], now_wall_ns, is_alive)
    return next((one for one in found if one.run_id == row["run_id"]), None)


def several(
    ledger: pathlib.Path,
    row: dict[str, Any],
    near: Sequence[dict[str, Any]],
    now_wall_ns: int | None = None,
    is_alive: Alive = alive.is_alive,
) -> list[Run]:
    """The run of `row` and those of `near`, rows of the same journal, as runs of one process.

    A run that is not closed is folded with its whole journal. Raises OSError.
    """
    source = next((s for s in sources(ledger) if str(s.paths[0]) == row["file"]), None)
    if source is None:
        return []
    if row["outcome"] in (None, "lost") or row["end_byte"] <= row["first_byte"] or len(source.paths) > 1:
        return _by_fold(source, now_wall_ns, is_alive)
    path = source.paths[0]
    known = progress.start(path)
    rows = [row, *(one for one in near if one["end_byte"] > one["first_byte"])]
    names = {one["run_id"].encode() for one in rows}
    begin, end = min(one["first_byte"] for one in rows), row["end_byte"] + AFTER
    with path.open("rb") as stream:
        head = stream.read(known.head_end).splitlines(keepends=True)
        stream.seek(begin)
        lines = stream.read(end - begin).splitlines(keepends=True)
    mine = [line for line in lines if any(name in line[:200] for name in names)]
    return list(lean.folded(str(path), head, mine).runs.values())


def _by_fold(source: Source, now_wall_ns: int | None, is_alive: Alive) -> list[Run]:
    return fold(source, time.time_ns() if now_wall_ns is None else now_wall_ns, is_alive)
