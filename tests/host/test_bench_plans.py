"""The shipped plans, each run to its end by the command on real servers, at the smallest size."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stagexec.bench.results import complete
from stagexec.bench.tables import VERDICTS

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(
    900
)  # a plan is a minute on two idle cores; the first test of each waits for it

SMALLEST = ("--set", "5.width=16", "--set", "5.height=16", "--set", "3.steps=1", "--warmup", "1")
PLANS = {
    "self": ("--unit", "M04"),
    "attention": ("--counted", "1"),
    "vae_precision": ("--counted", "1", "--repeats", "1"),
    "quantization": ("--counted", "1", "--repeats", "1"),
    "matrix": (
        "--counted", "1", "--unit", "M01", "--unit", "M02", "--unit", "M04", "--unit", "M05", "--unit", "M08",
        "--unit", "M09", "--unit", "M10",
    ),
}  # fmt: skip
"""Plan -> how it is shortened. The units that are left out of the matrix here run in other tests."""

RUN_HERE = {
    "self": {"this", "this again"},
    "attention": {"pytorch", "split", "quad"},
    "vae_precision": {"fp32", "fp16", "bf16", "tiled"},
    "quantization": {"as it is", "fp8 e4m3 weights", "fp8 e5m2 weights", "bf16 weights"},
    "matrix": {"as it is"},
}
"""Plan -> arms that need nothing but a CPU."""

MISSING = {
    "sage": r"the package sageattention is not installed|no CUDA device",
    "flash": r"the package flash_attn is not installed|no CUDA device",
    "xformers": r"the package xformers is not installed|no CUDA device",
    "cpu": "no CUDA device",
    "TAESD": r"there is no file vae_approx/taesd_decoder\.safetensors",
    "fast fp16 accumulation": "no CUDA device",
    "fast fp8 matrix multiplication": "no CUDA device",
    "GGUF": r"there is no file diffusion_models/model-Q4_K_S\.gguf",
}
"""Every other arm -> why it is unavailable, where it is."""


@dataclass
class Bench:
    """One plan that was run."""

    plan: str
    folder: Path
    done: subprocess.CompletedProcess[str]
    found: dict[str, Any]
    """report.json"""

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]


def bench(folder: Path, *words: str, seconds: float = 840) -> subprocess.CompletedProcess[str]:
    """`stagexec bench …`, as a person calls it."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "stagexec", "bench", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=seconds)


@pytest.fixture(scope="module", params=list(PLANS))
def ran(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    host_tree: Path,
    checkpoint: Path,
) -> Bench:
    """A shipped plan, after its run."""
    base, name = tmp_path_factory.mktemp(request.param), request.param
    done = bench(base, name, "--out", "result", "--comfyui", str(host_tree), *SMALLEST, *PLANS[name])
    assert done.returncode == 0, done.stderr
    found = json.loads((base / "result" / "report.json").read_text(encoding="utf-8"))
    return Bench(name, base / "result", done, found)


def test_a_shipped_plan_is_finished_and_says_nothing_but_what_it_has_to_say(ran: Bench) -> None:
    assert ran.found["state"] == "finished"
    assert "Traceback" not in ran.done.stdout + ran.done.stderr
    assert "report: result/report.md" in ran.done.stdout.replace("\\", "/")


def test_every_arm_of_it_is_measured_and_proven_active_or_unavailable_with_the_reason(ran: Bench) -> None:
    wanted = {unit["name"]: unit["counted"] * unit["repeats"] for unit in ran.found["units"]}
    assert {cell["arm"] for cell in ran.found["cells"]} >= RUN_HERE[ran.plan]
    for cell in ran.found["cells"]:
        if cell["arm"] in RUN_HERE[ran.plan] or cell["status"] == "measured":
            assert (cell["status"], cell["n"]) == ("measured", wanted[cell["unit"]]), cell
            proofs = [p for p in ran.found["proofs"] if (p["unit"], p["arm"]) == (cell["unit"], cell["arm"])]
            assert [p["active"] for p in proofs] == [True]
            assert all(check["ok"] and check["evidence"] != "none" for check in proofs[0]["checks"])
        else:
            assert cell["status"] == "unavailable", cell
            assert re.search(MISSING[cell["arm"]], cell["reason"]), cell
    assert {arm["arm"] for arm in ran.found["arms"]} <= set(MISSING)


