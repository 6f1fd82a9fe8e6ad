"""Journal files as they really are: torn, foreign, newer, unreadable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stagexec.reading import store
from stagexec.reading.journal import Problem, sources
from tests.reading.fake_journal import FakeJournal, FakeRun, cached_run, tiny_run


def read(ledger: Path) -> tuple[list[str], list[Problem]]:
    """Names of the events and the problems of a ledger with one journal."""
    (source,) = sources(ledger)
    return [type(event).__name__ for _, _, event in source.read()], source.problems


def test_a_ledger_without_a_journal_has_no_sources(tmp_path: Path) -> None:
    assert sources(tmp_path) == []


def test_journals_of_all_days_are_found_and_other_files_are_left_alone(tmp_path: Path) -> None:
    FakeJournal(pid=1).head().write(tmp_path, "2025-10-09")
    FakeJournal(pid=2).head().write(tmp_path, "2025-10-10")
    (tmp_path / "journal" / "2025-10-09" / "notes.txt").write_text("no journal")
    (tmp_path / "journal" / "stray.jsonl").write_text("{}\n")
    assert [len(source.paths) for source in sources(tmp_path)] == [1, 1]


def test_one_process_over_midnight_is_one_source(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    journal.write(tmp_path, "2025-10-09")
    journal.events = []
    cached_run(journal, "aaaa")
    journal.write(tmp_path, "2025-10-10")
    (run,) = store.load(tmp_path).runs
    assert (run.outcome, run.process.timing) == ("success", "baseline")


def test_a_torn_last_line_is_noted_and_the_rest_is_read(tmp_path: Path) -> None:
    path = FakeJournal().head().write(tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    names, problems = read(tmp_path)
    assert names == ["ProcessStart", "HostFacts"]
    assert [(p.kind, p.line) for p in problems] == [("torn_last", 3)]


def test_a_torn_line_in_the_middle_is_skipped_and_remembered(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    path = journal.write(tmp_path)
    good = journal.lines()
    path.write_bytes(good[0] + good[1][:20] + b"\n" + good[2])
    names, problems = read(tmp_path)
    assert names == ["ProcessStart", "Seams"]
    assert [(p.kind, p.line) for p in problems] == [("torn_middle", 2)]


@pytest.mark.parametrize("rubbish", [b"\x00" * 40, b'"\xff\xfe"', b"[" * 100_000, b'{"a": 1} {"b": 2}'])
def test_rubbish_in_a_line_costs_that_line_alone(tmp_path: Path, rubbish: bytes) -> None:
    journal = FakeJournal().head()
    path = journal.write(tmp_path)
    path.write_bytes(rubbish + b"\n" + b"".join(journal.lines()))
    names, problems = read(tmp_path)
    assert names == ["ProcessStart", "HostFacts", "Seams"]
    assert [p.kind for p in problems] == ["torn_middle"]


def test_blank_lines_mean_nothing(tmp_path: Path) -> None:
    path = FakeJournal().head().write(tmp_path)
    path.write_bytes(b"\n" + path.read_bytes() + b"\n\n")
    assert read(tmp_path) == (["ProcessStart", "HostFacts", "Seams"], [])


def test_an_unknown_event_type_is_a_note_and_the_run_is_read(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    journal.add("teleport", speed=3)
    cached_run(journal, "aaaa")
    journal.write(tmp_path)
    loaded = store.load(tmp_path)
    assert [run.outcome for run in loaded.runs] == ["success"]
    assert [(p.kind, p.what) for p in loaded.problems] == [("unknown_event", "teleport")]


def test_an_unknown_field_of_a_known_event_means_nothing(tmp_path: Path) -> None:
    FakeJournal().head(colour="blue").write(tmp_path)
    names, problems = read(tmp_path)
    assert (names[0], problems) == ("ProcessStart", [])


def test_a_newer_format_is_read_as_far_as_known_with_a_note(tmp_path: Path) -> None:
    journal = FakeJournal().head(format_version=99)
    cached_run(journal, "aaaa")
    journal.write(tmp_path)
    loaded = store.load(tmp_path)
    assert [run.outcome for run in loaded.runs] == ["success"]
    assert [p.kind for p in loaded.problems] == ["newer_format"]


def test_a_known_event_of_the_wrong_shape_is_named_with_its_field(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    journal.add("run_started", startup_class=7)
    journal.write(tmp_path)
    (problem,) = read(tmp_path)[1]
    assert (problem.kind, problem.line) == ("malformed", 4)
    assert "startup_class" in problem.what


def test_columns_of_different_lengths_are_left_out_with_a_note(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa")
    run.spend(5).start().spend(5).flush()
    journal.events[-1]["stage"].append("sampling")
    journal.write(tmp_path)
    (found,) = store.load(tmp_path).runs
    assert any("different lengths" in note for note in found.notes)


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    good = FakeJournal(pid=1).head()
    cached_run(good, "aaaa")
    good.write(tmp_path)
    (tmp_path / "journal" / "2025-10-09" / "folder-2-3.jsonl").mkdir()
    loaded = store.load(tmp_path)
    assert len(loaded.runs) == 1
    (problem,) = loaded.problems
    assert problem.kind == "unreadable"
    assert problem.file.endswith("folder-2-3.jsonl")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="this user may read everything")
def test_a_day_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    path = FakeJournal().head().write(tmp_path)
    path.parent.chmod(0)
    try:
        assert [p.kind for p in store.load(tmp_path).problems] == ["unreadable"]
    finally:
        path.parent.chmod(0o755)


def test_a_head_that_was_written_again_changes_nothing(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    later, journal.now = journal.now, 0
    journal.head()
    journal.now = later
    tiny_run(journal, "bbbb")
    journal.write(tmp_path)
    walls = [run.process.wall_ns(run.accepted_ns) for run in store.load(tmp_path).runs]
    assert None not in walls
    assert walls == sorted(walls, key=lambda wall: wall or 0)
