"""What nodes do past ComfyUI has a name in both loops: weights, pipelines, waits, programs, unknown code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.host.graphs import through
from tests.host.witness import MS, Seen, Witness, prefix

LONG = 0.4


@pytest.fixture(params=["witness", "host_witness"])
def both(request: pytest.FixtureRequest) -> Witness:
    """The native loop's server, then the host loop's."""
    found: Witness = request.getfixturevalue(request.param)
    return found


def played(one: Witness, kind: str, color: int, seconds: float = LONG) -> Seen:
    seen = one.run(through(kind, prefix("named"), color, seconds=seconds))
    assert seen.ended == ("success", None)
    assert sum(seen.ledger["named"].values()) == seen.ledger["total_ns"]
    return seen


def inside(seen: Seen) -> dict[tuple[str, str | None, str], float]:
    """(stage, part, seam) -> ms of what seams opened in the visit of node "2"."""
    (visit,) = (v["visit"] for v in seen.visits_of("2"))
    found: dict[tuple[str, str | None, str], float] = {}
    for one in seen.ledger["segments"]:
        if one["visit"] == visit and one["seam"] is not None:
            key = one["stage"], one["part"], one["seam"]
            found[key] = found.get(key, 0) + (one["end_ns"] - one["start_ns"]) / MS
    return found


def test_a_request_is_a_wait_with_the_library_s_name(both: Witness, color: int) -> None:
    seen = played(both, "StxAsksServer", color)
    assert set(inside(seen)) == {("external_wait", None, "requests_send")}
    assert seen.stage_ms("external_wait") >= LONG * 1000 * 0.95
    assert "woman" not in _journal(both)


def test_a_file_of_weights_is_a_read_with_its_speed(both: Witness, color: int) -> None:
    seen = played(both, "StxReadsWeights", color)
    assert set(inside(seen)) == {("model_load_residency", "read", "safetensors_file")}
    (read,) = seen.ledger["reads"]
    assert read["bytes"] > 64_000_000
    assert read["ns"] > 0
    assert read["disk_bytes"] is None or 0 <= read["disk_bytes"] <= read["bytes"]
    assert "woman" not in _journal(both)


def test_a_pipeline_is_loaded_encoded_sampled_and_decoded(both: Witness, color: int) -> None:
    seen = played(both, "StxPipeline", color, 0.2)
    found = inside(seen)
    least = {
        ("model_load_residency", "build", "diffusers_pipeline_load"): 200,
        ("conditioning", "encode", "diffusers_prompt"): 200,
        ("sampling", None, "diffusers_call"): 200,
        ("sampling", "step", "diffusers_step"): 5,
        ("vae_decode", "decode", "diffusers_vae_decode"): 200,
    }
    assert set(found) == set(least)
    assert all(found[place] >= ms * 0.95 for place, ms in least.items()), found
    named = seen.ledger["named"]
    assert (seen.ledger["total_ns"] - named["unnamed_ns"] - named["sampled_ns"]) / seen.ledger[
        "total_ns"
    ] > 0.9


def test_a_program_is_a_span_with_its_exit_code_and_cpu_time(both: Witness, color: int) -> None:
    seen = played(both, "StxRunsProgram", color)
    (span,) = (one for one in seen.ledger["spans"] if one["lane"].startswith("child:"))
    assert span["lane"].startswith("child:python")
    assert span["detail"]["exit_code"] == 3
    assert span["detail"]["cpu_ns"] is None or span["detail"]["cpu_ns"] >= LONG * 1e9 * 0.9
    assert {seam for _, _, seam in inside(seen)} == {span["lane"]}
    assert sum(inside(seen).values()) >= LONG * 1000 * 0.95


def test_code_that_nobody_knows_is_unnamed_and_said_to_have_run(both: Witness, color: int) -> None:
    seen = played(both, "StxUnknownWork", color, 1.0)
    (row,) = (one for one in seen.ledger["unnamed"] if one["node_id"] == "2")
    assert (row["node_class"], row["stage"]) == ("StxUnknownWork", "node_other")
    assert row["ns"] >= 0.95e9
    assert row["ran"][0]["name"].endswith("nodes_pack.libraries.find_masks")
    assert row["ran"][0]["share"] > 0.5
    assert "/" not in json.dumps(row)
    assert seen.ledger["named_share"] > 0.5
    assert seen.ledger["cpu"]["node_other"]["covered_ns"] > 0


def _journal(one: Witness) -> str:
    files = sorted(Path(one.folder, "journal").rglob("*.jsonl"))
    return "".join(file.read_text(encoding="utf-8") for file in files)
