"""The ledger's disposable index: a DuckDB file of rows, read on from where it stopped.

Many may read it while servers write their journals: the file is only ever replaced whole, and what has come
since is kept in memory beside it. Missing, old or damaged, it is made again; where it cannot be written, what
it would hold is in memory.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import duckdb
import msgspec

from stagexec.reading import alive, progress, scan, startup_rows, table, workers
from stagexec.reading.fold import Alive
from stagexec.reading.journal import Source, sources
from stagexec.reading.progress import Progress

VERSION = 2
"""Of this file's own layout; the columns count besides."""

SAVE_FROM_BYTES = 8 * 1024**2
"""Less than this is read again by the next reader: replacing the index would cost more."""

COLUMNS = {**table.COLUMNS, **table.PLACE}
LAYOUT = f"{VERSION} {','.join(f'{name} {kind}' for name, kind in COLUMNS.items())}"
ORDER = "coalesce(accepted_wall_ns, 0), file, first_byte, run_id"
"""Oldest first; runs whose time is not known come first."""

NEWEST_FIRST = "coalesce(accepted_wall_ns, 0) DESC, file DESC, first_byte DESC, run_id DESC"


class _OtherLayout(ValueError):
    """The index is of another version: no damage."""


class Index:
    """A ledger's rows as the relation `runs` of `connection`, up to date as of its opening."""

    def __init__(
        self, ledger: pathlib.Path, now_wall_ns: int | None = None, is_alive: Alive = alive.is_alive
    ):
        self.ledger = ledger
        self.path = ledger / "index.duckdb"
        self.problems: list[str] = []
        self._now = time.time_ns() if now_wall_ns is None else now_wall_ns
        self._is_alive = is_alive
        self._begin(use_kept=True, may_save=True)

    def _begin(self, use_kept: bool, may_save: bool) -> None:
        self._known: dict[str, Progress] = {}
        self._use_kept, self._may_save = use_kept, may_save
        self.connection = duckdb.connect(config={"autoinstall_known_extensions": False})
        self.connection.execute("SET preserve_insertion_order=false")

    def renew(self, error: Exception, processes: int | None = None) -> None:
        """Make everything again from the journals, after `error`: without the index that is there, and when
        that fails too, without writing another. Raises what the last of these raises."""
        self.problems = [f"the index was of no use, and is made again: {_brief(error)}"]
        for may_save in (True, False):
            self.connection.close()
            self._begin(use_kept=False, may_save=may_save)
            try:
                self.refresh(processes)
                return
            except Exception as worse:
                if not may_save:
                    raise
                self.problems.append(f"the index cannot be made: {_brief(worse)}")

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def refresh(self, processes: int | None = None) -> None:
        """Read what is new, with so many `processes`; by default one a core where it is worth it."""
        if not self._attach():
            self.connection.execute(_create("base_runs"))
        self.connection.execute(_create("fresh"))
        self.connection.execute("CREATE TEMP TABLE gone (file VARCHAR)")
        self.connection.execute(
            "CREATE TEMP TABLE late (run_id VARCHAR, condition_id VARCHAR, packs VARCHAR)"
        )
        with tempfile.TemporaryDirectory(prefix="stagexec-index-") as scratch:
            size = self._read_on(pathlib.Path(scratch), processes)
        self._view()
        self._add_open()
        startup_rows.settle(self.connection)
        if size >= SAVE_FROM_BYTES and self._may_save:
            self._save()

    def _attach(self) -> bool:
        """Use the index that is there, if it is sound and of this layout."""
        if not self._use_kept or not _is_file(self.path):
            return False
        try:
            self.connection.execute(f"ATTACH {_quoted(self.path)} AS kept (READ_ONLY)")
            layout = self.connection.execute("SELECT layout FROM kept.meta").fetchone()
            told = self.connection.execute("SELECT told FROM kept.journals").fetchall()
            self.connection.execute("SELECT count(run_id), max(total_ns) FROM kept.runs").fetchall()
            if layout != (LAYOUT,):
                raise _OtherLayout
            self._known = _progresses(told)
        except (duckdb.Error, msgspec.DecodeError, TypeError, ValueError) as error:
            if not isinstance(error, _OtherLayout):
                self.problems.append(f"the index cannot be used, and is made again: {_brief(error)}")
            self._known = {}
            with contextlib.suppress(duckdb.Error):
                self.connection.execute("DETACH kept")
            return False
        self.connection.execute("CREATE TEMP VIEW base_runs AS SELECT * FROM kept.runs")
        return True

    def _read_on(self, scratch: pathlib.Path, processes: int | None) -> int:
        """Read every journal on; how many bytes that were."""
        todo: list[tuple[Source, Progress, list[scan.Job]]] = []
        there = set()
        for source in sources(self.ledger):
            file = str(source.paths[0])
            there.add(file)
            try:
                prepared = self._prepare(source, scratch)
            except OSError as error:
                self.problems.append(f"{file}: cannot be read: {error.strerror or error}")
                continue
            if prepared is not None:
                todo.append(prepared)
        for file in self._known.keys() - there:
            self._drop(file)
        jobs = [job for _, _, some in todo for job in some]
        found = iter(workers.read_all(jobs, processes))
        answers = [[next(found) for _ in some] for _, _, some in todo]
        files = {job.rows_file: job.file for job in jobs}
        try:
            self._load(files)
        except duckdb.Error:
            self.connection.execute("DROP TABLE IF EXISTS sources")
            self._load_each(files)
        for (source, known, some), stretches in zip(todo, answers, strict=True):
            self._take(source, known, some, stretches)
        whole = sum(known.size for _, known, some in todo if known.whole and not some)
        return whole + sum(job.end - job.start for job in jobs)

    def _prepare(
        self, source: Source, scratch: pathlib.Path
    ) -> tuple[Source, Progress, list[scan.Job]] | None:
        path = source.paths[0]
        known = self._known.get(str(path))
        if known is not None and len(source.paths) == 1 and not progress.is_behind(known, path):
            return None
        if known is None or known.whole or len(source.paths) > 1 or progress.is_another(known, path):
            self._drop(str(path))
            known = progress.start(path)
        self._known[known.file] = known
        if len(source.paths) > 1:
            known.whole = "the journal lies in several folders"
        jobs = progress.jobs(known, path, lambda: str(scratch / f"{uuid.uuid4().hex}.json"))
        return source, known, [] if known.whole else jobs

    def _drop(self, file: str) -> None:
        self._known.pop(file, None)
        self.connection.execute("INSERT INTO gone VALUES (?)", [file])
        self.connection.execute("DELETE FROM fresh WHERE file = ?", [file])

    def _load(self, files: dict[str, str]) -> None:
        """Take the rows in `files`: file of rows -> journal."""
        full = [file for file in files if os.path.exists(file) and os.path.getsize(file)]
        if not full:
            return
        self.connection.execute("CREATE TEMP TABLE sources (rows_file VARCHAR, journal VARCHAR)")
        self._insert("sources", [[file, files[file]] for file in full])
        columns = ", ".join(f"{name}: '{COLUMNS[name]}[]'" for name in scan.COLUMNS)
        lists = ", ".join(
            "journal AS file" if name == "file" else f"unnest({name}) AS {name}" for name in COLUMNS
        )
        self.connection.execute(
            f"INSERT INTO fresh SELECT {lists} FROM read_json(?, columns={{{columns}}}, "
            "filename='rows_file', format='newline_delimited', maximum_object_size=268435456) "
            "JOIN sources USING (rows_file)",
            [full],
        )

    def _load_each(self, files: dict[str, str]) -> None:
        """The same with every row by itself: for rows that DuckDB does not take from a file."""
        for file, journal in files.items():
            if not os.path.exists(file):
                continue
            with open(file, "rb") as lines:
                for line in lines:
                    columns = msgspec.json.decode(line)
                    columns["file"] = [journal] * len(columns["run_id"])
                    self._insert("fresh", map(list, zip(*(columns[name] for name in COLUMNS), strict=True)))

    def _take(
        self, source: Source, known: Progress, jobs: list[scan.Job], stretches: list[scan.Found]
    ) -> None:
        """Join what several stretches hold of one run; fold the whole journal where that cannot be done."""
        if known.whole is None:
            try:
                done = progress.advance(known, stretches, self._with_row)
            except OSError as error:  # it is gone, or cannot be read any more: its fold says so
                done = progress.Advance()
                done.surprise = str(error.strerror or error)
            if done.surprise is None:
                self._insert("fresh", done.rows)
                late = [
                    [run_id, condition, msgspec.json.encode(packs).decode()]
                    for run_id, (condition, packs) in done.late.items()
                ]
                self._insert("late", late)
                return
            known.whole = done.surprise
            self._drop(known.file)
            self._known[known.file] = known
        known.open = {}
        rows = progress.whole_rows(source, self._now, self._is_alive)
        self._insert("fresh", [row.cells for row in rows if row.over])
        known.open = {str(row.cells[0]): [] for row in rows if not row.over}
        self.problems += [f"{p.file}: {p.what}" for p in source.problems if p.kind == "unreadable"]
        known.torn = sum(p.kind not in ("unreadable", "torn_last") for p in source.problems)

    def _with_row(self, run_ids: Iterable[str]) -> set[str]:
        found = self.connection.execute(
            "SELECT run_id FROM fresh WHERE run_id IN (SELECT unnest($1::VARCHAR[])) UNION ALL "
            "SELECT run_id FROM base_runs WHERE file NOT IN (SELECT file FROM gone) AND "
            "run_id IN (SELECT unnest($1::VARCHAR[]))",
            [list(run_ids)],
        ).fetchall()
        return {run_id for (run_id,) in found}

    def _insert(self, name: str, rows: Iterable[list[Any]]) -> None:
        rows = list(rows)
        if rows:
            self.problems += insert(self.connection, name, rows)

    def _view(self) -> None:
        """`closed`: the rows of the index with what is new, without the runs that are still open."""
        late, dropped = (
            self.connection.execute(f"SELECT count(*) FROM {name}").fetchone() != (0,)
            for name in ("late", "gone")
        )
        kept = "SELECT * FROM base_runs"
        if dropped:
            kept += " WHERE file NOT IN (SELECT file FROM gone)"
        both = f"{kept} UNION ALL SELECT * FROM fresh"
        if late:
            told = (
                "SELECT run_id, last(condition_id) AS late_id, last(packs) AS late_packs FROM late GROUP BY 1"
            )
            both = (
                "SELECT a.* REPLACE (coalesce(late_id, condition_id) AS condition_id, coalesce(error_pack, "
                "json_extract_string(late_packs, '$.' || json_quote(error_class)::VARCHAR)) AS error_pack) "
                f"FROM ({both}) a LEFT JOIN ({told}) USING (run_id)"
            )
        self.connection.execute(f"CREATE TEMP VIEW closed AS {both}")

    def _save(self) -> None:
        """Replace the index by one that holds everything. What cannot be written is only told."""
        scratch = self.path.with_name(f"index.duckdb.{os.getpid()}-{uuid.uuid4().hex[:8]}")
        run = self.connection.execute
        try:
            run(f"ATTACH {_quoted(scratch)} AS next")
            run("CREATE TABLE next.runs AS SELECT * FROM closed")
            run("CREATE TABLE next.meta AS SELECT ? AS layout", [LAYOUT])
            run("CREATE TABLE next.journals (told VARCHAR)")
            told = [[msgspec.json.encode(known).decode()] for known in self._known.values()]
            self._insert("next.journals", told)
            run("DETACH next")
            os.replace(scratch, self.path)
        except (duckdb.Error, OSError) as error:
            self.problems.append(f"the index could not be written: {_brief(error)}")
            with contextlib.suppress(duckdb.Error):
                run("DETACH next")
            for left in (scratch, scratch.with_name(scratch.name + ".wal")):
                with contextlib.suppress(OSError):
                    left.unlink(missing_ok=True)
            # Was it the disk, or is the index that is there broken in a place that was not looked at yet?
            run("SELECT count(*) FROM (SELECT DISTINCT * FROM base_runs)").fetchall()

    def _add_open(self) -> None:
        """`runs`: the closed ones and, made afresh each time, those without an end."""
        self.connection.execute(_create("unclosed"))
        by_name = {str(source.paths[0]): source for source in sources(self.ledger)}
        for known in self._known.values():
            if not known.open:
                continue
            if known.whole is None:
                try:
                    rows = progress.open_rows(known, self._now, self._is_alive)
                except OSError as error:
                    self.problems.append(f"{known.file}: cannot be read: {error.strerror or error}")
                    continue
                self._insert("unclosed", rows)
            elif known.file in by_name:
                whole = progress.whole_rows(by_name[known.file], self._now, self._is_alive)
                self._insert("unclosed", [row.cells for row in whole if not row.over])
        self.connection.execute(
            "CREATE TEMP VIEW runs AS SELECT * FROM closed UNION ALL SELECT * FROM unclosed"
        )

    @property
    def torn(self) -> int:
        """Lines that could not be read, in all journals."""
        return sum(known.torn for known in self._known.values())


