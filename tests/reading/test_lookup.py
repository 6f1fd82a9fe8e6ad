"""One run of a large ledger is the same run."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagexec.reading import index, lookup, relation, rows, store
from tests.reading.fake_journal import FakeJournal, FakeRun, cached_run, tiny_run
from tests.reading.test_index import compact, put, spaced


@pytest.fixture(params=[compact, spaced])
def ledger(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    journal = FakeJournal().head()
    for number in range(5):
        tiny_run(journal, f"run{number}").identify({"1": "d"})
        cached_run(journal, f"cached{number}").know_condition(f"{number:064x}")
    open_run = FakeRun(journal, "open").start()
    open_run.switch("sampling").spend(7).flush()
    journal.heartbeat(open_run)
    put(tmp_path, request.param(journal))
    monkeypatch.setattr(relation, "SMALL", 0)
    monkeypatch.setattr(index, "SAVE_FROM_BYTES", 0)
    return tmp_path


def test_every_run_is_read_alone_as_it_is_read_with_all_others(ledger: Path) -> None:
    for run in store.load(ledger).runs:
        alone = lookup.Large(ledger).find(run.run_id)
        assert rows.detail(alone) == {**rows.detail(run), "seams": alone.process.seams}


def test_runs_before_it_come_along_and_are_of_its_process(ledger: Path) -> None:
    large = lookup.Large(ledger)
    chosen = large.find("run4")
    assert {run.run_id[:4] for run in large.runs} >= {"run0", "run3", "run4"}
    assert all(run.process is chosen.process for run in large.runs)


@pytest.mark.parametrize(
    ("name", "reason"), [("zzzz", "no run has"), ("run", "names 5 runs"), ("last~99", "only")]
)
def test_names_of_none_or_many_say_so(ledger: Path, name: str, reason: str) -> None:
    with pytest.raises(store.NoSuchRun, match=reason):
        lookup.Large(ledger).find(name)


def test_last_counts_from_the_newest(ledger: Path) -> None:
    loaded = store.load(ledger)
    for name in ("last", "last~1", "last~4"):
        assert lookup.Large(ledger).find(name).run_id == loaded.find(name).run_id
