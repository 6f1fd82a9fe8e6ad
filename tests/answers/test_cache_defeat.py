"""What made a node execute again, by comparing with the run before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stagexec.answers import cache_defeat
from stagexec.answers.diff import diff
from stagexec.reading.store import load
from tests.reading.fake_journal import MS, TINY, FakeJournal, FakeRun, tiny_run

SAME = {node: f"constants of {node}" for node in TINY}


def again(journal: FakeJournal, *executed: str, cached: tuple[str, ...] = (), seed: int = 7) -> FakeRun:
    run = FakeRun(journal, "bbbb", TINY, seeds=[["3", "seed", seed]]).spend(MS).start(cached=cached)
    for number, node in enumerate(executed, 1):
        run.visit(number, node, TINY[node][0], [("node_other", MS)])
    return run


def found(
    tmp_path: Path, second: Callable[[FakeJournal], FakeRun], **first: object
) -> dict[str, tuple[str, str]]:
    journal = FakeJournal().head()
    one = tiny_run(journal, "aaaa")
    one.identify(SAME, **first)
    second(journal).execute().close()
    journal.write(tmp_path)
    runs = load(tmp_path).runs
    before = cache_defeat.previous(runs[1], runs)
    assert before is runs[0]
    return {r.node_id: (r.why, r.by) for r in cache_defeat.re_executions(runs[1], before)}


def test_a_new_seed_is_named_and_what_follows_names_the_node(tmp_path: Path) -> None:
    told = found(tmp_path, lambda j: again(j, "3", "4", "5", seed=8).identify({**SAME, "3": "another"}))
    assert told["3"] == ("seed changed", "3")
    assert told["4"] == ("its input comes from node 3: seed changed", "3")
    assert told["5"] == ("its input comes from node 3: seed changed", "3")


def test_another_constant_is_an_input_that_changed(tmp_path: Path) -> None:
    told = found(tmp_path, lambda j: again(j, "2").identify({**SAME, "2": "another"}))
    assert told == {"2": ("an input changed", "2")}


def test_links_and_answers_of_is_changed_are_told_apart(tmp_path: Path) -> None:
    links = ["l", "m", "l", "l", "l"]
    told = found(
        tmp_path,
        lambda j: again(j, "1", "2").identify(SAME, links=links, is_changed={"1": "b"}),
        is_changed={"1": "a"},
    )
    assert told["1"] == ("IS_CHANGED gave another answer", "1")
    assert told["2"] == ("its links changed", "2")


@pytest.mark.parametrize("why", ["IS_CHANGED raised", "IS_CHANGED returned NaN"])
def test_a_node_that_defeats_the_cache_is_the_cause_of_all_after_it(tmp_path: Path, why: str) -> None:
    def second(journal: FakeJournal) -> FakeRun:
        run = again(journal, "1", "2", "3").identify(SAME)
        journal.add("mark", run, name="cache_defeated", detail={"why": why}, node_id="1")
        return run

    told = found(tmp_path, second)
    assert told["1"] == (why, "1")
    assert told["3"] == (f"its input comes from node 1: {why}", "1")


def test_an_evicted_node_is_only_no_longer_there(tmp_path: Path) -> None:
    assert found(tmp_path, lambda j: again(j, "2").identify(SAME)) == {"2": ("no longer in the cache", "2")}


def test_nodes_that_came_from_the_cache_are_not_named(tmp_path: Path) -> None:
    assert found(tmp_path, lambda j: again(j, cached=tuple(TINY)).identify(SAME)) == {}


def test_a_node_that_had_failed_was_not_executed_again(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    first = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    first.visit(1, "1", "CheckpointLoaderSimple", [("node_other", MS)])
    first.visit(2, "3", "KSampler", [("sampling", MS)], kind="failed")
    first.execute(host_status="error").close("failed", "oom")
    again(journal, "1", "3").execute().close()
    journal.write(tmp_path)
    a, b = load(tmp_path).runs
    assert [r.node_id for r in cache_defeat.re_executions(b, a)] == ["1"]


def test_a_node_of_another_class_by_the_same_id_was_not_executed_again(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    other = FakeRun(journal, "bbbb", {"3": ("LoadImage", []), "5": ("SaveImage", ["3"])}).start()
    other.visit(1, "3", "LoadImage", [("node_other", MS)]).visit(2, "5", "SaveImage", [("node_other", MS)])
    other.execute().close()
    journal.write(tmp_path)
    a, b = load(tmp_path).runs
    assert [r.node_id for r in diff(a, b, tmp_path, [a, b]).re_executed] == ["5"]


def test_diff_says_it_too(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa").identify(SAME)
    again(journal, "3", seed=9).identify({**SAME, "3": "x"}).execute().close()
    journal.write(tmp_path)
    a, b = load(tmp_path).runs
    told = diff(a, b, tmp_path, [a, b])
    assert told.compared_with == a.run_id
    assert [(r.node_id, r.why) for r in told.re_executed] == [("3", "seed changed")]
    assert diff(b, a, tmp_path, [a, b]).re_executed == []
