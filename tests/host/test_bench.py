"""The bench on real servers, at the smallest size: proofs, refusals, a failed start, a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stagexec.bench import plan, report, results, runner, servers
from stagexec.resources import bench_folder

TEXT = """name = "small"
about = "arms that work, and arms that cannot"
reference = "split"
repeats = 1

[[arm]]
name = "split"
args = ["--use-split-cross-attention"]
active = [
  { what = "attention that ran", diagnosis = "attention(_other)?", value = "^[^,]+: attention_split " },
  { what = "attention chosen", log = "Using split optimization for attention" },
]

[[arm]]
name = "native pytorch"
args = ["--use-pytorch-cross-attention", "--stagexec-executor", "native"]
active = [
  { what = "attention that ran", diagnosis = "attention(_other)?", value = "^[^,]+: attention_pytorch " },
  { what = "executor", row = "executor", value = "^native$" },
]

[[arm]]
name = "pretender"
args = ["--use-split-cross-attention"]
active = [
  { what = "attention that ran", diagnosis = "attention(_other)?", value = "^[^,]+: attention_pytorch " },
]

[[arm]]
name = "refused"
edits = [{ class = "KSampler", input = "sampler_name", value = "no such sampler" }]

[[arm]]
name = "cannot start"
args = ["--fast", "no_such_feature"]

[[arm]]
name = "unknown option"
args = ["--no-such-option"]

[[unit]]
name = "M03"
state = "recompute"
warmup = 1
counted = 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, host_tree: Path, checkpoint: Path) -> Path:
    """The result folder of one small bench."""
    out = tmp_path_factory.mktemp("bench") / "result"
    wanted = plan.parse(TEXT)
    workflow = json.loads((bench_folder() / "workflows" / "tiny_txt2img.json").read_text())
    workflow["5"]["inputs"] |= {"width": 16, "height": 16}
    opened = results.create(out, wanted, workflow, {"machine": servers.machine()})
    place = servers.Place(
        host_tree, out, opened.ledger, checkpoint=checkpoint, args=("--cpu",), workflow=workflow
    )
    runner.Bench(wanted, servers.Servers(place), opened).run()
    return out


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    return report.write(folder)


def cell(found: dict[str, Any], arm: str) -> dict[str, Any]:
    return next(one for one in found["cells"] if one["arm"] == arm)


@pytest.mark.parametrize("arm", ["split", "native pytorch"])
def test_arms_that_work_are_measured_and_proved_active(found: dict[str, Any], arm: str) -> None:
    assert (cell(found, arm)["status"], cell(found, arm)["n"]) == ("measured", 1)
    proof = next(one for one in found["proofs"] if one["arm"] == arm)
    assert [check["ok"] for check in proof["checks"]] == [True, True]
    assert sum(s["p50"] for s in cell(found, arm)["stages"].values()) == cell(found, arm)["total"]["p50"]


def test_an_arm_that_ran_another_attention_is_not_active(found: dict[str, Any]) -> None:
    assert cell(found, "pretender")["status"] == "not active"
    assert "attention_split" in cell(found, "pretender")["reason"]


@pytest.mark.parametrize(
    ("arm", "status", "says"),
    [
        ("refused", "failed", "the server refused the workflow: node 3 (KSampler): Value not in list"),
        ("cannot start", "failed", "no_such_feature"),
        ("unknown option", "unavailable", "this ComfyUI has no option --no-such-option"),
    ],
)
def test_arms_that_cannot_run_are_one_clear_line_each(
    found: dict[str, Any], arm: str, status: str, says: str
) -> None:
    assert cell(found, arm)["status"] == status
    assert says in cell(found, arm)["reason"]
    assert "\n" not in cell(found, arm)["reason"]


def test_the_delivered_pictures_are_kept_and_compared(folder: Path, found: dict[str, Any]) -> None:
    assert len(list((folder / "images").iterdir())) >= 2
    compared = next(one for one in found["comparisons"] if one["arm"] == "native pytorch")
    assert compared["quality"]["compared"] == 1
    assert compared["quality"]["psnr_min"] is None or compared["quality"]["psnr_min"] > 20


def test_one_pair_shows_nothing(found: dict[str, Any]) -> None:
    compared = next(one for one in found["comparisons"] if one["arm"] == "native pytorch")
    assert compared["verdict"] in ("not shown", "wrong output")
    assert "1 pair is too few" in compared["reason"] or compared["verdict"] == "wrong output"


def test_the_first_server_tells_whether_all_of_them_may_live_at_once(
    folder: Path, found: dict[str, Any]
) -> None:
    told = found["units"][0]["room"]
    memory = told["figures"][0]
    assert memory["memory"] == "memory"
    assert 100_000_000 < memory["server_bytes"] <= memory["peak_bytes"] < memory["total_bytes"]
    assert told["fits"] is (memory["need_bytes"] <= memory["free_bytes"])
    assert [block["interleaved"] for block in found["units"][0]["rounds"]] == [told["fits"]]
    raw = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    assert all(0 <= run["around"]["others_cpu"] <= 1.05 for run in raw if run["role"] == "counted")


def test_servers_are_gone_and_their_logs_are_kept(folder: Path) -> None:
    assert list((folder / "servers").iterdir()) == []
    assert len(list((folder / "logs").iterdir())) >= 4


def test_the_ledger_of_the_bench_answers_like_any_other(folder: Path) -> None:
    from stagexec.reading import store

    runs = store.load(folder / "ledger").runs
    raw = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    assert {run["run_id"] for run in raw} <= {run.run_id for run in runs}
