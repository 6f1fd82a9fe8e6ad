"""What stands beside a run: what was done after it, whom that delayed, and answers that took long."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stagexec.reading import lookup, rows, store
from stagexec.views.beside import print_beside
from stagexec.views.text import print_run
from tests.reading.fake_journal import MS, FakeJournal, FakeRun, cached_run, tiny_run


def after(journal: FakeJournal, run: FakeRun | None, what: str, start_ns: int, *delayed: Any) -> None:
    """What has been done from `start_ns` until now, after `run`."""
    told = {"after": run.run_id if run else None, "what": what, "delayed": list(delayed)}
    journal.add("after_run", start_ns=start_ns, end_ns=journal.now, **told)


def three_runs() -> tuple[FakeJournal, list[str]]:
    """A run; 400 ms of collection after it, in which a second one is accepted after 100 ms; a third."""
    journal = FakeJournal().head()
    first = tiny_run(journal, "aaaa")
    collected = journal.now
    journal.now += 100 * MS
    second = FakeRun(journal, "bbbb", {"1": ("Load", [])})
    journal.now += 300 * MS
    after(journal, first, "collection", collected, [second.run_id, 300 * MS])
    journal.now += 20 * MS
    after(journal, first, "host_cleanup", journal.now - 20 * MS, [second.run_id, 20 * MS])
    second.spend(7 * MS).start().execute().spend(MS).close(held_ns=250 * MS)
    third = cached_run(journal, "cccc")
    return journal, [first.run_id, second.run_id, third.run_id]


@pytest.mark.parametrize("alone", [False, True])
def test_work_after_a_run_is_told_there_and_in_the_wait_of_the_one_that_it_delayed(
    tmp_path: Path, alone: bool
) -> None:
    journal, (first, second, third) = three_runs()
    journal.write(tmp_path)
    ledger = lookup.Large(tmp_path) if alone else store.load(tmp_path)
    shown = {name: rows.detail(ledger.find(name)) for name in (first, second, third)}
    assert [(each["what"], each["ns"]) for each in shown[first]["after_run"]] == [
        ("collection", 400 * MS),
        ("host_cleanup", 20 * MS),
    ]
    assert shown[first]["after_run"][0]["delayed"] == [{"run_id": second, "ns": 300 * MS}]
    assert shown[second]["delayed_by"] == [
        {"what": "collection", "ns": 300 * MS, "after_run": first},
        {"what": "host_cleanup", "ns": 20 * MS, "after_run": first},
    ]
    assert shown[second]["stages"]["queue_wait"] == 327 * MS
    assert shown[second]["held_ns"] == 250 * MS
    for name, field in ((first, "delayed_by"), (second, "after_run"), (third, "after_run")):
        assert shown[name][field] == []
    assert shown[third]["delayed_by"] == []


def lines(run: dict[str, Any]) -> list[str]:
    out = io.StringIO()
    print_beside(Console(file=out, width=200, highlight=False), run)
    return out.getvalue().splitlines()


def test_show_says_it_in_words(tmp_path: Path) -> None:
    journal, (first, second, third) = three_runs()
    journal.write(tmp_path)
    shown = {run.run_id: rows.detail(run) for run in store.load(tmp_path).runs}
    assert lines(shown[first]) == [
        "after the run: collection 400 ms; it delayed the next prompt by 300 ms",
        "after the run: host cleanup 20.0 ms; it delayed the next prompt by 20.0 ms",
    ]
    assert lines(shown[second]) == [
        "queue_wait: 300 ms of it waited for collection after run aaaa-000",
        "queue_wait: 20.0 ms of it waited for host cleanup after run aaaa-000",
        "the check of its files was held up for 250 ms by work that is no run's: not in the total",
    ]
    assert lines(shown[third]) == []


def test_answers_that_took_long_and_what_was_left_are_told_with_their_node(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", {"2": ("Slow", [])})

    def mark(name: str, detail: Any, node: str | None = "2") -> None:
        node_class = "Slow" if node else None
        journal.add("mark", run, name=name, detail=detail, node_id=node, node_class=node_class, visit=None)

    mark("asked", {"what": "VALIDATE_INPUTS", "ns": 700 * MS, "when": "validation"})
    mark("asked", {"what": "on_prompt", "ns": 16 * MS, "when": "validation", "handler": "pack.f"}, None)
    mark("is_changed_brought", {"nodes": ["2", "5"]}, None)
    run.spend(MS).start()
    mark("asked", {"what": "IS_CHANGED", "ns": 1200 * MS, "when": "run"})
    mark("left_on_loop", {"what": "thread", "name": "pack.later"})
    mark("asked", {"what": "IS_CHANGED", "ns": "damaged", "when": "run"})
    run.execute().close()
    journal.write(tmp_path)
    (shown,) = [rows.detail(one) for one in store.load(tmp_path).runs]
    assert lines(shown) == [
        "node 2 (Slow): VALIDATE_INPUTS 700 ms, in its validation, before the run",
        "prompt handler pack.f: 16.0 ms, before the run",
        "node 2 (Slow): IS_CHANGED 1.20 s (2 times), in the run",
        "the prompt brought its own answers to IS_CHANGED: their classes were not asked (nodes 2, 5)",
        "node 2 (Slow) left a thread on the event loop: pack.later; the prompt's end waited for it",
    ]
    out = io.StringIO()
    print_run(Console(file=out, width=200, highlight=False), shown)
    assert "mark asked" not in out.getvalue()


def test_a_run_of_an_older_journal_has_none_of_it(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = tiny_run(journal, "aaaa")
    for event in journal.events:
        event.pop("held_ns", None)
    journal.write(tmp_path)
    shown = rows.detail(store.load(tmp_path).find(run.run_id))
    assert [shown[name] for name in ("after_run", "delayed_by", "asked", "left_on_loop")] == [[]] * 4
    assert (shown["held_ns"], shown["is_changed_brought"]) == (None, [])


@pytest.mark.parametrize("stored", ["profiles/aaaa/trace.json", "{ledger}/profiles/aaaa/trace.json"])
def test_a_profile_is_found_in_a_ledger_that_was_moved(tmp_path: Path, stored: str) -> None:
    journal = FakeJournal().head()
    ledger, moved = tmp_path / "ledger", tmp_path / "moved"
    run = FakeRun(journal, "aaaa").spend(MS).start().execute()
    path = stored.format(ledger=ledger)
    run.artifact("", path, media="profile", state="unverified", node_id=None)
    run.close()
    journal.write(ledger)
    shutil.move(ledger, moved)
    (shown,) = [rows.detail(one) for one in store.load(moved).runs]
    assert shown["artifacts"][0]["path"] == str(moved / "profiles" / "aaaa" / "trace.json")
