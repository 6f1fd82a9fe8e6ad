"""Encode Video and Deliver in a running ComfyUI, ours and stock."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

import pytest

from stagexec.bench import lab
from tests.conftest import ROOT, Servers
from tests.host.graphs import Prompt, empty, line, node, noise
from tests.host.witness import Seen, Witness, prefix


def encode_node(images: list, **settings: object) -> dict:
    given = {
        "fps": 8.0, "codec": "libx264", "preset": "ultrafast", "quality": -1, "pixel_format": "yuv420p",
        "filters": "", "container": "mp4", "threads": 0, "hwaccel": "none",
    }  # fmt: skip
    return node("StagexecEncodeVideo", images=images, **{**given, **settings})


def deliver_node(artifact: list, name: str, destination: str = "", overwrite: bool = False) -> dict:
    return node(
        "StagexecDeliver",
        artifact=artifact,
        filename_prefix=name,
        destination=destination,
        overwrite=overwrite,
    )


def delivery(color: int, destination: str = "", count: int = 8, name: str = "", **settings: object) -> Prompt:
    """EmptyImage → Encode Video ("2") → Deliver ("3")."""
    return line(
        empty(color, size=64, batch=count),
        encode_node(["1", 0], **settings),
        deliver_node(["2", 0], name or prefix("deliver"), destination),
    )


def delivered(seen: Seen, node_id: str = "3") -> dict:
    (one,) = seen.artifacts(node_id)
    return one


def test_a_video_is_encoded_and_delivered_and_each_part_is_in_the_ledger(
    witness: Witness, color: int
) -> None:
    seen = witness.run(delivery(color))
    assert seen.ended == ("success", None)
    one = delivered(seen)
    assert (one["state"], one["path"].endswith("_00001_.mp4")) == ("verified", True)
    assert hashlib.sha256(Path(one["path"]).read_bytes()).hexdigest() == one["sha256"]
    parts = {(s["stage"], s["part"]) for s in seen.ledger["segments"] if s["visit"] is not None}
    assert {("encode_mux", "encode")} | {
        ("delivery_commit", part) for part in ("copy", "fsync", "verify", "rename")
    } <= parts
    (mark,) = seen.marks("delivered")
    assert mark["detail"]["sha256"] == one["sha256"]
    assert set(mark["detail"]["parts_ns"]) == {"copy", "fsync", "verify", "rename"}


def test_history_names_the_delivered_file_for_the_interface(witness: Witness, color: int) -> None:
    seen = witness.run(delivery(color))
    assert seen.history is not None
    shown = seen.history["outputs"]["3"]
    assert shown["animated"] == [True]
    assert witness.client.image(shown["images"][0]) == Path(delivered(seen)["path"]).read_bytes()


def test_the_encode_is_a_child_span_with_its_frames_and_the_bar_moves(witness: Witness, color: int) -> None:
    seen = witness.run(delivery(color, count=20))
    (span,) = [s for s in seen.ledger["spans"] if s["lane"] == "child:ffmpeg" and s["stage"] == "encode_mux"]
    assert (span["detail"]["exit_code"], span["detail"]["frames"]) == (0, 20)
    moved = [m["value"] for m in seen.of_type("progress") if m["node"] == "2"]
    assert moved[-1] == 20


def test_sound_is_encoded_with_the_frames_and_bad_sound_is_refused(witness: Witness, color: int) -> None:
    def graph(bad: bool) -> Prompt:
        prompt = delivery(color)
        prompt["4"] = node("StxSineAudio", bad=bad)
        prompt["2"]["inputs"]["audio"] = ["4", 0]
        return prompt

    assert witness.run(graph(False)).ended == ("success", None)
    seen = witness.run(graph(True))
    assert seen.ended == ("failed", "artifact_nonfinite")
    assert seen.ledger["error"]["node_class"] == "StagexecEncodeVideo"


def test_an_unknown_encoder_option_is_encode_failed_with_phase_and_code(witness: Witness, color: int) -> None:
    seen = witness.run(delivery(color, preset="no_such_preset"))
    assert seen.ended == ("failed", "encode_failed")
    (mark,) = seen.marks("child_failed")
    assert mark["detail"]["phase"] == "open"
    assert list(witness.server.base.rglob("*stagexec-part*")) == []


def test_a_cancel_ends_ffmpeg_and_leaves_no_file(witness: Witness, color: int) -> None:
    prompt = line(
        noise(512, batch=100, seed=color),
        encode_node(["1", 0], preset="veryslow"),
        deliver_node(["2", 0], name := prefix("cancel")),
    )
    prompt_id = witness.client.submit(prompt)
    witness.client.wait_for("progress", prompt_id, node="2")
    witness.client.interrupt()
    seen = witness.wait(prompt_id)
    assert seen.ended == ("cancelled", "user_cancel")
    assert list(witness.server.base.rglob("*stagexec-part*")) == []
    assert list(witness.server.output.rglob(f"{name}*")) == []


def test_a_video_of_the_host_can_be_delivered(witness: Witness, color: int) -> None:
    prompt = line(
        empty(color, size=64, batch=8),
        node("CreateVideo", images=["1", 0], fps=8.0),
        deliver_node(["2", 0], prefix("host")),
    )
    seen = witness.run(prompt)
    assert seen.ended == ("success", None)
    assert delivered(seen)["state"] == "verified"


def test_a_destination_that_nobody_allowed_is_refused(witness: Witness, color: int, tmp_path: Path) -> None:
    seen = witness.run(delivery(color, destination=str(tmp_path / "nas")))
    assert seen.ended == ("failed", "delivery_failed")
    assert not (tmp_path / "nas").exists()


def test_files_outside_the_host_s_folders_are_not_delivered(witness: Witness, color: int) -> None:
    prompt = line(deliver_node([], name := prefix("leak")))
    prompt["1"]["inputs"]["artifact"] = str(ROOT / "pyproject.toml")
    seen = witness.run(prompt)
    assert seen.ended == ("failed", "delivery_failed")
    assert list(witness.server.output.rglob(f"{name}*")) == []


def test_a_refused_upload_is_partial_and_the_local_file_stays(
    server: Servers, color: int, tmp_path: Path
) -> None:
    address = "webdav+http://127.0.0.1:9/in"
    witness = Witness(server(env={"STAGEXEC_DESTINATIONS": "webdav+http://127.0.0.1:9"}))
    try:
        seen = witness.run(delivery(color, destination=address))
        assert seen.ended == ("partial", "delivery_failed")
        assert seen.ledger["error"]["stage"] == "delivery_commit"
        assert delivered(seen)["state"] == "verified"
    finally:
        witness.close()


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX")
def test_kill_9_leaves_no_partial_file_and_the_next_start_names_and_cleans_it(
    server: Servers, color: int, tmp_path: Path
) -> None:
    base = tmp_path / "home"
    first = server(base=base)
    prompt = line(
        noise(512, batch=150, seed=color),
        encode_node(["1", 0], preset="veryslow"),
        deliver_node(["2", 0], name := prefix("killed")),
    )
    with first.client() as client:
        prompt_id = client.submit(prompt)
        client.wait_for("progress", prompt_id, node="2")
    end = time.monotonic() + 60
    while not (parts := [one for one in base.rglob("*stagexec-part.mp4") if one.stat().st_size]):
        assert time.monotonic() < end, "ffmpeg has written nothing"
        time.sleep(0.02)
    first.kill()
    (part,) = parts
    assert [one for one in base.rglob("*.mp4") if one != part] == []
    assert list(first.output.rglob(f"{name}*")) == []
    # ComfyUI itself empties its temporary folder when it starts: put it where a delivery would have left it.
    kept = first.output / part.name
    os.rename(part, kept)
    (note,) = (base / "ledger" / "pending").iterdir()
    note.write_text(note.read_text().replace(str(part), str(kept)))
    second = server(base=base)
    assert f"left the temporary file {kept}" in second.log()
    assert kept.exists()
    second.stop()
    third = server("--stagexec-clean", base=base)
    assert not kept.exists()
    assert list((base / "ledger" / "pending").iterdir()) == []
    third.stop()


def test_the_pack_works_in_a_stock_comfyui(server: Servers, color: int) -> None:
    stock = server(launcher=lab.STOCK, custom_nodes=(ROOT / "stagexec" / "host" / "pack",), env={
        "PYTHONPATH": str(ROOT)
    })  # fmt: skip
    name = prefix("stock")
    with stock.client() as client:
        shown = client.get("/object_info/StagexecDeliver")["StagexecDeliver"]
        assert shown["category"] == "stagexec"
        entry = client.run(delivery(color, name=name))
    assert entry["status"]["status_str"] == "success", entry["status"]
    (file,) = stock.output.rglob(f"{name}*")
    assert file.name == f"{name}_00001_.mp4"


def test_our_launcher_registers_the_nodes_in_their_category(ours: lab.Server) -> None:
    with ours.client(connect=False) as client:
        shown = client.get("/object_info")
    assert {shown[name]["category"] for name in ("StagexecEncodeVideo", "StagexecDeliver")} == {"stagexec"}
    assert shown["StagexecDeliver"]["output_node"] is True


def test_a_cached_encode_is_delivered_again_under_a_new_name(witness: Witness, color: int) -> None:
    name = prefix("again")
    first = witness.run(delivery(color, name=name))
    prompt = delivery(color, name=name)
    prompt["3"]["inputs"]["filename_prefix"] = f"{name}-b"
    second = witness.run(prompt)
    assert "2" in second.ledger["cached_nodes"]
    assert delivered(first)["sha256"] == delivered(second)["sha256"]
    assert delivered(first)["path"] != delivered(second)["path"]
