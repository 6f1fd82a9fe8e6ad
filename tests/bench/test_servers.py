"""What the real lab makes of logs, refusals and options, without a server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stagexec.bench import plan, servers
from stagexec.bench.client import Refused


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (
            "Starting\nTraceback (most recent call last):\n  File x\n"
            "ModuleNotFoundError: No module named 'torchsde'\n",
            "ModuleNotFoundError: No module named 'torchsde'",
        ),
        (
            "usage: main.py\nmain.py: error: argument --fast: invalid PerformanceFeature value: 'x'\n",
            "main.py: error: argument --fast: invalid PerformanceFeature value: 'x'",
        ),
        (
            "ERROR\nTo use it, the `sageattention` package must be installed first.\ncommand: pip",
            "To use it, the `sageattention` package must be installed first.",
        ),
        ("a\nTraceback\ntorch.OutOfMemoryError: no room\nbye\n", "torch.OutOfMemoryError: no room"),
        ("\x1b[31m[ERROR]\x1b[0m gone\n", "[ERROR] gone"),
        ("one\n\ntwo\n\n", "two"),
        ("", None),
    ],
)
def test_the_line_that_says_why_a_server_ended_is_found(log: str, line: str | None) -> None:
    assert servers.clear_line(log) == line


def test_a_refused_workflow_is_one_line_with_the_node_and_the_reason() -> None:
    body = {
        "error": {"type": "prompt_outputs_failed_validation", "message": "Prompt outputs failed validation"},
        "node_errors": {
            "3": {
                "class_type": "KSampler",
                "errors": [{"message": "Value not in list", "details": "sampler_name: 'x' not in (…)"}],
            }
        },
    }
    said = servers.refusal(Refused(400, body))
    assert said.endswith("node 3 (KSampler): Value not in list: sampler_name: 'x' not in (…)")
    other = {"error": {"message": "Cannot execute because node X does not exist."}, "node_errors": {}}
    assert servers.refusal(Refused(400, other)).endswith("node X does not exist.")
    assert servers.refusal(Refused(500, "oh\nno")) == "the server refused the workflow: oh no"


@pytest.fixture
def lab(tmp_path: Path) -> servers.Servers:
    (tmp_path / "tree" / "comfy").mkdir(parents=True)
    (tmp_path / "tree" / "main.py").write_text("")
    (tmp_path / "tree" / "comfy" / "cli_args.py").write_text('add("--cache-none")')
    return servers.Servers(servers.Place(tmp_path / "tree", tmp_path / "out", tmp_path / "out" / "ledger"))


@pytest.mark.parametrize(
    ("arm", "args", "reason"),
    [
        (plan.Arm("a"), ["--cache-none", "--stagexec-executor", "host"], None),
        (plan.Arm("a"), ["--use-magic"], "this ComfyUI has no option --use-magic"),
        (plan.Arm("a", comfyui="nowhere"), [], "nowhere is no ComfyUI tree"),
        (plan.Arm("a", python="no-such-python"), [], "there is no Python at no-such-python"),
        (plan.Arm("a", needs=plan.Needs(modules=["no_such"])), [], "the package no_such is not installed"),
        (plan.Arm("a", needs=plan.Needs(files=["vae/x"])), [], "there is no file vae/x"),
    ],
)
def test_why_an_arm_cannot_run_here_is_known_before_a_server_is_started(
    lab: servers.Servers, arm: plan.Arm, args: list[str], reason: str | None
) -> None:
    assert lab.why_not(arm, args) == reason


def test_only_the_workflows_model_files_are_dropped_from_memory(tmp_path: Path) -> None:
    (tmp_path / "models" / "vae").mkdir(parents=True)
    for name in ("used.safetensors", "other.safetensors"):
        (tmp_path / "models" / "vae" / name).write_bytes(b"12345")
    workflow = {"1": {"class_type": "VAELoader", "inputs": {"vae_name": "used.safetensors"}}}
    place = servers.Place(tmp_path, tmp_path, tmp_path, models=tmp_path / "models", workflow=workflow)
    said = servers.Servers(place)._drop_page_cache()
    expected = "asked to drop 1 model files, 5 bytes"
    assert said == (expected if sys.platform == "linux" else said)
    assert said.startswith(("asked to drop", "could not be dropped"))


def test_each_kind_of_model_of_the_host_is_named_to_the_server(tmp_path: Path) -> None:
    import json

    from stagexec.bench import lab as life

    (tmp_path / "models" / "vae").mkdir(parents=True)
    (tmp_path / "models" / "checkpoints").mkdir()
    launch = life.Launch(tmp_path, tmp_path / "b", models=tmp_path / "models", checkpoints=tmp_path / "tiny")
    life.prepare_folders(launch)
    named = json.loads((tmp_path / "b" / "extra_model_paths.yaml").read_text())["stagexec"]
    assert named["vae"] == str(tmp_path / "models" / "vae")
    assert named["checkpoints"].splitlines() == [
        str(tmp_path / "models" / "checkpoints"),
        str(tmp_path / "tiny"),
    ]


class Occupied:
    """A session whose server finds its port taken a number of times."""

    def __init__(self, log: str, ready: bool) -> None:
        self.server, self.pid, self.log_name, self.closed = self, 1, "x.log", False
        self.text, self.ready = log, ready

    def start(self) -> Occupied:
        return self

    def wait_ready(self, seconds: float) -> None:
        if not self.ready:
            raise servers.lab.ServerDied("the server ended with code 1")

    def log(self) -> str:
        return self.text

    def connect(self) -> None: ...

    def check_classes(self, names: list[str]) -> None: ...

    def no_op(self) -> None: ...

    def close(self) -> None:
        self.closed = True


TAKEN = "OSError: [Errno 98] error while attempting to bind on ('127.0.0.1', 1): address already in use\n"


@pytest.mark.parametrize(("log", "starts"), [(TAKEN, 3), ("RuntimeError: no kernel\n", 1)])
def test_a_port_that_somebody_else_took_is_tried_anew_and_another_failure_is_not(
    lab: servers.Servers, monkeypatch: pytest.MonkeyPatch, log: str, starts: int
) -> None:
    made: list[Occupied] = []
    monkeypatch.setattr(lab, "_session", lambda arm, args: made.append(Occupied(log, False)) or made[-1])
    with pytest.raises(servers.ArmFailed, match=log[:7]):
        lab.open(plan.Arm("a"), [], cold=False, page_cache="as it is")
    assert [one.closed for one in made] == [True] * starts
    made.clear()
    monkeypatch.setattr(lab, "_session", lambda arm, args: made.append(Occupied(log, bool(made))) or made[-1])
    if starts > 1:
        assert lab.open(plan.Arm("a"), [], cold=False, page_cache="as it is")[0] is made[1]
