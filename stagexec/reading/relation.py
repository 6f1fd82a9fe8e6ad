"""All runs as one relation for SQL: of a ledger folder, or of Parquet files of many ledgers."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import duckdb

from stagexec import addresses
from stagexec.reading import index, refold, store, table
from stagexec.reading.journal import size_of

SMALL = 8 * 1024**2
"""Journals of less than this are folded in full each time: no index is made beside them."""

REMOTE = ("http://", "https://", "s3://", "gs://", "gcs://", "az://", "abfs://", "hf://")


MOST = 2**63 - 1
"""Rows that DuckDB can be asked for at once."""


PARQUET = "read_parquet(?, union_by_name=true, hive_partitioning=true, filename=true)"


class CannotRead(Exception):
    """The files named in place of a ledger cannot be read; one line."""


class Runs:
    """The relation `runs` of a DuckDB connection, with table.COLUMNS and table.PLACE."""

    def __init__(
        self, connection: Any, problems: list[str], torn: int = 0, kept: index.Index | None = None
    ) -> None:
        self.connection = connection
        self.problems = problems
        self.torn = torn
        self._kept = kept

    def execute(self, query: str, values: list[Any] | None = None) -> Any:
        """The cursor of a query. An index that turns out to be damaged is made again first."""
        try:
            return self.connection.execute(query, values or [])
        except duckdb.Error as error:
            if self._kept is None:
                raise
            kept, self._kept = self._kept, None
            kept.renew(error)
            self.connection, self.problems, self.torn = kept.connection, kept.problems, kept.torn
            return self.connection.execute(query, values or [])

    def rows(
        self, where: str = "true", values: list[Any] | None = None, newest: int | None = None
    ) -> list[dict[str, Any]]:
        """Rows, oldest first. `newest`: only so many, the latest ones."""
        query = f"SELECT * FROM runs WHERE {where}"
        if newest is not None:
            query = f"SELECT * FROM ({query} ORDER BY {index.NEWEST_FIRST} LIMIT {min(newest, MOST)})"
        return self.ask(f"{query} ORDER BY {index.ORDER}", values)

    def ask(self, query: str, values: list[Any] | None = None) -> list[dict[str, Any]]:
        """The answer to any query on `runs`, a dict a row."""
        cursor = self.execute(query, values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def find(self, name: str) -> dict[str, Any]:
        """The row of the run named by its id, a unique prefix of it, a prompt_id, `last` or `last~N`.

        Raises store.NoSuchRun with a one-line text.
        """
        counted = store.LAST.match(name)
        if counted:
            back = int(counted[1] or 0)
            found = self.rows(newest=back + 1)
            if len(found) <= back:
                raise store.NoSuchRun(
                    f"{name}: there are only {len(found)} runs" if found else "there are no runs yet"
                )
            return found[0]
        # A name that is no Unicode text, as a terminal may give it, is handed to DuckDB as one that is.
        asked = name.encode("utf-8", "backslashreplace").decode()
        found = self.rows("run_id = $1 OR prompt_id = $1", [asked])
        if not found and name:
            found = self.rows("starts_with(run_id, $1)", [asked])
        if not found:
            raise store.NoSuchRun(f"no run has the id, id prefix or prompt_id {name!r}")
        if len(found) > 1:
            some = ", ".join(row["run_id"] for row in found[:5]) + (", …" if len(found) > 5 else "")
            raise store.NoSuchRun(f"{name!r} names {len(found)} runs: {some}")
        return found[0]


def is_files(ledger: str | None) -> bool:
    """Whether a ledger is named by a pattern or address of Parquet files; a folder that is there is none."""
    if ledger is None or os.path.isdir(ledger):
        return False
    return ledger.startswith(REMOTE) or "*" in ledger or ledger.endswith((".parquet", ".pq"))


@contextlib.contextmanager
def of_ledger(ledger: pathlib.Path, processes: int | None = None) -> Iterator[Runs]:
    """The runs of a ledger folder."""
    problems: list[str] = []
    if size_of(ledger) > SMALL and not refold.active():
        try:
            found = index.fresh(ledger, processes)
        except Exception as error:  # noqa: BLE001 (no disk, no memory, no DuckDB file: the journals are there)
            problems.append(f"no index can be made: {str(error).splitlines()[:1]}")
        else:
            with found:
                yield Runs(found.connection, found.problems, found.torn, found)
            return
    loaded = store.load(ledger)
    connection = duckdb.connect()
    try:
        columns = ", ".join(f"{name} {kind}" for name, kind in index.COLUMNS.items())
        connection.execute(f"CREATE TABLE runs ({columns})")
        rows = [[*table.flat(run).values(), run.process.file, at, at] for at, run in enumerate(loaded.runs)]
        if rows:
            problems += index.insert(connection, "runs", rows)
        problems += [f"{p.file}: {p.what}" for p in loaded.problems if p.kind == "unreadable"]
        torn = sum(p.kind not in ("unreadable", "torn_last") for p in loaded.problems)
        yield Runs(connection, problems, torn)
    finally:
        connection.close()


@contextlib.contextmanager
def of_files(pattern: str) -> Iterator[Runs]:
    """The runs in Parquet files, as `stagexec export --parquet` writes them: a path, glob or URL.

    Raises CannotRead.
    """
    connection = duckdb.connect(config={"autoinstall_known_extensions": False})
    try:
        if pattern.startswith(REMOTE):
            _register(connection, pattern.partition("://")[0])
        try:
            columns = connection.execute(f"DESCRIBE SELECT * FROM {PARQUET}", [pattern]).fetchall()
            present = {column[0] for column in columns}
            if "run_id" not in present or "total_ns" not in present:
                raise CannotRead(
                    f"{addresses.shown(pattern)}: no runs in these files; name those under runs/"
                )
            connection.execute(f"CREATE TEMP TABLE runs AS {_newest(present)}", [pattern])
        except duckdb.Error as error:
            raise CannotRead(addresses.shown(f"{pattern}: {_reason(error)}")) from None
        yield Runs(connection, [])
    finally:
        connection.close()


def _newest(present: set[str]) -> str:
    """Each run once, as a query. It may have been exported while it was open, or taken for lost by a machine
    that could not see its process, and again when it was closed."""
    place = {"file": "filename", "first_byte": "0", "end_byte": "0"}
    cells = [
        f"CAST({place.get(name, name if name in present else 'NULL')} AS {kind}) AS {name}"
        for name, kind in index.COLUMNS.items()
    ]
    return (
        f"SELECT {', '.join(cells)} FROM {PARQUET} QUALIFY row_number() OVER "
        "(PARTITION BY run_id ORDER BY outcome IS NULL, outcome = 'lost', filename DESC) = 1"
    )


def _reason(error: Exception) -> str:
    """DuckDB says it in the first line, a file system written in Python in the last of its traceback."""
    told = str(error).partition("\n\nLINE ")[0]  # the query itself follows
    lines = told.strip().splitlines() or [type(error).__name__]
    return lines[-1] if "Traceback" in lines[0] else lines[0]


def _register(connection: Any, protocol: str) -> None:
    """Let DuckDB read an object store by way of fsspec: its own extension is a download of its own."""
    try:
        import fsspec
    except ImportError:
        raise CannotRead(f"{protocol}:// needs fsspec: pip install 'stagexec[remote]'") from None
    try:
        connection.register_filesystem(fsspec.filesystem(protocol))
    except (ImportError, ValueError) as error:
        raise CannotRead(addresses.shown(f"{protocol}://: {error}")) from None
