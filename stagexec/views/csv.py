"""Segments as CSV: one row each, in the order of time, with what the journal knows of its visit."""

from __future__ import annotations

import csv
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from stagexec.printable import visible
from stagexec.reading import device, named
from stagexec.reading.runs import Run

COLUMNS = (
    "run_id",
    "condition_id",
    "stage_id",
    "start_mono_ns",
    "end_mono_ns",
    "cpu_wall_ms",
    "gpu_ms",
    "cache_state",
    "artifact_hash",
    "status",
    "part",
    "named_share",
)


def rows(run: Run) -> Iterator[dict[str, Any]]:
    """COLUMNS of each segment. `cache_state` is the visit's kind, None between visits; `artifact_hash` the
    SHA-256 of what the visit's node delivered; `status` the run's outcome, None while it is under way.
    `named_share` is the run's too: 0 to 1, None of a run without length.
    """
    visits = {visit.visit: visit for visit in run.visits()}
    hashes: dict[str, list[str]] = {}
    for artifact in run.artifacts:
        if artifact.node_id is not None and artifact.sha256 is not None:
            hashes.setdefault(artifact.node_id, []).append(artifact.sha256)
    on_device, share = device.times(run).segments, named.share(run)
    named_share = None if share is None else f"{share:.6f}"
    for (stage, part, start, end, number, _), gpu in zip(run.segments.rows(), on_device, strict=True):
        visit = visits.get(number) if number is not None else None
        mine = hashes.get(visit.node_id or "") if visit is not None else None
        yield {
            "run_id": run.run_id,
            "condition_id": run.condition_id,
            "stage_id": stage,
            "start_mono_ns": start,
            "end_mono_ns": end,
            "cpu_wall_ms": milliseconds(end - start),
            "gpu_ms": None if gpu is None else milliseconds(gpu),
            "cache_state": visit.kind if visit is not None else None,
            "artifact_hash": ";".join(mine) if mine else None,
            "status": run.outcome,
            "part": part,
            "named_share": named_share,
        }


NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A cell that begins so is computed by spreadsheets, in their full-width forms too."""


def cell(value: Any) -> Any:
    """A cell that a spreadsheet shows as it is."""
    if not isinstance(value, str) or NUMBER.fullmatch(value):
        return value
    text = visible(value)
    return f"'{text}" if value.lstrip(" ").startswith(FORMULA) else text


def milliseconds(ns: int) -> str:
    """Exact decimal milliseconds of nanoseconds."""
    sign, whole = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{whole // 1_000_000}.{whole % 1_000_000:06d}"


def write(runs: Iterable[Run], path: pathlib.Path) -> int:
    """Write the segments of `runs`; how many there were. Raises OSError."""
    count = 0
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as out:
        writer = csv.DictWriter(out, COLUMNS)
        writer.writeheader()
        for run in runs:
            for row in rows(run):
                writer.writerow({name: cell(value) for name, value in row.items()})
                count += 1
    return count
