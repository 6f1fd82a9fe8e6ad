"""The seams of libraries on the real ones: a file that is read, a model that is built, a wait for others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("inside_libraries.py")
WAITED_NS = 300_000_000
"""The test's server thinks for 0.15 s before its answer, and for as long in the middle of it."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path_factory.mktemp("libraries"))],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "fault in our own bookkeeping" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def named(told: dict[str, Any], act: str) -> list[tuple[str, str | None, str]]:
    rows = told["found"][act]["rows"]
    return list(dict.fromkeys((stage, part, seam) for stage, part, seam, _ in rows if seam is not None))


WAITS = {
    "urllib_read": ["urllib_open", "socket_read"],
    "requests_get": ["requests_send"],
    "requests_stream": ["requests_send", "socket_read"],
    "urllib3_get": ["urllib3_request"],
    "httpx_get": ["httpx_send"],
    "httpx_stream": ["httpx_send", "httpx_stream"],
    "httpx2_get": ["httpx2_send"],
    "httpx2_stream": ["httpx2_send", "httpx2_stream"],
    "http_by_hand": ["http_send", "http_answer", "socket_read"],
    "torch_hub_download": ["hub_download_url"],
}


@pytest.mark.parametrize("act", WAITS)
def test_a_request_and_its_body_are_a_wait_with_the_library_s_name(told: dict[str, Any], act: str) -> None:
    if act not in told["found"]:
        pytest.skip(f"no {act.partition('_')[0]} here")
    assert named(told, act) == [("external_wait", None, seam) for seam in WAITS[act]]
    waited = sum(ns for *_, seam, ns in told["found"][act]["rows"] if seam is not None)
    assert WAITED_NS * 0.95 <= waited <= told["found"][act]["total"]


def test_a_download_from_the_hub_is_a_wait(told: dict[str, Any]) -> None:
    assert named(told, "hub_download") == [("external_wait", None, "hub_file")]


@pytest.mark.parametrize(
    ("act", "names"),
    [
        ("aiohttp_on_a_thread", ["aiohttp_request", "aiohttp_body"]),
        ("requests_on_a_thread", ["requests_send"]),
    ],
)
def test_a_request_on_a_thread_is_a_span_and_counts_once(
    told: dict[str, Any], act: str, names: list[str]
) -> None:
    found = told["found"][act]
    assert found["rows"] == []
    assert [(stage, name) for _, stage, name, _ in found["spans"]] == [("external_wait", n) for n in names]
    assert all(lane.startswith("thread:") for lane, *_ in found["spans"])
    assert sum(ns for *_, ns in found["spans"]) >= WAITED_NS * 0.95


READS = {
    "safetensors_file": "safetensors_file",
    "safe_open_tensors": "safe_open",
    "torch_load": "torch_load",
    "torch_jit_load": "torch_jit_load",
}


@pytest.mark.parametrize("act", READS)
def test_a_file_of_weights_is_a_read_with_its_size(told: dict[str, Any], act: str) -> None:
    assert named(told, act) == [("model_load_residency", "read", READS[act])]
    marks = told["found"][act]["marks"]
    assert {name for name, _ in marks} == {"weights_read"}
    for _, detail in marks:
        assert detail["bytes"] > 300_000
        assert detail["ns"] > 0
        assert detail["pages"] is None or detail["pages"] * 4096 >= detail["bytes"]


def test_the_name_of_a_file_of_weights_is_not_kept(told: dict[str, Any]) -> None:
    (mark,) = told["found"]["safetensors_file"]["marks"]
    assert mark[1]["file"].startswith("text:")
    assert mark[1]["file"].endswith(".safetensors")
    assert "woman" not in json.dumps(told)


def test_the_address_that_was_asked_is_not_kept(told: dict[str, Any]) -> None:
    assert "secret" not in json.dumps(told)
    assert "127.0.0.1" not in json.dumps(told)


def test_hundreds_of_tensors_read_one_by_one_are_a_few_segments(told: dict[str, Any]) -> None:
    found = told["found"]["safe_open_tensors"]
    assert len(found["rows"]) < 50, "200 reads, each within 0.2 ms of the one before"
    assert sum(row[3] for row in found["rows"]) > found["total"] / 4


def test_a_model_from_transformers_is_built_in_its_stage(told: dict[str, Any]) -> None:
    assert named(told, "transformers_model") == [("model_load_residency", "build", "transformers_model")]


def test_weights_put_into_a_module_by_hand_are_a_build(told: dict[str, Any]) -> None:
    assert named(told, "load_state_dict") == [("model_load_residency", "build", "load_state_dict")]


def test_a_method_with_a_seam_can_be_compiled_as_one_graph(told: dict[str, Any]) -> None:
    """The compiled call is torch's own affair; the plain one after it is seen."""
    assert named(told, "traced_by_torch") == [("vae_decode", None, "d")]


def test_no_row_of_the_libraries_is_refused(told: dict[str, Any]) -> None:
    assert set(told["states"].values()) <= {"installed", "absent"}
