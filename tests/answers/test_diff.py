"""What `diff` says besides the times."""

from __future__ import annotations

from pathlib import Path

from stagexec.answers.diff import diff
from stagexec.reading.store import load
from stagexec.record import condition
from tests.reading.fake_journal import WALL0, FakeJournal, S, cached_run, reseeded_run, tiny_run


def stored(ledger: Path, **fields: object) -> str:
    whole = condition.manifest(fields, {})
    condition.store(ledger, whole)
    return condition.condition_id(whole)


def test_condition_fields_that_differ_are_named_with_both_values(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa").know_condition(stored(tmp_path, steps=20, sampler="euler"))
    tiny_run(journal, "bbbb").know_condition(stored(tmp_path, steps=30, sampler="euler"))
    journal.write(tmp_path)
    a, b = load(tmp_path).runs
    assert diff(a, b, tmp_path).conditions == [{"field": "steps", "a": 20, "b": 30}]


def test_a_pack_that_changed_is_named(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "one.json").write_text('{"x": {"content": "1"}, "y": {"content": "2"}}')
    (tmp_path / "locks" / "two.json").write_text('{"x": {"content": "1"}, "y": {"content": "3"}}')
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa").know_condition(stored(tmp_path, custom_nodes_hash="one"))
    tiny_run(journal, "bbbb").know_condition(stored(tmp_path, custom_nodes_hash="two"))
    journal.write(tmp_path)
    a, b = load(tmp_path).runs
    assert diff(a, b, tmp_path).conditions[0]["packs"] == ["y"]


def test_a_manifest_that_is_not_in_the_ledger_is_a_warning(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa").know_condition("ab" * 32)
    tiny_run(journal, "bbbb")
    journal.write(tmp_path)
    a, b = load(tmp_path).runs
    told = diff(a, b, tmp_path).warnings
    assert "the manifest of run A's condition is not in this ledger" in told
    assert "the condition of run B is not known" in told


def test_residency_tells_what_was_there_already(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    for name, resident in (("aaaa", False), ("bbbb", True)):
        run = tiny_run(journal, name)
        model = {"class": "SD15", "bytes": 100, "resident": resident}
        journal.add("mark", run, name="model_load", detail={"models": [model]})
    journal.write(tmp_path)
    a, b = load(tmp_path).runs
    told = diff(a, b, tmp_path).residency
    assert told["a"]["SD15"] == {"asked": 1, "resident": 0, "bytes": 100}
    assert told["b"]["SD15"]["resident"] == 1


def test_node_lists_are_compared(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    cached_run(journal, "bbbb")
    journal.write(tmp_path)
    a, b = load(tmp_path).runs
    told = diff(a, b, tmp_path)
    assert told.lists["executed_nodes"] == {"only_a": ["1", "2", "3", "4", "5"], "only_b": []}
    assert "sampl" not in told.verdict.replace("nothing was sampled", "")


def test_two_processes_and_two_machines_are_warned_of(tmp_path: Path) -> None:
    first, second = FakeJournal("one", 1).head(), FakeJournal("two", 2).head(ts_wall=WALL0 + 50 * S)
    tiny_run(first, "aaaa")
    reseeded_run(second, "bbbb")
    first.write(tmp_path)
    second.write(tmp_path)
    a, b = load(tmp_path).runs
    told = diff(a, b, tmp_path).warnings
    assert any("two clocks" in warning for warning in told)
    assert "the machines differ: one and two" in told
