"""Single runs of a large ledger, from the places of their lines, without folding the rest."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Sequence
from typing import Any, BinaryIO

from stagexec.reading import alive, index, lean, outside, progress, refold, relation, startup, store
from stagexec.reading.fold import Alive, fold
from stagexec.reading.journal import Source, sources
from stagexec.reading.runs import Run

AFTER = 1024**2
"""Bytes after a run's last line in which what may follow its end is looked for."""

BEFORE = 20
"""So many earlier runs of the same process come along: questions about one run compare it with them."""

FIRST = (
    "SELECT * FROM runs WHERE file = $1 AND prompt_hash = $2 AND timing = $3 AND outcome IS NOT NULL "
    f"AND sampling_ns IS NOT NULL ORDER BY {index.ORDER} LIMIT 5"
)
"""And the first ones that did the same work: what a first run costs is said of a first run only."""

SAMPLES = (b'"nvml_facts"', b'"nvml_sample"', b'"after_run"')
"""Events of the process that a run's answers are made of."""

BEGIN = 64 * 1024
"""Bytes after a journal's head in which such facts are looked for."""


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
            near += found.ask(FIRST, [row["file"], row["prompt_hash"], row["timing"]])
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
        return _by_fold(ledger, source, now_wall_ns, is_alive)
    path = source.paths[0]
    known = progress.start(path)
    rows = {one["run_id"]: one for one in (*near, row) if one["end_byte"] > one["first_byte"]}
    with path.open("rb") as stream:
        head = stream.read(known.head_end).splitlines(keepends=True)
        head += [
            line for line in _lines(stream, known.head_end, known.head_end + BEGIN) if SAMPLES[0] in line[:40]
        ]
        mine = []
        for one in sorted(rows.values(), key=lambda one: int(one["first_byte"])):
            name, others = one["run_id"].encode(), SAMPLES if one is row else ()
            mine += [
                line
                for line in _lines(stream, one["first_byte"], one["end_byte"] + AFTER)
                if name in line[:200] or any(kind in line[:40] for kind in others)
            ]
    found = lean.folded(str(path), head, mine).runs
    wanted = found.get(row["run_id"])
    if wanted is None or wanted.closed is None:  # how it ended is told by what the process left
        return _by_fold(ledger, source, now_wall_ns, is_alive)
    refold.apply(found.values())
    outside.attach(ledger, found.values())
    for run in found.values():  # by its row: not all runs before it are here
        told = rows.get(run.run_id)
        if told is not None and "startup_between" in told:
            run.startup = startup.Startup(told["startup_class"], told["startup_between"])
    return list(found.values())


def _lines(stream: BinaryIO, begin: int, end: int) -> list[bytes]:
    stream.seek(begin)
    return stream.read(end - begin).splitlines(keepends=True)


def _by_fold(ledger: pathlib.Path, source: Source, now_wall_ns: int | None, is_alive: Alive) -> list[Run]:
    found = fold(source, time.time_ns() if now_wall_ns is None else now_wall_ns, is_alive)
    outside.attach(ledger, found)
    return found