def _create(name: str) -> str:
    return f"CREATE TEMP TABLE {name} ({', '.join(f'{n} {kind}' for n, kind in COLUMNS.items())})"


def _quoted(path: pathlib.Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def insert(connection: Any, name: str, rows: list[list[Any]]) -> list[str]:
    """Put rows into a table; a text for each that it does not take. Raises duckdb.Error."""
    query = f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})"
    connection.execute("BEGIN")
    try:
        connection.executemany(query, rows)
        connection.execute("COMMIT")
        return []
    except duckdb.Error:
        connection.execute("ROLLBACK")
    problems = []
    for row in rows:
        try:
            connection.execute(query, row)
        except duckdb.Error as error:
            problems.append(f"run {row[0]} has no row: {_brief(error)}")
    if len(problems) == len(rows) > 1:
        raise duckdb.Error(problems[0])
    return problems


def trouble(ledger: pathlib.Path) -> str | None:
    """Why the index of a ledger cannot be used; None for one that can, is of another version, or absent."""
    path = ledger / "index.duckdb"
    if not os.path.lexists(path):
        return None
    if not _is_file(path):
        return "no file"
    try:
        with duckdb.connect(
            str(path), read_only=True, config={"autoinstall_known_extensions": False}
        ) as found:
            if found.execute("SELECT layout FROM meta").fetchone() == (LAYOUT,):
                found.execute(f"SELECT count(*) FROM (SELECT DISTINCT {', '.join(COLUMNS)} FROM runs)")
                _progresses(found.execute("SELECT told FROM journals").fetchall())
    except (duckdb.Error, msgspec.DecodeError, TypeError, ValueError) as error:
        return _brief(error)
    return None


def _progresses(told: list[tuple[str]]) -> dict[str, Progress]:
    """Journal -> how far it was read. Raises DecodeError, TypeError, ValueError for what is damaged."""
    found = {p.file: p for p in (msgspec.json.decode(t, type=Progress) for (t,) in told)}
    if any(p.offset < 0 or p.head_end < 0 for p in found.values()):
        raise ValueError("a place in a journal that is none")
    return found


def _is_file(path: pathlib.Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _brief(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


@contextlib.contextmanager
def opened(ledger: pathlib.Path, processes: int | None = None) -> Iterator[Index]:
    """The ledger's index, up to date. One that turns out to be damaged is made again, or done without."""
    with fresh(ledger, processes) as index:
        yield index


def fresh(ledger: pathlib.Path, processes: int | None = None) -> Index:
    """The same, for the caller to close."""
    index = Index(ledger)
    try:
        try:
            index.refresh(processes)
        except Exception as error:  # noqa: BLE001 (an index is disposable, whatever is wrong with it)
            index.renew(error, processes)
    except BaseException:
        index.connection.close()
        raise
    return index
