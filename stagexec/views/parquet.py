"""Runs and segments as partitioned Parquet: the ledgers of a fleet in one place are one table.

    DIR/runs/day=2026-11-29/<name>.parquet         one row a run, the columns of reading/table.py
    DIR/segments/day=2026-11-29/<name>.parquet     one row a segment, the columns of the CSV

Each exporter writes files of its own name, so that many may write into one folder or object store.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import socket
import tempfile
from collections.abc import Iterable
from typing import Any

import duckdb

from stagexec.reading import rows as shapes
from stagexec.reading import table
from stagexec.reading.relation import Runs
from stagexec.reading.runs import Run
from stagexec.views import csv

DAY = "coalesce(strftime(make_timestamp(accepted_wall_ns // 1000), '%Y-%m-%d'), 'unknown')"

SEGMENTS: dict[str, str] = {
    **dict.fromkeys(csv.COLUMNS, "VARCHAR"),
    "start_mono_ns": "BIGINT",
    "end_mono_ns": "BIGINT",
    "cpu_wall_ms": "DECIMAL(38, 6)",
    "gpu_ms": "DECIMAL(38, 6)",
    "named_share": "DOUBLE",
}


class CannotWrite(Exception):
    """The folder does not take the files; one line."""


def name_of(ledger: str) -> str:
    """The file name of one ledger of this machine: exporting it again replaces its own files alone."""
    return "ledger-" + hashlib.sha256(f"{socket.gethostname()}:{ledger}".encode()).hexdigest()[:16]


def write_runs(runs: Runs, folder: pathlib.Path, name: str, only: Iterable[str] | None = None) -> int:
    """Write the rows of `only` these run ids, or of all; how many. Raises OSError, CannotWrite."""
    where, values = "true", []
    if only is not None:
        values = list(only)
        where = f"run_id IN ({', '.join('?' * len(values))})" if values else "false"
    cells = ", ".join(table.COLUMNS)
    _copy(
        runs,
        f"SELECT {cells}, {DAY} AS day FROM runs WHERE {where}",
        values,
        folder / "runs",
        name,
    )
    found = runs.ask(f"SELECT count(*) AS count FROM runs WHERE {where}", values)
    return int(found[0]["count"])


def write_segments(runs: Iterable[Run], folder: pathlib.Path, name: str) -> int:
    """Write the segments of `runs`; how many. Raises OSError, CannotWrite."""
    count = 0
    with tempfile.TemporaryDirectory(prefix="stagexec-parquet-") as scratch:
        lines = pathlib.Path(scratch, "segments.json")
        with lines.open("w", encoding="utf-8") as out:
            for run in runs:
                day = (shapes.iso(shapes.accepted_wall_ns(run)) or "unknown")[:10]
                for row in csv.rows(run):
                    out.write(json.dumps({**row, "day": day}) + "\n")
                    count += 1
        if not count:
            return 0
        columns = ", ".join(f"{column}: '{kind}'" for column, kind in {**SEGMENTS, "day": "VARCHAR"}.items())
        query = (
            f"SELECT * FROM read_json(?, columns={{{columns}}}, format='newline_delimited', "
            "maximum_object_size=268435456)"
        )
        with duckdb.connect() as connection:
            _copy(connection, query, [str(lines)], folder / "segments", name)
    return count


def _copy(connection: Any, query: str, values: list[Any], folder: pathlib.Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob(f"day=*/{name}*.parquet"):
        stale.unlink()
    target = str(folder).replace("'", "''")
    try:
        connection.execute(
            f"COPY ({query}) TO '{target}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (day), "
            f"WRITE_PARTITION_COLUMNS false, OVERWRITE_OR_IGNORE, FILENAME_PATTERN '{name}_{{i}}')",
            values,
        )
    except duckdb.Error as error:
        raise CannotWrite(str(error).splitlines()[0]) from None
