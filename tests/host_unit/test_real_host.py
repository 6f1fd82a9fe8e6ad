"""The shipped tables on real ComfyUI trees, each imported in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from stagexec.host.tables import read

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("real_host.py")

EVERYWHERE = {"torch_compile", "vhs_frames_to_bytes", "vhs_frames_to_shorts", "prompt_worker"}
"""Absent on any host here: torch's compiler is imported when something compiles; the pack is not there; the
worker is supervised when ComfyUI's main.py starts it, which a test does not run."""

ABSENT = {
    "0.30.0": EVERYWHERE,
    "0.20.1": {*EVERYWHERE, "vae_tiles_owned", "transcode_video"},
    "0.16.3": {*EVERYWHERE, "vae_tiles_owned", "transcode_video", "is_oom"},
}
"""What each host has not."""

LIBRARIES = set(read(ROOT / "patches" / "libraries.toml").seams)
"""Seams of libraries that packs import, or nothing does."""

BROUGHT = {"safetensors_file", "safe_open", "torch_load", "torch_jit_load", "load_state_dict", "urllib_open"}
"""Those of libraries that every host imports as it starts."""

pytestmark = pytest.mark.host


@lru_cache
def tried(tree: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tree)],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(params=sorted(ABSENT, reverse=True))
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def told(version: str, host_tree: Path, old_host_tree: Callable[[str], Path]) -> dict[str, Any]:
    return tried(host_tree if version == "0.30.0" else old_host_tree(version))


def test_every_row_is_installed_or_absent_as_expected(told: dict[str, Any], version: str) -> None:
    states = {one["seam"]: (one["state"], one["reason"]) for one in told["installed"]}
    absent = {seam for seam, (state, _) in states.items() if state == "absent"}
    assert absent - LIBRARIES == ABSENT[version]
    assert absent.isdisjoint(BROUGHT)
    assert {
        seam: why for seam, why in states.items() if seam not in absent and why != ("installed", None)
    } == {}


def test_from_imports_of_the_reader_hold_the_wrapper(told: dict[str, Any]) -> None:
    assert told["same_reader"] is True


def test_upload_and_offload_are_stages_of_their_own(told: dict[str, Any]) -> None:
    seams = [one[2] for one in told["entered"]]
    assert "upload_models" in seams
    assert "offload_models" in seams


def test_the_hosts_own_tiled_retry_is_seen_and_its_result_untouched(told: dict[str, Any]) -> None:
    assert told["retried"] is True
    assert ["vae_decode", "tiled_retry", "vae_tiles_2d"] in told["entered"]


def test_a_saver_s_folder_is_found(told: dict[str, Any]) -> None:
    assert [one[:2] for one in told["folders"]] == [told["saved"]]


def test_undo_leaves_no_wrapper_at_work_in_any_module(told: dict[str, Any]) -> None:
    assert told["left"] == []
    assert {one["reason"] for one in told["undone"] if one["state"] != "absent"} == set()
