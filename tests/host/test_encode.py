"""The host's own savers of video, animation and sound: encode and mux apart, with facts, and damage named."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.conftest import Servers
from tests.host.graphs import Prompt, empty, lift_limit, line, node, noise, save_limited
from tests.host.witness import Seen, Witness, prefix

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="limits on file sizes are POSIX")


def save_video(video: list, name: str) -> dict:
    return node("SaveVideo", video=video, filename_prefix=name, format="auto", codec="auto")


def video(color: int, count: int = 9) -> Prompt:
    """EmptyImage → CreateVideo ("2") → SaveVideo ("3")."""
    made = node("CreateVideo", images=["1", 0], fps=8.0)
    return line(empty(color, size=64, batch=count), made, save_video(["2", 0], prefix("video")))


def webm(color: int) -> Prompt:
    """EmptyImage → SaveWEBM ("2")."""
    saver = node("SaveWEBM", images=["1", 0], filename_prefix=prefix("webm"), codec="vp9", fps=8.0, crf=32.0)
    return line(empty(color, size=64, batch=9), saver)


def animation(kind: str, color: int) -> Prompt:
    """EmptyImage → SaveAnimatedPNG or SaveAnimatedWEBP ("2")."""
    if kind == "SaveAnimatedPNG":
        more: dict = {"compress_level": 4}
    else:
        more = {"lossless": True, "quality": 80, "method": "default"}
    saver = node(kind, images=["1", 0], filename_prefix=prefix("anim"), fps=8.0, **more)
    return line(noise(64, batch=5, seed=color), saver)


def stages(seen: Seen, node_id: str) -> set[tuple[str, str | None]]:
    """Where the visits of a node spent time."""
    numbers = {visit["visit"] for visit in seen.visits_of(node_id)}
    return {(s["stage"], s["part"]) for s in seen.ledger["segments"] if s["visit"] in numbers}


def encoded(seen: Seen) -> dict:
    (mark,) = seen.marks("encoded")
    return mark["detail"]


def artifact(seen: Seen, node_id: str) -> dict:
    (one,) = seen.artifacts(node_id)
    return one


def test_save_video_encodes_and_muxes_apart_and_its_facts_are_kept(witness: Witness, color: int) -> None:
    seen = witness.run(video(color))
    assert seen.ended == ("success", None)
    assert {("encode_mux", "encode"), ("encode_mux", "mux")} <= stages(seen, "3")
    assert ("native_materialize", None) in stages(seen, "2")
    facts = encoded(seen)
    (stream,) = facts["streams"]
    assert (facts["frames"], facts["whole"], stream["codec"]) == (9, True, "libx264")
    assert (stream["fps"], stream["width"], stream["height"]) == ("8/1", 64, 64)
    assert facts["bytes"] == os.path.getsize(artifact(seen, "3")["path"])
    assert artifact(seen, "3")["state"] == "verified"


def test_save_webm_encodes_and_muxes_apart(witness: Witness, color: int) -> None:
    seen = witness.run(webm(color))
    assert seen.ended == ("success", None)
    assert {("encode_mux", "encode"), ("encode_mux", "mux")} <= stages(seen, "2")
    assert (encoded(seen)["container"], encoded(seen)["frames"]) == ("webm", 9)


@pytest.mark.parametrize("kind", ["SaveAnimatedPNG", "SaveAnimatedWEBP"])
def test_an_animation_s_frames_are_materialized_and_then_encoded(
    witness: Witness, color: int, kind: str
) -> None:
    seen = witness.run(animation(kind, color))
    assert seen.ended == ("success", None)
    assert {("native_materialize", "transfer"), ("encode_mux", "encode")} <= stages(seen, "2")
    assert ("native_materialize", "write") not in stages(seen, "2")
    (mark,) = seen.marks("encoding")
    assert mark["detail"] == {"frames": 5, "fps": 8.0}


@pytest.mark.parametrize(("kind", "codec"), [("SaveAudio", "flac"), ("SaveAudioMP3", "libmp3lame")])
def test_sound_is_encoded_with_its_facts(witness: Witness, color: int, kind: str, codec: str) -> None:
    saver = node(kind, audio=["2", 0], filename_prefix=prefix("sound"))
    if kind == "SaveAudioMP3":
        saver["inputs"]["quality"] = "128k"
    prompt = line(empty(color), node("StxSineAudio", bad=False), saver)
    seen = witness.run(prompt)
    assert seen.ended == ("success", None)
    assert {("encode_mux", "encode"), ("encode_mux", "mux")} <= stages(seen, "3")
    (stream,) = encoded(seen)["streams"]
    assert (stream["codec"], stream["sample_rate"]) == (codec, 16000)
    assert encoded(seen)["bytes"] == os.path.getsize(artifact(seen, "3")["path"])


@POSIX
def test_a_video_on_a_full_disk_is_named_and_what_is_left_of_it_is_never_deleted(
    server: Servers, color: int
) -> None:
    # A server of its own: the limit holds for its journal too, which must stay below.
    witness = Witness(server())
    name = prefix("fullvideo")
    make = node("CreateVideo", images=["2", 0], fps=8.0)
    frames = noise(256, batch=30, seed=color)
    try:
        seen = witness.run(save_limited(600_000, save_video(["3", 0], name), frames, make))
        witness.run(lift_limit(color))
    finally:
        witness.close()
    assert seen.ended[0] in ("failed", "partial")
    assert seen.ended[1] in ("disk_full", "encode_failed", "artifact_corrupt")
    left = list(witness.server.output.rglob(f"{name}*"))
    named = {one["path"]: one["state"] for one in seen.ledger["artifacts"]}
    assert left, "the host left nothing: there is nothing to prove"
    assert {named[str(path)] for path in left} <= {"corrupt", "unverified"}


def test_a_truncated_video_that_the_host_calls_a_success_is_artifact_corrupt(
    witness: Witness, color: int
) -> None:
    saver = node("StxTruncatedVideo", images=["1", 0], filename_prefix=prefix("cut"))
    seen = witness.run(line(empty(color), saver))
    assert seen.ended == ("failed", "artifact_corrupt")
    assert Path(artifact(seen, "2")["path"]).exists()


def test_the_containers_of_a_host_under_our_watch_are_the_stock_ones(
    witness: Witness, stock, color: int
) -> None:
    """The same prompt gives the same bytes with and without us."""

    def graph(name: str) -> Prompt:
        saver = node("SaveWEBM", images=["1", 0], filename_prefix=name, codec="vp9", fps=8.0, crf=32.0)
        return line(empty(77, size=64, batch=9), saver)

    name = prefix("same")
    seen = witness.run(graph(name))
    with stock.client() as client:
        client.run(graph(name))
    (theirs,) = stock.output.rglob(f"{name}*")
    ours = Path(artifact(seen, "2")["path"])
    assert ours.stat().st_size == theirs.stat().st_size
