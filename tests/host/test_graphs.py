"""The graphs that stock ComfyUI tells too little about, and what the ledger says of each."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.conftest import Servers
from tests.host import graphs
from tests.host.witness import MS, Witness, command, errors, ledger_of, prefix, printed

POSIX_ONLY = pytest.mark.skipif(sys.platform == "win32", reason="limits on file sizes are POSIX")


def test_a_cached_output_whose_file_was_deleted_is_missing(witness: Witness, color: int) -> None:
    graph = graphs.invert_save(prefix(), color)
    first, second = witness.run(graph), witness.run(graph)
    (saved,) = second.ledger["artifacts"]
    os.remove(saved["path"])
    third = witness.run(graph)

    assert (first.ended, second.ended) == (("success", None), ("success", None))
    assert first.ledger["executed_nodes"] == ["1", "2", "3"]
    assert second.ledger["cached_nodes"] == ["1", "2", "3"]
    assert (saved["state"], saved["cached"]) == ("verified", True)
    assert third.history is not None
    assert third.history["status"]["status_str"] == "success"
    assert third.ended == ("failed", "artifact_missing")
    assert [one["state"] for one in third.ledger["artifacts"]] == ["missing"]
    assert third.place[:2] == ("3", "SaveImage")
    assert third.ledger["error_stage"] == "delivery_commit"


def test_each_artifact_has_its_own_ready_time_and_the_run_ends_with_the_last(
    witness: Witness, color: int
) -> None:
    seen = witness.run(graphs.preview_sleep_save(prefix(), 0.4, color))
    (preview,), (saved,) = seen.artifacts("2"), seen.artifacts("4")
    assert seen.ended == ("success", None)
    assert preview["ready_ns"] > 0
    assert 400 * MS <= saved["ready_ns"] <= seen.ledger["total_ns"]
    assert saved["ready_ns"] - preview["ready_ns"] >= 390 * MS


def test_an_image_of_nan_is_nonfinite_and_the_first_bad_node_is_named(witness: Witness) -> None:
    graph = graphs.nan_save(prefix())
    seen = witness.run(graph)
    assert seen.history is not None
    assert seen.history["status"]["status_str"] == "success"
    assert seen.ended == ("failed", "artifact_nonfinite")
    assert [(one["state"], one["first_bad"]) for one in seen.artifacts("3")] == [("nonfinite", "1")]
    assert seen.place[:2] == ("1", "StxNaNImage")

    again = witness.run(graph)
    assert again.ledger["cached_nodes"] == ["1", "2", "3"]
    assert again.ended == ("failed", "artifact_nonfinite")
    assert [one["first_bad"] for one in again.artifacts("3")] == ["1"]


def test_files_saved_before_the_disk_was_full_are_listed_as_orphans(witness: Witness, color: int) -> None:
    name = prefix()
    seen = witness.run(graphs.save_on_full_disk(name, color))
    assert seen.history is not None
    assert seen.history["outputs"] == {}
    assert seen.ended == ("failed", "disk_full")
    assert seen.place == ("2", "StxSaveLimited", None)
    orphans = seen.artifacts(None)
    assert [one["orphan"] for one in orphans] == [True, True]
    assert sorted(Path(one["path"]).name for one in orphans) == [f"{name}_00001_.png", f"{name}_00002_.png"]
    assert {one["state"] for one in orphans} == {"verified"}
    assert seen.stage_ms("native_materialize") > 0
    assert seen.ledger["error_stage"] == "native_materialize"


def test_a_dead_branch_beside_a_delivered_one_is_partial_and_its_time_wasted(
    witness: Witness, color: int
) -> None:
    seen = witness.run(graphs.save_then_fail(prefix(), 0.2, color))
    (error,) = seen.of_type("execution_error")
    assert error["node_id"] == "4"
    assert seen.ended == ("partial", "node_exception")
    assert [one["state"] for one in seen.artifacts("2")] == ["verified"]
    assert 200 * MS <= seen.ledger["wasted_ns"] < seen.ledger["total_ns"]
    dead = [visit["self_ns"] for node in ("3", "4") for visit in seen.visits_of(node)]
    assert seen.ledger["wasted_ns"] <= sum(dead)
    assert set(seen.ledger["not_executed"]) == {"4", "5"}


def test_an_out_of_memory_error_has_the_cause_oom(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.fails("StxOOM", color=color))
    assert seen.ended == ("failed", "oom")
    assert seen.place == ("2", "StxOOM", None)
    assert seen.of_type("execution_error")[0]["exception_type"].endswith("OutOfMemoryError")
    assert seen.marks("oom_seen")
    assert "Got an OOM, unloading all loaded models." in witness.server.log()


def test_an_interrupt_that_a_node_raises_is_no_cancel(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.fails("StxInterrupt", color=color))
    assert seen.of_type("execution_interrupted")
    assert seen.ended == ("failed", "interrupted_by_node")
    assert seen.ledger["cancel_latency_ns"] is None
    assert seen.ledger["host_status"] == "error"


def test_a_blocker_in_front_of_a_list_node_leaves_a_success_without_outputs(
    witness: Witness, color: int
) -> None:
    seen = witness.run(graphs.blocked_list(prefix(), color))
    assert seen.history is not None
    assert (seen.history["status"]["status_str"], seen.history["outputs"]) == ("success", {})
    assert seen.ended == ("success_empty", "blocked")
    assert [row["node_id"] for row in seen.ledger["blocked"]] == ["3", "4"]
    assert seen.place[:2] == ("3", "StxInputIsList")
    assert dict(seen.kinds())["3"] == "blocked"


def test_a_lazy_node_is_one_node_with_two_visits_and_its_time_is_counted_once(
    witness: Witness, color: int
) -> None:
    seen = witness.run(graphs.lazy(prefix(), color, seconds=0.2))
    assert [data["node"] for data in seen.of_type("executing")].count("4") == 2
    assert seen.ended == ("success", None)
    assert [visit["kind"] for visit in seen.visits_of("4")] == ["pending", "executed"]
    assert seen.ledger["executed_nodes"].count("4") == 1
    assert seen.ledger["not_executed"] == ["2"]
    assert 200 <= seen.stage_ms("node_other") < 400  # doubled, it would be 400 and more
    visited = sum(visit["self_ns"] for visit in seen.ledger["visits"])
    assert visited <= seen.ledger["total_ns"]


def test_three_async_sleeps_take_the_time_of_one_and_show_a_concurrency_of_three(
    witness: Witness, color: int
) -> None:
    seen = witness.run(graphs.async_sleeps(3, 0.4, color))
    assert seen.ended == ("success", None)
    assert seen.stage_ms("external_wait") >= 300
    assert 400 * MS <= seen.ledger["total_ns"] < 1200 * MS  # one after the other, it would be 1200 and more
    assert seen.ledger["concurrency"]["concurrency"] == 3
    assert 400 * MS <= seen.ledger["concurrency"]["union_ns"] < 1200 * MS
    tasks = [span for span in seen.ledger["spans"] if span["lane"].startswith("task:")]
    assert sorted(span["lane"] for span in tasks) == ["task:2", "task:3", "task:4"]
    assert all(span["end_ns"] - span["start_ns"] >= 400 * MS for span in tasks)


def test_children_of_an_expansion_are_rolled_up_to_their_parent_as_wall_clock(
    witness: Witness, color: int
) -> None:
    seen = witness.run(graphs.expand(prefix(), 0.2, color))
    children = ["2.0.0.1", "2.0.0.2", "2.0.0.3"]
    assert seen.ended == ("success", None)
    assert seen.ledger["unexpected"] == [{"node_id": child, "parent": "2"} for child in children]
    assert [visit["parent"] for child in children for visit in seen.visits_of(child)] == ["2"] * 3
    rolled = seen.ledger["rollup"]["2"]
    assert rolled["nodes"] == 3
    first, last = seen.visits_of("2")[0], seen.visits_of("2")[-1]
    assert rolled["wall_ns"] == last["end_ns"] - first["start_ns"]
    assert 200 * MS <= rolled["wall_ns"] < seen.ledger["total_ns"]


@pytest.mark.parametrize(
    ("kind", "why"),
    [("StxChangedNaN", "IS_CHANGED returned NaN"), ("StxChangedRaises", "IS_CHANGED raised")],
)
def test_a_node_that_defeats_the_cache_is_named_with_its_reason(
    witness: Witness, color: int, kind: str, why: str
) -> None:
    graph = graphs.changed(kind, prefix(), color)
    for _ in range(2):
        seen = witness.run(graph)
        assert seen.ended == ("success", None)
        assert [(mark["node_id"], mark["detail"]["why"]) for mark in seen.marks("cache_defeated")] == [
            ("2", why)
        ]
    assert seen.ledger["cached_nodes"] == ["1"]
    assert seen.ledger["executed_nodes"] == ["2", "3"]


def test_a_node_that_keeps_its_cache_is_not_blamed(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.invert_save(prefix(), color))
    assert seen.marks("cache_defeated") == []


@pytest.mark.parametrize("length", [10, 100])
def test_every_node_of_a_chain_is_one_visit_and_the_second_run_is_all_cached(
    witness: Witness, color: int, length: int
) -> None:
    graph = graphs.chain(length, color)
    cold, cached = witness.run(graph), witness.run(graph)
    assert (cold.ended, cached.ended) == (("success", None), ("success", None))
    assert len(cold.ledger["visits"]) == length + 2
    assert len(cold.ledger["executed_nodes"]) == length + 2
    assert len(cached.ledger["cached_nodes"]) == length + 2
    assert cached.kinds() == [("end", "cached")]


def test_twenty_lanes_of_forty_deliver_twenty_previews(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.lanes(20, 40, color * 1000))
    assert seen.ended == ("success", None)
    assert len(seen.ledger["executed_nodes"]) == 20 * 42
    assert len(seen.ledger["artifacts"]) == 20
    assert {one["state"] for one in seen.ledger["artifacts"]} == {"verified"}


def test_models_are_counted_as_loaded_when_cold_and_as_resident_when_warm(
    witness: Witness, color: int
) -> None:
    witness.client.free()
    witness.run(graphs.shows(color=color))  # the worker frees before its next prompt ends
    cold = witness.run(graphs.models(color * 2, prefix(), color))
    warm = witness.run(graphs.models(color * 2 + 1, prefix(), color))
    assert (cold.ended, warm.ended) == (("success", None), ("success", None))

    def loads(seen: object) -> list[tuple[str, bool]]:
        (mark,) = seen.marks("model_load")  # type: ignore[attr-defined]
        return [(model["class"], model["resident"]) for model in mark["detail"]["models"]]

    assert loads(cold) == [("StxFirstModel", False), ("StxSecondModel", False)]
    assert loads(warm) == [("StxFirstModel", True), ("StxSecondModel", True)]
    for seen in (cold, warm):
        load = [one for one in seen.ledger["segments"] if one["seam"] == "upload_models"]
        assert {(one["stage"], one["part"], one["visit"]) for one in load} == {
            ("model_load_residency", "upload", seen.visits_of("2")[0]["visit"])
        }


def test_a_truncated_video_under_its_final_name_is_corrupt_though_the_host_says_success(
    witness: Witness, color: int
) -> None:
    seen = witness.run(graphs.delivers("StxTruncatedVideo", prefix(), color))
    assert seen.ledger["host_status"] == "success"
    assert seen.ended == ("failed", "artifact_corrupt")
    (video,) = seen.artifacts("2")
    assert (video["state"], video["media"]) == ("corrupt", "video")
    assert "missing" in video["reason"]
    assert seen.ledger["wasted_ns"] > 0


@POSIX_ONLY
def test_savers_on_a_full_disk_keep_their_time_and_what_they_left_is_judged(
    server: Servers,
) -> None:
    full = Witness(server())
    try:
        check_full_disk(full)
    finally:
        full.close()


def check_full_disk(full: Witness) -> None:
    limit = 300_000
    png = full.run(graphs.save_limited(limit, graphs.save(["2", 0], "png"), graphs.noise(512, 3, flat=2)))
    full.run(graphs.lift_limit())
    webp_node = graphs.node(
        "SaveAnimatedWEBP",
        images=["2", 0],
        filename_prefix="webp",
        fps=6.0,
        lossless=True,
        quality=80,
        method="fastest",
    )
    webp = full.run(graphs.save_limited(limit, webp_node, graphs.noise(512, 3)))
    full.run(graphs.lift_limit())
    video = graphs.node("CreateVideo", images=["2", 0], fps=8.0)
    mp4_node = graphs.node("SaveVideo", video=["3", 0], filename_prefix="mp4", format="mp4", codec="h264")
    mp4 = full.run(graphs.save_limited(limit, mp4_node, graphs.noise(256, 24), video))
    full.run(graphs.lift_limit())
    good = full.run(graphs.invert_save("good"))

    assert [seen.ended for seen in (png, webp, mp4)] == [("failed", "disk_full")] * 3
    assert [seen.ledger["error_stage"] for seen in (png, webp, mp4)] == [
        "native_materialize",
        "encode_mux",
        "encode_mux",
    ]
    assert [(one["orphan"], one["state"]) for one in png.ledger["artifacts"]] == [(True, "verified")] * 2
    (cut,) = mp4.ledger["artifacts"]
    assert (Path(cut["path"]).name, cut["orphan"], cut["state"]) == ("mp4_00001_.mp4", True, "corrupt")
    assert cut["bytes"] == limit
    assert png.stage_ms("native_materialize") > 1
    assert webp.stage_ms("encode_mux") > 1
    assert mp4.stage_ms("encode_mux") > 10
    assert mp4.ledger["wasted_ns"] >= mp4.ledger["stages"]["encode_mux"]
    assert good.ended == ("success", None)


def test_the_workflow_on_the_tiny_checkpoint_is_in_every_stage_it_uses(witness: Witness) -> None:
    cold = witness.run(graphs.txt2img(seed=11, prefix=prefix()))
    seed = witness.run(graphs.txt2img(seed=12, prefix=prefix()))
    assert (cold.ended, seed.ended) == (("success", None), ("success", None))
    used = {"model_load_residency", "conditioning", "sampling", "vae_decode", "native_materialize"}
    assert used <= set(cold.ledger["stages"])
    assert "conditioning" not in seed.ledger["stages"]
    assert {"4", "6", "7"} <= set(seed.ledger["cached_nodes"])
    steps = [one for one in cold.ledger["segments"] if one["part"] == "step"]
    assert len(steps) >= 2
    assert {one["seam"] for one in steps} != {None}
    assert {visit["node_id"]: visit["origin"] for visit in cold.ledger["visits"]}["3"] == "seam"


def test_the_command_prints_what_the_reader_says(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.save_then_fail(prefix(), 0.05, color))
    rows = printed("runs", "--ledger", ledger_of(witness.server))
    shown = printed("show", seen.prompt_id, "--ledger", ledger_of(witness.server))
    (row,) = [row for row in rows if row["prompt_id"] == seen.prompt_id]
    assert (row["outcome"], row["cause"], row["error_node"]) == ("partial", "node_exception", "4")
    assert row["total_ns"] == sum(row["stages"].values()) == seen.ledger["total_ns"]
    assert (row["executor"], row["host_version"]) == ("native", "0.30.0")
    assert {name: shown[name] for name in seen.ledger} == seen.ledger


def test_audit_of_the_real_ledger_passes(witness: Witness, color: int) -> None:
    witness.run(graphs.invert_save(prefix(), color))
    assert errors(witness.folder) == []
    assert command("audit", "--ledger", witness.folder).returncode == 0
