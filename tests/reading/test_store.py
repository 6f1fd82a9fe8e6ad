"""How a person names a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagexec.reading import store
from tests.reading.fake_journal import WALL0, FakeJournal, S, cached_run


@pytest.fixture
def loaded(tmp_path: Path) -> store.Store:
    journal = FakeJournal().head()
    for name in ("aaaa1111", "aaaa2222", "bbbb3333"):
        cached_run(journal, name)
    journal.write(tmp_path)
    return store.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aaaa1111-0000-4000-8000-000000000000", "aaaa1111"),
        ("aaaa2", "aaaa2222"),
        ("b", "bbbb3333"),
        ("prompt-aaaa1111", "aaaa1111"),
        ("last", "bbbb3333"),
        ("last~0", "bbbb3333"),
        ("last~2", "aaaa1111"),
    ],
)
def test_a_run_is_found_by_each_of_its_names(loaded: store.Store, name: str, expected: str) -> None:
    assert loaded.find(name).run_id.startswith(expected)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("aaaa", "names 2 runs"),
        ("zzzz", "no run has"),
        ("", "no run has"),
        ("last~3", "only 3 runs"),
        ("last~", "no run has"),
    ],
)
def test_a_name_of_none_or_of_many_says_so(loaded: store.Store, name: str, reason: str) -> None:
    with pytest.raises(store.NoSuchRun, match=reason):
        loaded.find(name)


def test_an_empty_ledger_says_that_it_is_empty(tmp_path: Path) -> None:
    with pytest.raises(store.NoSuchRun, match="no runs yet"):
        store.load(tmp_path).find("last")


def test_runs_of_several_processes_are_in_the_order_of_wall_time(tmp_path: Path) -> None:
    early, late = FakeJournal("z-host", 1).head(), FakeJournal("a-host", 2).head(ts_wall=WALL0 + 50 * S)
    early.now = late.now = S
    cached_run(late, "late")
    cached_run(early, "early")
    late.write(tmp_path)
    early.write(tmp_path)
    assert [run.run_id[:5] for run in store.load(tmp_path).runs] == ["early", "late-"]
