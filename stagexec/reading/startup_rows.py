"""The startup classes of rows in DuckDB: what the order of a process's runs adds to each row by itself."""

from __future__ import annotations

from typing import Any

from stagexec.reading import startup

KEPT = ("startup_raw", "startup_class", "models")

ROWS = (
    "SELECT file, run_id, startup_raw, startup_class, models FROM ({all}) WHERE started_ns IS NOT NULL AND "
    "file IN (SELECT unnest($1::VARCHAR[])) ORDER BY file, started_ns, first_byte, run_id"
)

NEEDED = (
    "SELECT file, bool_or(startup_class IN ('model_cold_process_warm', 'model_switch_A_B_A')) OR "
    "arg_min(startup_class, started_ns) FILTER (startup_class <> 'cache_hit_rerun') <> 'process_cold' "
    "AND bool_or(startup_raw = 'process_cold') FROM ({all}) WHERE started_ns IS NOT NULL AND file IN "
    "(SELECT file FROM fresh UNION SELECT file FROM unclosed) GROUP BY file"
)
"""Journals in which the order of the runs can change a class: one was loaded into, or did not begin cold."""


def settle(connection: Any) -> None:
    """Put the classes right in `fresh` and `unclosed`; the rows of `base_runs` are right already.

    Raises duckdb.Error.
    """
    every = " UNION ALL ".join(
        f"SELECT file, run_id, started_ns, first_byte, startup_raw, startup_class, models FROM {name}"
        for name in ("base_runs WHERE file NOT IN (SELECT file FROM gone)", "fresh", "unclosed")
    )
    files = [file for file, is_needed in connection.execute(NEEDED.format(all=every)).fetchall() if is_needed]
    if not files:
        return
    changed = []
    history, of = startup.History(), None
    for file, run_id, raw, name, models in connection.execute(ROWS.format(all=every), [files]).fetchall():
        if file != of:
            history, of = startup.History(), file
        facts = startup.from_cell(models)
        found = history.take(run_id, raw, startup.own_class(name, facts), facts)
        if found.name != name or found.between is not None:
            changed.append((file, run_id, found.name, found.between))
    if not changed:
        return
    columns = [list(column) for column in zip(*changed, strict=True)]
    names = ("file", "run_id", "name", "before")
    lists = ", ".join(f"unnest(${at}::VARCHAR[]) AS {name}" for at, name in enumerate(names, 1))
    connection.execute(f"CREATE TEMP TABLE classes AS SELECT {lists}", columns)
    for name in ("fresh", "unclosed"):
        connection.execute(
            f"UPDATE {name} SET startup_class = c.name, startup_between = c.before FROM classes c "
            f"WHERE {name}.run_id = c.run_id AND {name}.file = c.file"
        )
    connection.execute("DROP TABLE classes")
