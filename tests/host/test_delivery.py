"""The delivery check: after the prompt, off the worker's path, for workflows as they are."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tests.host import graphs
from tests.host.witness import MS, Witness, prefix


def test_an_artifact_has_the_path_the_size_and_the_hash_of_its_file(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.invert_save(f"sub/{prefix()}", color))
    (saved,) = seen.ledger["artifacts"]
    path = Path(saved["path"])
    assert path.parent == witness.server.output / "sub"
    content = path.read_bytes()
    assert saved["bytes"] == len(content)
    assert saved["sha256"] == hashlib.sha256(content).hexdigest()
    assert (saved["state"], saved["media"], saved["cached"]) == ("verified", "image", False)


def test_a_preview_in_the_temporary_folder_is_an_artifact_too(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.chain(1, color))
    (preview,) = seen.artifacts("end")
    assert Path(preview["path"]).parent == witness.server.base / "temp"
    assert preview["state"] == "verified"


def test_a_batch_is_one_artifact_for_each_file(witness: Witness, color: int) -> None:
    name = prefix()
    graph = graphs.line(graphs.empty(color, batch=4), graphs.save(["1", 0], name))
    seen = witness.run(graph)
    names = [Path(one["path"]).name for one in seen.artifacts("2")]
    assert names == [f"{name}_{at:05}_.png" for at in range(1, 5)]


@pytest.mark.parametrize("size", [0, 40])
def test_a_file_that_was_cut_short_between_two_runs_is_corrupt(
    witness: Witness, color: int, size: int
) -> None:
    graph = graphs.invert_save(prefix(), color)
    (saved,) = witness.run(graph).ledger["artifacts"]
    os.truncate(saved["path"], size)
    seen = witness.run(graph)
    assert seen.ended == ("failed", "artifact_corrupt")
    (cut,) = seen.ledger["artifacts"]
    assert (cut["state"], cut["cached"]) == ("corrupt", True)


def test_one_missing_file_beside_a_good_one_is_partial(witness: Witness, color: int) -> None:
    graph = graphs.delivers("StxMissingFile", prefix(), color)
    graph["3"] = graphs.save(["1", 0], prefix())
    seen = witness.run(graph)
    assert seen.ended == ("partial", "artifact_missing")
    assert [one["state"] for one in seen.artifacts("2")] == ["missing"]
    assert [one["state"] for one in seen.artifacts("3")] == ["verified"]
    assert seen.place[:2] == ("2", "StxMissingFile")


def test_a_file_that_history_names_and_nobody_wrote_is_missing(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.delivers("StxMissingFile", prefix(), color))
    assert seen.ended == ("failed", "artifact_missing")
    assert seen.ledger["host_status"] == "success"
    (missing,) = seen.ledger["artifacts"]
    assert (missing["state"], missing["bytes"], missing["sha256"]) == ("missing", None, None)


def test_a_node_that_splits_itself_and_promises_a_file_is_taken_at_its_word(
    witness: Witness, color: int
) -> None:
    seen = witness.run(graphs.staged(0.1, prefix(), color))
    assert seen.ended == ("success", None)
    assert seen.stage_ms("postprocess") >= 100
    assert seen.stage_ms("node_other") >= 100
    (promised,) = seen.artifacts("2")
    assert promised["path"].endswith(".txt")
    assert promised["state"] == "verified"
    assert 200 * MS <= promised["ready_ns"] <= seen.ledger["total_ns"]


@pytest.mark.parametrize(
    ("saver", "media"),
    [
        (graphs.node("SaveAnimatedWEBP", fps=6.0, lossless=False, quality=80, method="fastest"), "image"),
        (graphs.node("SaveAnimatedPNG", fps=6.0, compress_level=1), "image"),
        (graphs.node("SaveWEBM", fps=8.0, codec="vp9", crf=32.0), "video"),
    ],
    ids=lambda value: value["class_type"] if isinstance(value, dict) else value,
)
def test_animations_are_verified(witness: Witness, saver: dict[str, object], media: str) -> None:
    inputs = {**saver["inputs"], "images": ["1", 0], "filename_prefix": prefix()}  # type: ignore[dict-item]
    seen = witness.run(graphs.line(graphs.noise(64, 4), {**saver, "inputs": inputs}))
    assert seen.ended == ("success", None)
    assert [(one["state"], one["media"]) for one in seen.ledger["artifacts"]] == [("verified", media)]


def test_a_video_is_verified_and_its_encoding_is_encode_mux(witness: Witness) -> None:
    graph = graphs.line(
        graphs.noise(64, 8),
        graphs.node("CreateVideo", images=["1", 0], fps=8.0),
        graphs.node("SaveVideo", video=["2", 0], filename_prefix=prefix(), format="mp4", codec="h264"),
    )
    seen = witness.run(graph)
    assert seen.ended == ("success", None)
    assert [(one["state"], one["media"]) for one in seen.artifacts("3")] == [("verified", "video")]
    assert seen.stage_ms("encode_mux") > 0


def test_the_next_prompt_starts_while_the_files_of_the_last_are_checked(witness: Witness, color: int) -> None:
    large = graphs.line(graphs.noise(1536, seed=color), graphs.save(["1", 0], prefix()))
    first = witness.client.submit(large)
    second = witness.client.submit(graphs.invert_save(prefix(), color))
    before, after = witness.wait(first), witness.wait(second)
    assert (before.ended, after.ended) == (("success", None), ("success", None))
    check = before.ledger["segments"][-1]
    assert (check["stage"], check["part"]) == ("delivery_commit", "verify")
    started = after.ledger["segments"][0]["end_ns"]
    assert check["start_ns"] <= started < check["end_ns"]


def test_small_runs_behind_one_with_many_large_files_are_closed_before_it(
    witness: Witness, color: int
) -> None:
    copies = graphs.node("StxCopies", images=["1", 0], filename_prefix=prefix(), copies=40)
    large = witness.client.submit(graphs.line(graphs.noise(1024, seed=color), copies))
    small = [witness.client.submit(graphs.invert_save(prefix(), color + at)) for at in range(3)]
    big = witness.wait(large)
    assert big.ended == ("success", None)
    assert len(big.artifacts("2")) == 40
    for one in [witness.wait(prompt_id) for prompt_id in small]:
        assert one.ended == ("success", None)
        assert (
            one.ledger["accepted_mono_ns"] < one.ledger["finished_mono_ns"] < big.ledger["finished_mono_ns"]
        )
        assert one.stage_ms("delivery_commit") < big.stage_ms("delivery_commit") / 2


def test_the_run_ends_after_its_prompt_and_with_its_check(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.invert_save(prefix(), color))
    last = seen.ledger["segments"][-1]
    assert last["stage"] == "delivery_commit"
    assert last["end_ns"] == seen.ledger["finished_mono_ns"]
    assert seen.artifacts("3")[0]["ready_ns"] < last["start_ns"] - seen.ledger["accepted_mono_ns"]
