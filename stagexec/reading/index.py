"""The ledger's disposable index: a DuckDB file of rows, read on from where it stopped.

Many may read it while servers write their journals: the file is only ever replaced whole, and what has come
since is kept in memory beside it. Missing, old or damaged, it is made anew.
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

from stagexec.reading import alive, progress, scan, table, workers
from stagexec.reading.fold import Alive
from stagexec.reading.journal import Source, sources
from stagexec.reading.progress import Progress

VERSION = 1
"""Of this file's own layout; the columns count besides."""

SAVE_FROM_BYTES = 8 * 1024**2
"""Less than this is read again by the next reader: replacing the index would cost more."""

COLUMNS = {**table.COLUMNS, **table.PLACE}
LAYOUT = f"{VERSION} {','.join(f'{name} {kind}' for name, kind in COLUMNS.items())}"
ORDER = "coalesce(accepted_wall_ns, 0), file, first_byte, run_id"
"""Oldest first; runs whose time is not known come first."""

NEWEST_FIRST = "coalesce(accepted_wall_ns, 0) DESC, file DESC, first_byte DESC, run_id DESC"


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
        self._known: dict[str, Progress] = {}
        self.connection = duckdb.connect(config={"autoinstall_known_extensions": False})
        self.connection.execute("SET preserve_insertion_order=false")

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
        if size >= SAVE_FROM_BYTES:
            self._save()
        self._add_open()

    def _attach(self) -> bool:
        """Use the index that is there, if it is sound and of this layout."""
        if not self.path.is_file():
            return False
        try:
            self.connection.execute(f"ATTACH {_quoted(self.path)} AS kept (READ_ONLY)")
            layout = self.connection.execute("SELECT layout FROM kept.meta").fetchone()
            told = self.connection.execute("SELECT told FROM kept.journals").fetchall()
            self.connection.execute("SELECT count(run_id), max(total_ns) FROM kept.runs").fetchall()
            if layout != (LAYOUT,):
                raise duckdb.Error("another layout")
            self._known = {p.file: p for p in (msgspec.json.decode(t, type=Progress) for (t,) in told)}
        except (duckdb.Error, msgspec.DecodeError, TypeError):
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
        self._load({job.rows_file: job.file for job in jobs})
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

    def _take(
        self, source: Source, known: Progress, jobs: list[scan.Job], stretches: list[scan.Found]
    ) -> None:
        """Join what several stretches hold of one run; fold the whole journal where that cannot be done."""
        if known.whole is None:
            done = progress.advance(known, stretches, self._has_row)
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

    def _has_row(self, run_id: str) -> bool:
        found = self.connection.execute(
            "SELECT EXISTS (SELECT 1 FROM fresh WHERE run_id = $1) OR "
            "EXISTS (SELECT 1 FROM base_runs WHERE run_id = $1)",
            [run_id],
        ).fetchone()
        return bool(found and found[0])

    def _insert(self, name: str, rows: Iterable[list[Any]]) -> None:
        rows = list(rows)
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            self.connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)

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
            self.problems.append(f"the index could not be written: {error}")
            with contextlib.suppress(duckdb.Error):
                run("DETACH next")
            for left in (scratch, scratch.with_name(scratch.name + ".wal")):
                left.unlink(missing_ok=True)

    def _add_open(self) -> None:
        """`runs`: the closed ones and, made afresh each time, those without an end."""
        self.connection.execute(_create("unclosed"))
        by_name = {str(source.paths[0]): source for source in sources(self.ledger)}
        for known in self._known.values():
            if not known.open:
                continue
            if known.whole is None:
                self._insert("unclosed", progress.open_rows(known, self._now, self._is_alive))
            elif known.file in by_name:
                rows = progress.whole_rows(by_name[known.file], self._now, self._is_alive)
                self._insert("unclosed", [row.cells for row in rows if not row.over])
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


@contextlib.contextmanager
def opened(ledger: pathlib.Path, processes: int | None = None) -> Iterator[Index]:
    """The ledger's index, up to date. An index that turns out to be damaged is removed and made anew."""
    with _fresh(ledger, processes) as index:
        yield index


def _fresh(ledger: pathlib.Path, processes: int | None) -> Index:
    for last in (False, True):
        index = Index(ledger)
        try:
            index.refresh(processes)
            return index
        except duckdb.Error:
            index.connection.close()
            if last:
                raise
            index.path.unlink(missing_ok=True)
    raise AssertionError("unreachable")
