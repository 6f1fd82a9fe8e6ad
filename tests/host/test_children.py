"""Encoder processes of packs: seen from spawn to exit, and named when they fail, whatever the pack says."""

from __future__ import annotations

import json
import sys

import pytest

from stagexec.stages import STAGES
from tests.host.graphs import Prompt, empty, line, node
from tests.host.witness import MS, Seen, Witness, prefix

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and pidfds are POSIX")


def encodes(kind: str, color: int, codec: str = "mpeg4", count: int = 12) -> Prompt:
    """Node "2" encodes `count` frames of its own."""
    made = node(kind, value=["1", 0], codec=codec, count=count, filename_prefix=prefix("child"))
    return line(empty(color), made)


def spans(seen: Seen) -> list[dict]:
    found = [one for one in seen.ledger["spans"] if one["lane"].startswith("child:")]
    return [one for one in found if one["detail"]["role"] != "query"]  # imageio asks once for the version


def only(seen: Seen) -> dict:
    found = spans(seen)
    assert len(found) == 1, found
    return found[0]


def test_a_child_is_a_span_and_its_visit_is_in_encode_mux_meanwhile(witness: Witness, color: int) -> None:
    seen = witness.run(encodes("StxFfmpegPipe", color))
    assert seen.ended == ("success", None)
    span = only(seen)
    assert (span["lane"], span["name"], span["stage"]) == ("child:ffmpeg", "ffmpeg", "encode_mux")
    assert span["detail"]["exit_code"] == 0
    assert span["detail"]["role"] == "encode"
    assert span["detail"]["pid"] > 0
    assert span["visit"] == seen.visits_of("2")[0]["visit"]
    inside = [s for s in seen.ledger["segments"] if s["seam"] == "child_spawn"]
    assert [(s["stage"], s["part"]) for s in inside] == [("encode_mux", "encode")] * len(inside)
    assert inside[0]["start_ns"] <= span["start_ns"] + MS
    assert abs(inside[-1]["end_ns"] - span["end_ns"]) < 200 * MS


def test_what_the_pack_reads_is_what_ffmpeg_said(witness: Witness, color: int) -> None:
    seen = witness.run(encodes("StxFfmpegRun", color, codec="no_such_encoder"))
    code, _, said = seen.history["outputs"]["2"]["text"]
    assert code != "0"
    assert "no_such_encoder" in said


def test_a_failure_that_the_pack_swallows_is_the_run_s_cause(witness: Witness, color: int) -> None:
    seen = witness.run(encodes("StxFfmpegRun", color, codec="no_such_encoder"))
    assert seen.history["status"]["status_str"] == "success"
    assert seen.ended[1] == "encode_failed"
    assert seen.ended[0] in ("failed", "partial")
    error = seen.ledger["error"]
    assert (error["stage"], error["node_id"], error["node_class"]) == ("encode_mux", "2", "StxFfmpegRun")
    (mark,) = seen.marks("child_failed")
    assert mark["detail"]["phase"] == "open"
    assert mark["detail"]["exit_code"] not in (0, None)
    assert "no_such_encoder" in "\n".join(mark["detail"]["stderr"])


def test_a_failure_that_the_pack_raises_is_encode_failed_too(witness: Witness, color: int) -> None:
    seen = witness.run(encodes("StxFfmpegPipe", color, codec="no_such_encoder"))
    assert seen.ended == ("failed", "encode_failed")
    assert seen.ledger["error"]["stage"] == "encode_mux"
    assert "phase open" in seen.ledger["error"]["message"]


def test_a_failure_that_a_second_attempt_makes_good_is_no_failure_of_the_run(
    witness: Witness, color: int
) -> None:
    seen = witness.run(encodes("StxFfmpegRetry", color))
    assert seen.ended == ("success", None)
    assert [one["detail"]["exit_code"] == 0 for one in spans(seen)] == [False, True]
    (failed,), (recovered,) = seen.marks("child_failed"), seen.marks("child_recovered")
    assert recovered["detail"]["pid"] == failed["detail"]["pid"]


@POSIX
def test_a_killed_child_is_named_though_the_node_goes_on(witness: Witness, color: int) -> None:
    seen = witness.run(encodes("StxFfmpegKilled", color))
    assert seen.ended[1] == "encode_failed"
    assert only(seen)["detail"]["exit_code"] == -9
    assert seen.marks("child_failed")[0]["detail"]["phase"] == "encode"


@POSIX
def test_the_exit_is_seen_when_it_happens_and_not_when_the_node_looks(witness: Witness, color: int) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux has pidfds")
    assert only(witness.run(encodes("StxFfmpegKilled", color)))["detail"]["exit_seen"] == "pidfd"


def test_a_missing_binary_is_encode_failed_in_phase_spawn(witness: Witness, color: int) -> None:
    seen = witness.run(encodes("StxFfmpegMissing", color))
    assert seen.ended == ("failed", "encode_failed")
    (mark,) = seen.marks("child_failed")
    assert (mark["detail"]["phase"], mark["detail"]["exit_code"], mark["detail"]["pid"]) == (
        "spawn",
        None,
        None,
    )


def test_frames_and_speed_come_from_the_progress_that_the_command_has(witness: Witness, color: int) -> None:
    detail = only(witness.run(encodes("StxFfmpegRun", color, count=12)))["detail"]
    assert detail["frames"] == 12
    assert detail["speed"].endswith("x")


def test_a_child_on_a_thread_is_a_span_and_leaves_the_ledger_alone(witness: Witness, color: int) -> None:
    seen = witness.run(encodes("StxFfmpegThread", color))
    assert seen.ended == ("success", None)
    assert only(seen)["detail"]["exit_code"] == 0
    assert not [s for s in seen.ledger["segments"] if s["seam"] == "child_spawn"]


def test_a_decoder_that_is_cut_short_is_no_failure(witness: Witness, color: int) -> None:
    seen = witness.run(encodes("StxFfmpegDecode", color))
    assert [one["detail"]["role"] for one in spans(seen)] == ["encode", "decode"]
    assert seen.marks("child_failed") == []
    assert seen.ended[0] == "success_unverified"  # a text, and no file


def test_equal_settings_have_one_template_and_no_path_is_kept(witness: Witness, color: int) -> None:
    runs = [witness.run(encodes("StxFfmpegPipe", color * 1000 + at)) for at in range(2)]
    other = witness.run(encodes("StxFfmpegPipe", color * 1000 + 2, codec="libx264"))
    templates = [only(seen)["detail"]["template"] for seen in (*runs, other)]
    assert templates[0] == templates[1] != templates[2]
    kept = json.dumps([one["detail"] for seen in (*runs, other) for one in spans(seen)])
    assert str(witness.server.output) not in kept
    assert "command" not in kept


def test_the_host_loop_sees_children_too(host_witness: Witness, color: int) -> None:
    seen = host_witness.run(encodes("StxFfmpegRun", color, codec="no_such_encoder"))
    assert seen.ended[1] == "encode_failed"
    assert only(seen)["stage"] in STAGES
