"""One run of a large ledger is the same run."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagexec.answers import diagnose
from stagexec.reading import index, lookup, relation, rows, store
from tests.reading.fake_journal import MS, FakeJournal, FakeRun, S, cached_run, tiny_run
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


def test_what_a_first_run_cost_is_told_of_the_first_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = FakeJournal().head()
    for number in range(8):
        tiny_run(journal, f"run{number}", load_ns=(9 * S if number == 0 else MS))
        for pause in range(3):
            cached_run(journal, f"pause{number}{pause}")
    put(tmp_path, compact(journal))
    monkeypatch.setattr(relation, "SMALL", 0)
    monkeypatch.setattr(lookup, "BEFORE", 5)
    whole = store.load(tmp_path).runs
    for run in whole:
        large = lookup.Large(tmp_path)
        alone = large.find(run.run_id)
        assert diagnose.diagnose(alone, large.runs) == diagnose.diagnose(run, whole), run.run_id


def test_samples_of_the_device_come_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = FakeJournal().head()
    device = {"uuid": "GPU-1", "name": "a card"}
    journal.add("nvml_facts", period_ns=S, reason=None, devices=[device])
    for name in ("run0", "run1"):
        journal.add("nvml_sample", uuid="GPU-1", used_bytes=1, energy_mj=journal.now)
        tiny_run(journal, name)
        journal.add("nvml_sample", uuid="GPU-1", used_bytes=2, energy_mj=journal.now)
    put(tmp_path, compact(journal))
    monkeypatch.setattr(relation, "SMALL", 0)
    for run in store.load(tmp_path).runs:
        told = rows.detail(lookup.Large(tmp_path).find(run.run_id))["nvml"]
        assert told == rows.detail(run)["nvml"]
        assert told["devices"]["GPU-1"]["energy_mj"] is None  # one sample after its start: no stretch of time


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
