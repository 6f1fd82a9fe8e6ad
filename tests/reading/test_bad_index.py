"""An index is disposable: whatever is wrong with it is made again, or done without, by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner

from stagexec.cli import command
from stagexec.reading import index, relation
from stagexec.reading.audit import audit
from tests.reading import damaged


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger with a sound index; small ones have none otherwise."""
    monkeypatch.setattr(index, "SAVE_FROM_BYTES", 0)
    monkeypatch.setattr(relation, "SMALL", 0)
    damaged.put(tmp_path, damaged.lines_of(damaged.whole().events))
    damaged.manifest(tmp_path)
    assert count(tmp_path) == 6
    assert (tmp_path / "index.duckdb").is_file()
    return tmp_path


def count(ledger: Path) -> int:
    """How many runs the verbs see, all columns of them read."""
    with relation.of_ledger(ledger) as runs:
        return len(runs.rows())


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def symlink_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("not a database at all\n" * 9000)


def half(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def no_blocks(path: Path) -> None:
    """The headers are whole, all that they speak of is not."""
    data = path.read_bytes()
    path.write_bytes(data[:12288] + bytes(len(data) - 12288))


def newer(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[12:20] = (2**40).to_bytes(8, "little")  # DuckDB's storage version
    path.write_bytes(bytes(data))


def change(path: Path, *queries: str) -> None:
    connection = duckdb.connect(str(path))
    for query in queries:
        connection.execute(query)
    connection.close()


def no_tables(path: Path) -> None:
    path.unlink()
    change(path, "CREATE TABLE something (a INTEGER)")


def other_columns(path: Path) -> None:
    change(path, "DROP TABLE runs", "CREATE TABLE runs AS SELECT 'x' AS run_id, 5 AS total_ns")


def no_json(path: Path) -> None:
    change(path, "UPDATE journals SET told = '{\"file\": 5}'")


def places_below_nought(path: Path) -> None:
    change(path, "UPDATE journals SET told = replace(told, '\"offset\":', '\"offset\":-')")


DAMAGES: list[Callable[[Path], None]] = [
    directory,
    symlink_loop,
    empty,
    text,
    half,
    no_blocks,
    newer,
    no_tables,
    other_columns,
    no_json,
    places_below_nought,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
def test_a_damaged_index_costs_no_run_and_the_audit_names_it_until_it_is_made_again(
    ledger: Path, damage: Callable[[Path], None]
) -> None:
    path = ledger / "index.duckdb"
    damage(path)
    named = [finding.severity for finding in audit(ledger) if finding.kind == "index_damaged"]
    assert named == ["note"]
    assert count(ledger) == 6
    again = [finding for finding in audit(ledger) if finding.kind == "index_damaged"]
    assert bool(again) == (damage is directory)  # which is not ours to remove


def test_a_block_that_only_some_query_reads_is_found_by_that_query(ledger: Path) -> None:
    path = ledger / "index.duckdb"
    sound = path.read_bytes()
    for start in range(12288, len(sound), 16384):
        data = bytearray(sound)
        data[start : start + 64] = b"\xa5" * 64
        path.write_bytes(bytes(data))
        assert count(ledger) == 6


@pytest.mark.skipif(os.name == "nt", reason="DuckDB's lock is another one there")
def test_an_index_that_another_process_holds_is_done_without(ledger: Path) -> None:
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(ledger / "index.duckdb")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == b"held"
        assert count(ledger) == 6
    finally:
        holder.communicate(timeout=60)


def test_an_index_that_cannot_be_written_is_told_and_leaves_nothing_behind(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ledger / "index.duckdb").unlink()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index.os, "replace", full)
    with relation.of_ledger(ledger) as runs:
        assert len(runs.rows()) == 6
        assert any("No space left" in problem for problem in runs.problems)
    assert [path.name for path in ledger.iterdir() if "index" in path.name] == []


def test_without_a_place_for_scratch_files_the_journals_are_folded(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index.tempfile, "TemporaryDirectory", full)
    with relation.of_ledger(ledger) as runs:
        assert len(runs.rows()) == 6
        assert any("no index can be made" in problem for problem in runs.problems)


def test_a_verb_on_a_ledger_with_a_damaged_index_answers_and_says_so(ledger: Path) -> None:
    half(ledger / "index.duckdb")
    done = CliRunner().invoke(command, ["failures", "--ledger", str(ledger), "--json"])
    assert done.exit_code == 0
    assert "index" in done.stderr


def test_a_journal_that_was_cut_and_has_grown_beyond_its_old_size_is_read_again(ledger: Path) -> None:
    journal = damaged.whole()
    path = damaged.put(ledger, damaged.lines_of(journal.events))
    assert count(ledger) == 6
    other = damaged.whole(5151)
    for event in other.events:
        if event["event_type"] == "process_start":
            event["argv"] = ["x"] * 1000
    with path.open("r+b") as stream:  # the same file, so the same inode
        stream.truncate(0)
        stream.write(b"".join(damaged.lines_of(other.events)))
    with relation.of_ledger(ledger) as runs:
        assert {row["run_id"][:2] for row in runs.rows()} == {"51"}
