"""`stagexec demo`, as a new user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stagexec.bench import setup
from stagexec.cli import demo
from stagexec.reading import store


def host_with(requirements: str, folder: Path) -> Path:
    (folder / "comfy").mkdir()
    for name in ("main.py", "execution.py", "nodes.py"):
        (folder / name).write_text("")
    (folder / "requirements.txt").write_text(requirements)
    return folder


def test_only_essential_requirements_that_are_missing_are_named(tmp_path: Path) -> None:
    text = "click\nno-such-thing==1.0\n\n#non essential dependencies:\nno-such-luxury>=2\n"
    assert demo.missing_requirements(host_with(text, tmp_path)) == ["no-such-thing"]


def test_missing_requirements_end_with_2_and_the_command_that_mends_it(tmp_path: Path) -> None:
    host = host_with("no-such-thing==1.0\n", tmp_path)
    done = CliRunner().invoke(demo.command, ["--comfyui", str(host), "--ledger", str(tmp_path / "ledger")])
    assert done.exit_code == 2
    assert "no-such-thing" in done.output
    assert f"-m pip install -r {host / 'requirements.txt'}" in done.output.replace("\n", "")


def test_a_folder_that_is_no_comfyui_is_one_clear_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(demo.command, ["--comfyui", str(tmp_path)])
    assert done.exit_code == 2
    assert "no ComfyUI tree" in done.output
    assert "Traceback" not in done.output


def test_a_set_up_that_fails_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(comfyui: str | None) -> Any:
        raise setup.SetupError("the registry does not answer")

    monkeypatch.setattr(demo, "prepare", fail)
    done = CliRunner().invoke(demo.command, ["--ledger", str(tmp_path)])
    assert done.exit_code == 1
    assert "the registry does not answer" in done.output


def test_a_run_that_is_never_closed_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="not in the journal"):
        demo.wait_closed(tmp_path, "some-prompt", 0.2)


@pytest.mark.host
def test_the_demo_shows_three_runs_whose_stages_add_up_and_why_they_differ(
    host_tree: Path, checkpoint: Path, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    command = [sys.executable, "-m", "stagexec", "demo", "--json", "--ledger", str(ledger)]
    command += ["--comfyui", str(host_tree)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    first, again, new_seed = shown["runs"]
    for run in (first, again, new_seed):
        assert run["outcome"] == "success"
        assert sum(run["stages"].values()) == run["total_ns"]
        assert sum(s["end_ns"] - s["start_ns"] for s in run["segments"]) == run["total_ns"]
    assert first["stages"]["sampling"] > 0
    assert first["stages"]["model_load_residency"] > 0
    assert "sampling" not in again["stages"]
    assert set(again["cached_nodes"]) == set(demo.workflow(1))
    assert new_seed["stages"]["sampling"] > 0
    verdicts = [difference["verdict"] for difference in shown["differences"]]
    assert "came from the cache" in verdicts[0]
    # What weighs most differs with the machine's load; what came from the cache does not.
    assert "4 of 7 nodes came from the cache" in verdicts[1]
    assert new_seed["stages"]["model_load_residency"] < first["stages"]["model_load_residency"]
    assert [run.outcome for run in store.load(ledger).runs] == ["success"] * 3
