"""One run of a large ledger, from the place of its lines, without folding the rest."""

from __future__ import annotations

import pathlib
import time
from typing import Any

from stagexec.reading import alive, lean, progress
from stagexec.reading.fold import Alive, fold
from stagexec.reading.journal import Source, sources
from stagexec.reading.runs import Run

AFTER = 1024**2
"""Bytes after a run's last line in which what may follow its end is looked for."""


def run(
    ledger: pathlib.Path,
    row: dict[str, Any],
    now_wall_ns: int | None = None,
    is_alive: Alive = alive.is_alive,
) -> Run | None:
    """The run of a row of relation.of_ledger; None when its journal is gone.

    A run that is not closed is folded with its whole journal. Raises OSError.
    """
    source = next((s for s in sources(ledger) if str(s.paths[0]) == row["file"]), None)
    if source is None:
        return None
    if row["outcome"] in (None, "lost") or row["end_byte"] <= row["first_byte"]:
        return _by_fold(source, row["run_id"], now_wall_ns, is_alive)
    path = source.paths[0]
    known = progress.start(path)
    name = row["run_id"].encode()
    with path.open("rb") as stream:
        stream.seek(row["first_byte"])
        lines = stream.read(row["end_byte"] - row["first_byte"] + AFTER).splitlines(keepends=True)
    mine = [line for line in lines if name in line[:200]]
    folded = lean.folded(str(path), _with_seams(path, known), mine)
    return folded.runs.get(row["run_id"])


def _with_seams(path: pathlib.Path, known: progress.Progress) -> list[bytes]:
    with path.open("rb") as stream:
        return stream.read(known.head_end).splitlines(keepends=True)


def _by_fold(source: Source, run_id: str, now_wall_ns: int | None, is_alive: Alive) -> Run | None:
    now = time.time_ns() if now_wall_ns is None else now_wall_ns
    return next((one for one in fold(source, now, is_alive) if one.run_id == run_id), None)
