"""What follows from the events of a run that was closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stagexec.reading import relation, rows, store
from tests.reading.fake_journal import MS, TINY, WALL0, FakeJournal, FakeRun, S, cached_run, tiny_run


def shown(journal: FakeJournal, ledger: Path) -> list[dict[str, Any]]:
    journal.write(ledger)
    return [rows.detail(run) for run in store.load(ledger).runs]


def test_the_segments_of_a_run_add_up_to_its_total_and_its_stages(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    (run,) = shown(journal, tmp_path)
    assert run["total_ns"] == journal.now == sum(run["stages"].values())
    assert run["stages"]["sampling"] == S
    assert run["stages"]["model_load_residency"] == 20 * MS
    assert run["finished_mono_ns"] - run["accepted_mono_ns"] == run["total_ns"]


def test_segments_written_in_many_events_are_one_partition(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start().flush()
    for number in range(1, 30):
        run.visit(number, "3", "KSampler", [("sampling", 7)]).flush()
    run.execute().spend(5).close()
    (found,) = shown(journal, tmp_path)
    ends = [s["end_ns"] for s in found["segments"]]
    assert [s["start_ns"] for s in found["segments"][1:]] == ends[:-1]
    assert found["stages"]["sampling"] == 29 * 7


def test_accepted_wall_is_derived_from_the_anchor_pair(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    journal.now = 1_500_000_000
    cached_run(journal, "aaaa")
    (run,) = shown(journal, tmp_path)
    assert WALL0 == 1_760_000_000 * S
    assert run["accepted_wall"] == "2025-10-09T08:53:21.500000Z"


def test_accepted_wall_is_null_without_an_anchor_pair(tmp_path: Path) -> None:
    journal = FakeJournal()
    cached_run(journal, "aaaa")
    (run,) = shown(journal, tmp_path)
    assert run["accepted_wall"] is None
    assert run["total_ns"] == journal.now


def test_a_visit_is_in_the_stage_it_spent_most_time_in(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa", load_ns=30 * MS)
    (run,) = shown(journal, tmp_path)
    loader = run["visits"][0]
    assert (loader["stage"], loader["origin"], loader["self_ns"]) == ("model_load_residency", "seam", 31 * MS)
    save = run["visits"][4]
    assert (save["stage"], save["origin"], save["self_ns"]) == ("native_materialize", "table", 30 * MS)


def test_the_loops_own_time_in_a_visit_is_never_the_stage_of_its_node(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start()
    slow = [("native_materialize", MS, "core.save"), ("executor_overhead", 9 * MS)]
    run.visit(1, "5", "SaveImage", slow).visit(
        2, "4", "VAEDecode", [("executor_overhead", MS)], stage="vae_decode"
    )
    run.execute().close()
    save, decode = shown(journal, tmp_path)[0]["visits"]
    assert (save["stage"], save["origin"], save["self_ns"]) == ("native_materialize", "seam", 10 * MS)
    assert (decode["stage"], decode["origin"]) == ("vae_decode", "table")


def test_device_time_is_null_with_a_reason(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    (run,) = shown(journal, tmp_path)
    assert run["device_ns"] is None
    assert run["device_reason"] == "no device events in timing mode baseline"
    assert {visit["device_ns"] for visit in run["visits"]} == {None}


def test_node_lists_of_a_partly_cached_run(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    graph = {**TINY, "6": ("Extra", ["1"]), "7": ("Alone", [])}
    run = FakeRun(journal, "aaaa", graph, selected_outputs=["5", "6"]).spend(MS).start(cached=("1", "2"))
    run.visit(1, "3", "KSampler", [("sampling", 5)])
    run.visit(2, "4", "VAEDecode", [], kind="cached")
    run.visit(3, "7", "Alone", [("node_other", 5)])
    run.visit(4, "5", "SaveImage", [("native_materialize", 5)], kind="failed")
    run.execute().close("failed", "node_exception")
    (found,) = shown(journal, tmp_path)
    assert found["selected_outputs"] == ["5", "6"]
    assert set(found["expected_nodes"]) == {"1", "2", "3", "4", "5", "6"}
    assert found["cached_nodes"] == ["1", "2"]
    assert found["cached_in_run"] == ["4"]
    assert found["executed_nodes"] == ["3", "7"]
    assert set(found["not_executed"]) == {"5", "6"}
    assert found["unexpected"] == [{"node_id": "7", "parent": None}]


def expanded(journal: FakeJournal) -> FakeRun:
    """Node 2 expands into 2a -> 2b, and 2b into 2bx; node 3 saves."""
    run = FakeRun(journal, "eeee", {"1": ("A", []), "2": ("B", ["1"]), "3": ("SaveImage", ["2"])})
    run.spend(MS).start().visit(1, "1", "A", [("node_other", 1)])
    run.visit(2, "2", "B", [("node_other", 10)], kind="pending")
    run.grow("2", {"2a": ("C", ["1"]), "2b": ("D", ["2a"])}, results=("2b",))
    run.visit(3, "2a", "C", [("sampling", 100)], parent="2").spend(7)
    run.visit(4, "2b", "D", [("node_other", 20)], kind="pending", parent="2")
    run.grow("2b", {"2bx": ("E", [])}, results=("2bx",))
    run.visit(5, "2bx", "E", [("sampling", 200)], parent="2b")
    run.visit(6, "2b", "D", [("node_other", 1)], parent="2")
    run.visit(7, "2", "B", [("node_other", 2)])
    return run.visit(8, "3", "SaveImage", [("native_materialize", 5)])


def test_children_of_an_expansion_are_rolled_up_to_their_parents_as_wall_clock(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    expanded(journal).execute().close("success_empty")
    (found,) = shown(journal, tmp_path)
    assert found["rollup"] == {
        "2": {"wall_ns": 10 + 100 + 7 + 20 + 200 + 1 + 2, "self_ns": 333, "nodes": 3},
        "2b": {"wall_ns": 221, "self_ns": 221, "nodes": 1},
    }


def test_executed_expansion_children_are_named_with_their_parent(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    expanded(journal).execute().close("success_empty")
    (found,) = shown(journal, tmp_path)
    assert found["unexpected"] == [
        {"node_id": "2a", "parent": "2"},
        {"node_id": "2bx", "parent": "2b"},
        {"node_id": "2b", "parent": "2"},
    ]
    assert found["not_executed"] == []


def test_three_equal_parallel_tasks_have_concurrency_three_and_count_once(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    run.switch("external_wait").spend(400)
    at = journal.now
    run.spans(*[(f"task:{n}", "external_wait", "async", n, at - 400, at) for n in (1, 2, 3)])
    run.spans(("child:ffmpeg", "encode_mux", "encode", None, 0, 5))
    run.execute().close()
    (found,) = shown(journal, tmp_path)
    assert found["concurrency"] == {"concurrency": 3, "union_ns": 400, "critical_ns": 400}
    assert [span["lane"] for span in found["spans"]] == ["child:ffmpeg", "task:1", "task:2", "task:3"]
    assert found["stages"]["external_wait"] == 400


def test_the_longest_chain_of_tasks_is_not_their_union(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    # 0-10 and 10-30 follow one another; 5-20 overlaps both.
    tasks = [(0, 10), (5, 20), (10, 30)]
    run.spans(*[(f"task:{n}", None, "async", n, *task) for n, task in enumerate(tasks)])
    run.execute().close()
    (found,) = shown(journal, tmp_path)
    assert found["concurrency"] == {"concurrency": 2, "union_ns": 30, "critical_ns": 30}


def test_an_artifact_tells_when_it_was_ready_since_the_run_was_accepted(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    journal.now = 5 * S
    run = FakeRun(journal, "aaaa", TINY).spend(2 * MS).start().artifact("5", first_bad="3", state="nonfinite")
    run.spend(MS).execute().close("failed", "artifact_nonfinite")
    (found,) = shown(journal, tmp_path)
    (artifact,) = found["artifacts"]
    assert (artifact["path"], artifact["ready_ns"]) == ("/out/a.png", 2 * MS)
    assert (artifact["state"], artifact["first_bad"], artifact["node_id"]) == ("nonfinite", "3", "5")


def test_a_failed_run_tells_where_it_failed(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    run.visit(1, "3", "KSampler", [("sampling", 5)], kind="failed", list_index=6)
    error = {
        "stage": "sampling",
        "visit": 1,
        "node_id": "3",
        "node_class": "KSampler",
        "list_index": 6,
        "exception_type": "ValueError",
        "message": "no",
    }
    run.execute(host_status="error").close("failed", "node_exception", error=error)
    (found,) = shown(journal, tmp_path)
    assert (found["error_stage"], found["error_node"], found["cause"]) == ("sampling", "3", "node_exception")
    assert found["error"] == {**error, "cause": "node_exception"}


def test_faults_and_marks_are_told_apart(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    journal.add("mark", run, name="fault", detail={"where": "switch"})
    journal.add("mark", run, name="tiled_retry", detail=None, visit=1)
    journal.add("mark", name="fault", detail={"where": "process"})
    run.execute().close()
    (found,) = shown(journal, tmp_path)
    assert [f["detail"] for f in found["faults"]] == [{"where": "switch"}]
    assert [m["name"] for m in found["marks"]] == ["tiled_retry"]


def test_the_condition_is_the_last_one_that_was_told(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    run.condition_id = "ef" * 32
    run.execute().close()
    (found,) = shown(journal, tmp_path)
    assert found["condition_id"] == "ef" * 32


def test_a_provisional_condition_gives_way_to_the_final_one(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    run.condition_id = "ab" * 32
    journal.add("mark", run, source="process", name="provisional_condition", detail={"missing": ["cfg"]})
    run.condition_id = None
    run.execute().close().know_condition("ef" * 32)
    (found,) = shown(journal, tmp_path)
    assert found["condition_id"] == "ef" * 32
    with relation.of_ledger(tmp_path) as runs:
        assert runs.ask("SELECT condition_id FROM runs") == [{"condition_id": "ef" * 32}]


def test_a_chain_of_twenty_thousand_nodes_is_read_without_recursion(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    graph = {str(n): ("ImageInvert", [str(n - 1)] if n else []) for n in range(20_000)}
    order = {node: at for at, node in enumerate(graph)}
    run = FakeRun(journal, "aaaa", links=[[order[i] for i in graph[n][1]] for n in graph])
    journal.events[-1].update(nodes=list(graph), classes=["ImageInvert"] * 20_000, selected_outputs=["19999"])
    run.spend(MS).start()
    for number, node in enumerate(graph, 1):
        run.visit(number, node, "ImageInvert", [("postprocess", 10)])
    run.artifact("19999").execute().close()
    (found,) = shown(journal, tmp_path)
    assert len(found["expected_nodes"]) == len(found["executed_nodes"]) == 20_000
    assert (found["not_executed"], found["unexpected"], found["wasted_ns"]) == ([], [], 0)