def test_every_verdict_of_it_is_an_honest_one(ran: Bench) -> None:
    assert len(ran.found["comparisons"]) == len(ran.found["cells"]) - len(
        [cell for cell in ran.found["cells"] if cell["arm"] == ran.found["reference"]]
    )
    for one in ran.found["comparisons"]:
        if one["total"] is None:
            assert one["verdict"] == "unavailable"
            continue
        assert one["verdict"] in VERDICTS
        low, high = one["total"]["low"], one["total"]["high"]
        if one["pairs"] < 4:
            assert (low, high) == (None, None)
            assert one["verdict"] in ("not shown", "wrong output")
        if one["verdict"] == "faster":
            assert high < 1
        if one["verdict"] == "slower":
            assert low > 1
        assert one["quality"]["compared"] == one["runs"]


def test_an_arm_is_not_shown_to_differ_from_itself(ran: Bench, host_tree: Path) -> None:
    if ran.plan != "self":
        assert all(one["arm"] != one["reference"] for one in ran.found["comparisons"])
        return
    found = ran.found
    (one,) = found["comparisons"]
    if one["verdict"] != "not shown":  # by its design 1 bench of 70 shows what is not there; none two times
        again = bench(ran.folder.parent, "self", "--out", "again", "--comfyui", str(host_tree), *SMALLEST,
                      *PLANS["self"])  # fmt: skip
        assert again.returncode == 0, again.stderr
        found = json.loads((ran.folder.parent / "again" / "report.json").read_text(encoding="utf-8"))
        (one,) = found["comparisons"]
    assert (one["verdict"], one["pairs"], one["runs"]) == ("not shown", 10, 10)
    assert one["total"]["low"] < 1.1
    assert one["total"]["high"] > 0.9
    assert "pairs would show a difference of 5% in 4 of 5 benches" in one["reason"]
    assert one["quality"]["identical"] == 10
    assert len({run["session"] for run in ran.lines("runs.jsonl")}) == 1


def test_on_the_shipped_checkpoint_no_likeness_is_called_quality(ran: Bench) -> None:
    assert ran.found["random_weights"] == ["stagexec-tiny-sd15.safetensors"]
    for one in ran.found["comparisons"]:
        judged = one["quality"]
        if judged is not None and ran.plan != "self" and judged["identical"] < judged["compared"]:
            assert judged["refused"] or not judged["right"]
            assert one["verdict"] != "wrong output" or "falls to" not in one["reason"]


def test_its_report_is_there_three_times_and_the_page_loads_nothing(ran: Bench) -> None:
    page = (ran.folder / "report.html").read_text(encoding="utf-8")
    markdown = (ran.folder / "report.md").read_text(encoding="utf-8")
    for text in (page, markdown):
        for answer in ran.found["answers"]:
            assert answer["question"] in text
        assert all(cell["arm"] in text for cell in ran.found["cells"])
    loaded = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?([^\"'>]*)", page)
    assert [place for place in loaded if not place.startswith("data:image/png;base64,")] == []
    assert not re.search(r"@import|url\((?![\"']?(?:data:|#))", page.partition("</style>")[0])
    assert len(loaded) >= len(RUN_HERE[ran.plan])


def test_its_raw_runs_are_complete_and_the_tables_count_each_once(ran: Bench) -> None:
    raw = ran.lines("runs.jsonl")
    assert len(raw) == ran.found["runs"]
    assert len({run["run_id"] for run in raw}) == len(raw)
    positions = {u["name"]: len({r["position"] for r in counted(raw, u["name"])}) for u in ran.found["units"]}
    measures = complete(raw, positions)
    for unit in ran.found["units"]:
        pairs = {
            pair for name, arm, pair in measures if (name, arm) == (unit["name"], ran.found["reference"])
        }
        assert pairs == set(range(unit["counted"] * unit["repeats"]))
    for cell in ran.found["cells"]:
        mine = [
            r
            for r in counted(raw, cell["unit"])
            if (r["arm"], r["position"]) == (cell["arm"], cell["position"])
        ]
        assert len(mine) == cell["n"]
        for run in mine:
            assert run["total_ns"] == sum(run["stages"].values())
            assert run["condition_id"]
    again = bench(ran.folder.parent, "report", "result", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout) == ran.found


def counted(raw: list[dict[str, Any]], unit: str) -> list[dict[str, Any]]:
    return [run for run in raw if run["unit"] == unit and run["role"] == "counted" and run["right_state"]]
