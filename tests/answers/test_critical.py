"""The critical path against graphs whose times are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stagexec.answers.critical import GraphPlan, at_once, critical, union
from stagexec.cli import command
from stagexec.reading.store import load
from tests.reading.fake_journal import MS, FakeJournal, FakeRun, cached_run, tiny_run

Times = dict[str, tuple[int, list[str]]]
"""{node id: (ms, ids it takes inputs from)}"""


def played(folder: Path, graph: Times, grown: dict[str, Times] | None = None) -> Any:
    """A run in which each node takes its time, one after the other in the order given."""
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", {node: (f"C{node}", links) for node, (_, links) in graph.items()})
    run.spend(MS).start().spend(2 * MS)
    number = 0
    for node, (ms, _) in graph.items():
        number += 1
        run.visit(number, node, f"C{node}", [("node_other", ms * MS)])
        for child, (child_ms, _) in (grown or {}).get(node, {}).items():
            if child == next(iter((grown or {})[node])):
                some = {name: ("Child", links) for name, (_, links) in (grown or {})[node].items()}
                run.grow(node, some, results=(list(some)[-1],))
                run.spend(MS)
            number += 1
            run.visit(number, child, "Child", [("node_other", child_ms * MS)], parent=node)
        if node in (grown or {}):
            number += 1
            run.visit(number, node, f"C{node}", [("node_other", 5 * MS)])
    run.execute(outputs={}).spend(MS).close()
    journal.write(folder)
    return load(folder).runs[-1]


def nodes(found: GraphPlan) -> dict[str, Any]:
    return {one.node_id: one for one in found.nodes}


DIAMOND: Times = {"a": (10, []), "b": (100, ["a"]), "c": (30, ["a"]), "d": (20, ["b", "c"]), "e": (50, [])}


def test_the_critical_path_of_a_diamond_is_its_longer_side_and_the_other_has_slack(tmp_path: Path) -> None:
    found = critical(played(tmp_path, DIAMOND))
    assert found.critical_path == ["a", "b", "d"]
    assert (found.serial_ns, found.critical_ns) == (210 * MS, 130 * MS)
    assert found.gain_ns == found.measured_ns - found.critical_ns == 80 * MS
    assert found.overlapped_total_ns == found.total_ns - 80 * MS
    slack = {node: one.slack_ns // MS for node, one in nodes(found).items()}
    assert slack == {"a": 0, "b": 0, "c": 70, "d": 0, "e": 80}
    assert {node for node, one in nodes(found).items() if one.critical} == {"a", "b", "d"}
    assert nodes(found)["d"].fan_in == 2
    assert nodes(found)["a"].fan_out == 2
    assert (found.width, found.most_at_once) == (2, 3)
    assert nodes(found)["c"].start_ns == 10 * MS


def test_a_chain_is_all_critical_and_nothing_is_gained_by_overlap(tmp_path: Path) -> None:
    found = critical(played(tmp_path, {"a": (10, []), "b": (20, ["a"]), "c": (30, ["b"])}))
    assert (found.gain_ns, found.parallelism, found.width) == (0, 1.0, 1)
    assert [(chain.nodes, chain.length_ns) for chain in found.chains] == [(["a", "b", "c"], 60 * MS)]


def test_chains_between_forks_are_told_longest_first(tmp_path: Path) -> None:
    graph: Times = {
        "a": (1, []), "b": (10, ["a"]), "c": (10, ["b"]), "x": (40, ["a"]), "y": (2, ["x"]),
        "z": (1, ["c", "y"]),
    }  # fmt: skip
    found = critical(played(tmp_path, graph))
    assert [chain.nodes for chain in found.chains] == [["x", "y"], ["b", "c"]]


def test_children_lie_between_the_two_halves_of_the_node_that_grew_them(tmp_path: Path) -> None:
    graph: Times = {"a": (10, []), "p": (15, ["a"]), "z": (20, ["p"])}
    children: Times = {"p.1": (100, ["a"]), "p.2": (30, []), "p.3": (7, ["p.1", "p.2"])}
    found = critical(played(tmp_path, graph, {"p": children}))
    assert found.critical_path == ["a", "p", "p.1", "p.3", "z"]
    assert found.critical_ns == (10 + 15 + 100 + 7 + 5 + 20) * MS
    assert nodes(found)["p"].length_ns == 20 * MS
    assert nodes(found)["p.2"].slack_ns == 70 * MS
    assert nodes(found)["p.1"].parent == "p"


def test_a_task_on_the_loop_counts_as_its_nodes_time_and_overlap_that_was_is_no_gain(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", {"a": ("Later", []), "b": ("Later", []), "z": ("Join", ["a", "b"])})
    run.start()
    begun = journal.now
    run.visit(1, "a", "Later", [("node_other", MS)]).visit(2, "b", "Later", [("node_other", MS)])
    run.switch("external_wait").spend(98 * MS)
    run.spans(
        ("task:a", None, "task", 1, begun + MS, begun + 100 * MS),
        ("task:b", None, "task", 2, begun + 2 * MS, begun + 50 * MS),
    )
    run.visit(3, "z", "Join", [("node_other", 10 * MS)]).execute(outputs={}).close()
    journal.write(tmp_path)
    found = critical(load(tmp_path).runs[-1])
    assert found.critical_path == ["a", "z"]
    assert (found.critical_ns, found.measured_ns, found.gain_ns) == (110 * MS, 110 * MS, 0)
    assert nodes(found)["b"].slack_ns == 51 * MS


def test_what_was_cached_or_not_needed_has_no_part_in_the_path(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    cached_run(journal, "aaaa")
    journal.write(tmp_path)
    found = critical(load(tmp_path).runs[-1])
    assert (found.nodes, found.critical_ns, found.critical_path, found.parallelism) == ([], 0, [], None)


def test_nodes_that_wait_for_one_another_are_told_and_break_nothing(tmp_path: Path) -> None:
    found = critical(played(tmp_path, {"a": (10, ["b"]), "b": (20, ["a"]), "c": (5, [])}))
    assert any("2 nodes wait for one another" in note for note in found.notes)
    assert found.serial_ns == 35 * MS


def test_a_chain_of_twenty_thousand_nodes_is_answered(tmp_path: Path) -> None:
    graph: Times = {str(at): (1, [str(at - 1)] if at else []) for at in range(20_000)}
    journal = FakeJournal().head()
    names = list(graph)
    run = FakeRun(journal, "aaaa", {}, nodes=names, classes=["C"] * len(names), links=[[]] * len(names))
    journal.events[-1]["links"] = [[at - 1] if at else [] for at in range(len(names))]
    run.start()
    for at, node in enumerate(names, 1):
        run.visit(at, node, "C", [("node_other", MS)])
    run.execute(outputs={}).close()
    journal.write(tmp_path)
    found = critical(load(tmp_path).runs[-1])
    assert found.critical_ns == found.serial_ns == 20_000 * MS
    assert len(found.critical_path) == 20_000


@pytest.mark.parametrize(
    ("intervals", "covered", "most"),
    [
        ([], 0, 0),
        ([(0, 5), (5, 9)], 9, 1),
        ([(0, 5), (3, 9), (20, 21)], 10, 2),
        ([(4, 4), (0, 9), (1, 2)], 9, 2),
    ],
)
def test_unions_and_counts_of_intervals(intervals: list[tuple[int, int]], covered: int, most: int) -> None:
    assert (union(intervals), at_once(intervals)) == (covered, most)


def test_plan_graph_prints_the_path_and_its_json(tmp_path: Path) -> None:
    played(tmp_path, DIAMOND)
    call = ["plan", "last", "--graph", "--ledger", str(tmp_path)]
    shown = CliRunner().invoke(command, call)
    assert shown.exit_code == 0, shown.output
    assert "critical path 130 ms" in shown.output
    assert "80.0 ms less" in shown.output
    found = json.loads(CliRunner().invoke(command, [*call, "--json"]).stdout)
    assert found["critical_path"] == ["a", "b", "d"]
    assert found["nodes"][2]["slack_ns"] == 70 * MS


def test_plan_graph_is_of_one_run(tmp_path: Path) -> None:
    tiny_run(journal := FakeJournal().head(), "aaaa")
    journal.write(tmp_path)
    call = ["plan", "last", "--graph", "--condition", "--ledger", str(tmp_path)]
    result = CliRunner().invoke(command, call)
    assert result.exit_code == 2
    assert "leave out --speedup and --condition" in result.output
