"""Work of other programs for a run, as `stagexec span` left it beside the journals."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Any

from stagexec.reading import events, mend
from stagexec.reading.journal import opened
from stagexec.reading.runs import Run

LANE = "outside:"


def folder(ledger: pathlib.Path) -> pathlib.Path:
    """Where the files of such spans lie."""
    return ledger / "spans"


def attach(ledger: pathlib.Path, runs: Iterable[Run]) -> None:
    """Give each of some runs what was done for it outside. What cannot be read is left out."""
    root = folder(ledger)
    if not root.is_dir():
        return
    by_id = {run.run_id: run for run in runs}
    for path in sorted(root.glob("*/*.jsonl")):
        for told in read(path):
            run = by_id.get(told.run_id or "")
            if run is not None and told not in run.outside:
                run.outside.append(told)


def read(path: pathlib.Path) -> list[events.OutsideSpan]:
    """The spans in one file; none of a file that cannot be read."""
    try:
        with opened(path) as stream:
            found = [mend.read(line)[0] for line in stream]
    except OSError:
        return []
    return [one for one in found if isinstance(one, events.OutsideSpan)]


def spans(run: Run) -> list[dict[str, Any]]:
    """The outside spans of a run in the shape of the others, on its process's clock by its wall anchors.

    They lie on a lane of their own and belong to no visit; without an anchor they have no place, and are left
    out.
    """
    found = []
    for told in run.outside:
        start = run.process.mono_ns(told.start_wall_ns)
        if start is None:
            continue
        found.append(
            {
                "lane": f"{LANE}{told.program}",
                "stage": told.stage_id,
                "name": "stagexec.span",
                "visit": None,
                "start_ns": start,
                "end_ns": start + told.length_ns,
                "detail": {"part": told.part, "exit_code": told.exit_code, "hostname": told.hostname},
            }
        )
    return sorted(found, key=begin)


def begin(span: dict[str, Any]) -> int:
    """When a span began."""
    return int(span["start_ns"])
