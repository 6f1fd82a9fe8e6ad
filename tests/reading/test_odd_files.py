"""Things that lie where journals and manifests lie, and are none: each costs itself and is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stagexec.answers.diff import diff
from stagexec.reading import conditions, index, relation, rows, store
from stagexec.reading.audit import audit
from tests.reading import damaged
from tests.reading.fake_journal import FakeJournal, FakeRun, tiny_run

DAY = "2025-10-09"


def directory(day: Path) -> Path:
    path = day / "elsewhere-1-1.jsonl"
    path.mkdir()
    return path


def symlink_loop(day: Path) -> Path:
    path = day / "elsewhere-1-1.jsonl"
    path.symlink_to(path)
    return path


def broken_link(day: Path) -> Path:
    path = day / "elsewhere-1-1.jsonl"
    path.symlink_to(day / "nothing")
    return path


def pipe(day: Path) -> Path:
    path = day / "elsewhere-1-1.jsonl"
    os.mkfifo(path)  # opened, it would never answer
    return path


def no_text(day: Path) -> Path:
    path = os.fsencode(day) + b"/else\xffwhere-1-1.jsonl"
    with open(path, "wb") as out:
        out.write(b"".join(FakeJournal().head().lines()))
    return Path(os.fsdecode(path))


def unreadable(day: Path) -> Path:
    path = day / "elsewhere-1-1.jsonl"
    path.write_bytes(b"{}\n")
    path.chmod(0)
    return path


ROOT = os.name == "nt" or os.geteuid() == 0

THINGS: list[Callable[[Path], Path]] = [directory, symlink_loop, broken_link, pipe, no_text]
if not ROOT:
    THINGS.append(unreadable)


@pytest.mark.skipif(os.name == "nt", reason="these files cannot be made there")
@pytest.mark.parametrize("thing", THINGS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("small", [0, 10**9])
def test_what_is_no_journal_is_named_and_the_journals_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thing: Callable[[Path], Path], small: int
) -> None:
    monkeypatch.setattr(relation, "SMALL", small)
    monkeypatch.setattr(index, "SAVE_FROM_BYTES", 0)
    damaged.put(tmp_path, damaged.lines_of(damaged.whole().events))
    thing(tmp_path / "journal" / DAY)
    for _ in range(2):  # the second time by the index that the first one left
        with relation.of_ledger(tmp_path) as runs:
            assert len(runs.rows()) == 6
            assert any("-1-1.jsonl" in problem for problem in runs.problems)
    assert [one.kind for one in audit(tmp_path) if "-1-1.jsonl" in one.file] == ["unreadable"]
    assert len(store.load(tmp_path).runs) == 6


def test_an_empty_file_has_no_runs_and_no_finding(tmp_path: Path) -> None:
    damaged.put(tmp_path, [])
    assert store.load(tmp_path).runs == []
    assert audit(tmp_path) == []


def test_zero_bytes_that_a_power_cut_left_cost_no_line(tmp_path: Path) -> None:
    lines = damaged.lines_of(damaged.whole().events)
    at = next(n for n, line in enumerate(lines) if b"run_closed" in line)
    damaged.put(tmp_path, [*lines[:at], bytes(4096) + lines[at], *lines[at + 1 :]])
    assert next(run.outcome for run in store.load(tmp_path).runs) == "success"
    assert ("malformed", at + 1) in [(one.kind, one.line) for one in audit(tmp_path)]


def test_a_line_as_long_as_a_film_costs_itself(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    journal.add("mark", name="long", detail="x" * 30_000_000)
    tiny_run(journal, "bbbb")
    damaged.put(tmp_path, damaged.lines_of(journal.events))
    with relation.of_ledger(tmp_path) as runs:
        assert [row["outcome"] for row in runs.rows()] == ["success", "success"]


def test_times_whose_sum_no_table_holds_leave_a_row_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa").start()
    columns = next(event for event in journal.events if event["event_type"] == "cached")
    columns.update(event_type="segments", open=None, source="loop")
    count, most = 9, 2**60
    columns.update(stage=["sampling"] * count, part=[None] * count, visit=[None] * count, seam=[None] * count)
    columns.update(start_ns=[-most] * count, end_ns=[most] * count)
    run.open = None
    journal.add("run_closed", run, outcome="success", cause=None)
    tiny_run(journal, "bbbb")
    damaged.put(tmp_path, damaged.lines_of(journal.events))
    for small in (0, 10**9):
        monkeypatch.setattr(relation, "SMALL", small)
        with relation.of_ledger(tmp_path) as runs:
            found = {
                row["run_id"][:4]: (row["total_ns"] is None, row["sampling_ns"] is None)
                for row in runs.rows()
            }
        assert found == {"aaaa": (True, True), "bbbb": (False, False)}
    assert "sum" not in [one.kind for one in audit(tmp_path) if one.run_id and one.run_id[:4] == "bbbb"]


# ---- conditions --------------------------------------------------------------------------------------

MANIFESTS = {
    "empty": b"",
    "no object": b"[]",
    "fields that are none": b'{"fields": 5}',
    "no UTF-8": b'{"fields": {"a": "\xff"}}',
    "nested": b'{"fields": {"a": ' + b"[" * 5000 + b"]" * 5000 + b"}}",
    "half": b'{"fields": {"a": ',
}


@pytest.mark.parametrize("content", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_a_manifest_that_is_damaged_is_an_error_of_the_audit_and_of_nothing_else(
    tmp_path: Path, content: bytes
) -> None:
    damaged.put(tmp_path, damaged.lines_of(damaged.whole().events))
    damaged.manifest(tmp_path)
    path = tmp_path / "conditions" / f"{damaged.CONDITION}.json"
    path.write_bytes(content)
    assert conditions.manifest(tmp_path, damaged.CONDITION) is None
    (named,) = [one for one in audit(tmp_path) if one.kind == "manifest_damaged"]
    assert named.severity == "error"
    a, b, *_ = store.load(tmp_path).runs
    a.condition_id = "cd" * 32
    assert any("manifest" in warning for warning in diff(a, b, tmp_path).warnings)


@pytest.mark.parametrize("name", ["../../etc/passwd", "a\x00b", "x" * 5000, "", "nul/"])
def test_an_id_that_is_no_name_of_a_file_has_no_manifest(tmp_path: Path, name: str) -> None:
    assert conditions.manifest(tmp_path, name) is None
    assert conditions.trouble(tmp_path, name) == "manifest_missing"


# ---- words that this version does not know -----------------------------------------------------------


def test_words_of_a_newer_version_are_kept_as_they_are(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = tiny_run(journal, "aaaa")
    for event in journal.events:
        if event["event_type"] == "segments" and "sampling" in event["stage"]:
            event["stage"] = ["dreaming" if stage == "sampling" else stage for stage in event["stage"]]
        if event["event_type"] == "run_closed":
            event.update(outcome="mostly_harmless", cause="the_weather")
    damaged.put(tmp_path, damaged.lines_of(journal.events))
    (found,) = store.load(tmp_path).runs
    told = rows.summary(found)
    assert (told["run_id"], told["outcome"], told["cause"]) == (run.run_id, "mostly_harmless", "the_weather")
    assert told["stages"]["dreaming"] > 0
    assert sum(told["stages"].values()) == told["total_ns"]
    assert {one.kind for one in audit(tmp_path)} == {"unknown_stage", "unknown_word"}
