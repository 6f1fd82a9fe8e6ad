"""The startup class of a run is what the journal of its process shows, by both ways of reading."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from stagexec.reading import index, lookup, relation, startup, store, tail
from tests.reading.fake_journal import MS, TINY, FakeJournal, FakeRun, S, cached_run

HASHES = {"A": "aa" * 32, "B": "bb" * 32}


def model(name: str, identity: int, resident: bool) -> dict[str, Any]:
    return {"class": "SD15", "bytes": 1000, "id": identity, "resident": resident, "name": name}


def load_run(
    journal: FakeJournal,
    name: str,
    work: str,
    *,
    read: bool = False,
    resident: bool = True,
    identity: int = 1,
    startup_class: str = "warm",
    file: bool = True,
    evict_ns: int = 0,
) -> FakeRun:
    """A run of workflow A or B whose checkpoint is read, uploaded, or there already."""
    run = FakeRun(journal, name, TINY, prompt_hash=HASHES[work])
    run.spend(MS).start(startup_class, cached=() if read else ("1", "2"))
    if evict_ns:
        run.switch("executor_overhead", "eviction").spend(evict_ns)
    if read:
        run.switch("model_load_residency", "read", 1, "read_weights", ("1", "CheckpointLoaderSimple"))
        run.spend(300 * MS)
        if file:
            journal.add("mark", run, name="weights_read", detail={"file": f"file{work}", "bytes": 1000})
        run.visit(1, "1", "CheckpointLoaderSimple", [("node_other", MS)])
    journal.add("mark", run, name="model_load", detail={"models": [model(work, identity, resident)]})
    run.switch("model_load_residency", "upload", 2, "upload_models", ("3", "KSampler")).spend(5 * MS)
    run.visit(2, "3", "KSampler", [("sampling", S)]).visit(3, "5", "SaveImage", [("native_materialize", MS)])
    return run.artifact("5").execute(outputs={"5": 1}).spend(MS).close()


def classes(journal: FakeJournal, ledger: Path) -> list[tuple[str | None, str | None]]:
    """(class, run between) of each run, the same by the fold, by the index, and by who follows the file."""
    path = journal.write(ledger)
    folded = [
        (run.startup_class, run.startup.between if run.startup else None) for run in store.load(ledger).runs
    ]
    with index.opened(ledger, 1) as found:
        rows = relation.Runs(found.connection, []).rows()
    assert [(row["startup_class"], row["startup_between"]) for row in rows] == folded
    live = [(one.row["startup_class"], one.row["startup_between"]) for one in tail.Tail(path).poll()]
    closed = [row for row, one in zip(folded, rows, strict=True) if one["outcome"] not in (None, "lost")]
    assert live == closed
    return folded


def names(journal: FakeJournal, ledger: Path) -> list[str | None]:
    return [name for name, _ in classes(journal, ledger)]


def test_first_again_reseeded_other_and_back_are_five_classes(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    load_run(journal, "aaaa", "A", read=True, resident=False, startup_class="process_cold")
    cached_run(journal, "bbbb")
    load_run(journal, "cccc", "A")
    load_run(journal, "dddd", "B", read=True, resident=False, identity=2)
    load_run(journal, "eeee", "A", read=True, resident=False, identity=3)
    found = classes(journal, tmp_path)
    assert [name for name, _ in found] == [
        startup.COLD,
        startup.CACHED,
        startup.RECOMPUTED,
        startup.LOADED,
        startup.SWITCHED,
    ]
    assert found[-1][1] == "dddd-0000-4000-8000-000000000000"


def test_a_model_of_like_class_and_size_that_was_never_there_is_no_switch(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    load_run(journal, "aaaa", "A", read=True, resident=False, startup_class="process_cold")
    load_run(journal, "bbbb", "A")
    load_run(journal, "cccc", "B", read=True, resident=False, identity=1)
    assert names(journal, tmp_path)[-1] == startup.LOADED


def test_a_load_after_memory_was_freed_by_hand_is_no_switch(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    load_run(journal, "aaaa", "A", read=True, resident=False, startup_class="process_cold")
    load_run(journal, "bbbb", "A")
    load_run(journal, "cccc", "A", read=True, resident=False, identity=7)
    assert names(journal, tmp_path)[-1] == startup.LOADED


def test_a_load_after_an_eviction_under_pressure_is_a_switch_without_a_run_between(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    load_run(journal, "aaaa", "A", read=True, resident=False, startup_class="process_cold")
    load_run(journal, "bbbb", "A", evict_ns=150 * MS)
    load_run(journal, "cccc", "A", read=True, resident=False, identity=7)
    assert classes(journal, tmp_path)[-1] == (startup.SWITCHED, None)


def test_a_model_that_only_left_the_device_is_a_switch_when_it_comes_back(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    load_run(journal, "aaaa", "A", read=True, resident=False, identity=1, startup_class="process_cold")
    load_run(journal, "bbbb", "B", read=True, resident=False, identity=2)
    load_run(journal, "cccc", "A", resident=False, identity=1)
    assert names(journal, tmp_path)[-1] == startup.SWITCHED


def test_a_journal_without_names_of_files_tells_a_switch_by_the_prompt(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    load_run(journal, "aaaa", "A", read=True, resident=False, file=False, startup_class="process_cold")
    load_run(journal, "bbbb", "B", read=True, resident=False, file=False, identity=2)
    load_run(journal, "cccc", "A", read=True, resident=False, file=False, identity=3)
    assert names(journal, tmp_path) == [startup.COLD, startup.LOADED, startup.SWITCHED]


def test_a_run_that_computed_nothing_leaves_the_cold_start_to_the_next(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    FakeRun(journal, "aaaa", TINY).start("process_cold").execute().close("failed", "missing_node")
    load_run(journal, "bbbb", "A", read=True, resident=False)
    assert names(journal, tmp_path) == [None, startup.COLD]


def test_a_run_that_never_started_has_no_class(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    FakeRun(journal, "aaaa", TINY).spend(S).close("cancelled", "user_cancel")
    assert names(journal, tmp_path) == [None]


def test_an_index_that_is_read_on_gives_the_class_that_a_whole_reading_gives(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    load_run(journal, "aaaa", "A", read=True, resident=False, startup_class="process_cold")
    load_run(journal, "bbbb", "B", read=True, resident=False, identity=2)
    journal.write(tmp_path)
    with index.opened(tmp_path, 1) as found:
        found._save()
    load_run(journal, "cccc", "A", read=True, resident=False, identity=3)
    assert names(journal, tmp_path) == [startup.COLD, startup.LOADED, startup.SWITCHED]


def test_a_run_looked_up_alone_has_the_class_of_its_row(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    load_run(journal, "aaaa", "A", read=True, resident=False, startup_class="process_cold")
    for at in range(30):
        load_run(journal, f"b{at:03}", "B", read=at == 0, resident=at > 0, identity=2)
    load_run(journal, "cccc", "A", read=True, resident=False, identity=3)
    journal.write(tmp_path)
    assert lookup.Large(tmp_path).find("cccc").startup_class == startup.SWITCHED


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_runs_gives_one_class_by_every_way_of_reading(seed: int, tmp_path: Path) -> None:
    random_ = random.Random(seed)
    journal = FakeJournal().head()
    for at in range(random_.randrange(2, 9)):
        if random_.random() < 0.2:
            cached_run(journal, f"r{at:03}")
            continue
        read = random_.random() < 0.5
        load_run(
            journal,
            f"r{at:03}",
            random_.choice("AB"),
            read=read,
            resident=not read and random_.random() < 0.7,
            identity=random_.randrange(3),
            startup_class="warm" if at else "process_cold",
            file=random_.random() < 0.5,
            evict_ns=random_.choice((0, 0, 200 * MS)),
        )
    assert all(name in (*startup.CLASSES, None) for name in names(journal, tmp_path))


def test_the_evidence_counts_what_was_read_built_and_uploaded(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    load_run(journal, "aaaa", "A", read=True, resident=False, startup_class="process_cold")
    journal.write(tmp_path)
    with relation.of_ledger(tmp_path) as found:
        from stagexec.reading.table import summary_of

        told = summary_of(found.find("aaaa"))["startup_evidence"]
    assert {name: told[name] for name in ("models", "read", "built", "uploaded", "between")} == {
        "models": 1,
        "read": 1,
        "built": 0,
        "uploaded": 1,
        "between": None,
    }
