"""Reports, from the raw runs of a scripted lab: verdicts, refusals, words, and the three files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stagexec.bench import charts, plan, report, results, runner, tables
from tests.bench.fake_lab import PROMPT, FakeLab

ROOT = Path(__file__).resolve().parents[2]
ARMS = 'servers = 9\nrepeats = 1\n[[arm]]\nname = "a"\n[[arm]]\nname = "b"\n'
UNIT = '[[unit]]\nname = "M03"\nstate = "recompute"\nwarmup = 1\n'


def bench(folder: Path, text: str, lab: FakeLab) -> tables.Tables:
    wanted = plan.parse(f'name = "test"\nabout = "a <test>"\n{text}')
    opened = results.create(folder, wanted, PROMPT, {"machine": {"name": "here"}})
    runner.Bench(wanted, lab, opened).run()
    return tables.load(folder)


def only(found: tables.Tables) -> tables.Comparison:
    (one,) = found.comparisons
    return one


def painter(folder: Path, change: dict[str, int]) -> Callable[[str, int], Path]:
    """Pictures that depend on the seed alone, but for arms in `change`, which add so much to every value."""

    def paint(arm: str, seed: int) -> Path:
        folder.mkdir(exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 200, (16, 16, 3)) + change.get(arm, 0)
        path = folder / f"{arm}-{seed}.png"
        Image.fromarray(pixels.astype(np.uint8)).save(path)
        return path

    return paint


def test_two_equal_arms_are_not_shown_to_differ_in_95_of_100_benches(tmp_path: Path) -> None:
    verdicts = []
    for seed in range(100):
        found = bench(tmp_path / str(seed), ARMS + UNIT, FakeLab(noise=0.03, seed=seed))
        verdicts.append(only(found).verdict)
    assert verdicts.count("not shown") >= 95


@pytest.mark.parametrize(("factor", "verdict"), [(1.05, "slower"), (0.95, "faster")])
def test_a_planted_difference_of_5_percent_is_found_at_ten_pairs(
    tmp_path: Path, factor: float, verdict: str
) -> None:
    speed = {
        "b": dict.fromkeys(
            ("queue_wait", "conditioning", "sampling", "vae_decode", "delivery_commit"), factor
        )
    }
    found = [
        only(bench(tmp_path / str(seed), ARMS + UNIT, FakeLab(speed, noise=0.01, seed=seed))).verdict
        for seed in range(10)
    ]
    assert found == [verdict] * 10


def test_a_report_made_again_in_another_process_is_the_same(tmp_path: Path) -> None:
    arms = "servers = 9\nchunk = 10\nrepeats = 1\n" + "".join(
        f'[[arm]]\nname = "arm {name}"\n' for name in "abcdef"
    )
    bench(tmp_path / "r", arms + UNIT, FakeLab({"arm c": {"sampling": 0.5}}, noise=0.01))
    made = []
    for seed in ("1", "2", "3"):  # sets of names come in another order
        done = subprocess.run(
            [sys.executable, "-m", "stagexec", "bench", "report", str(tmp_path / "r"), "--json"],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        made.append((done.stdout, *((tmp_path / "r" / name).read_bytes() for name in report_files())))
    assert "each of arm a, arm b, arm c, arm d, arm e, arm f ran in one process" in made[0][0]
    assert made[0] == made[1] == made[2]


def report_files() -> tuple[str, ...]:
    return report.MARKDOWN, report.JSON


def test_the_stage_that_was_cut_is_named_and_explains_the_total(tmp_path: Path) -> None:
    one = only(bench(tmp_path / "r", ARMS + UNIT, FakeLab({"b": {"sampling": 0.5}}, noise=0.01)))
    assert one.amdahl is not None
    assert (one.verdict, one.amdahl.stage, one.amdahl.explains) == ("faster", "sampling", True)
    assert one.amdahl.elsewhere == {}


def test_a_cost_that_moved_is_told_in_words(tmp_path: Path) -> None:
    lab = FakeLab({"b": {"sampling": 0.5, "vae_decode": 2.4}}, noise=0.01)
    found = report.build(bench(tmp_path / "r", ARMS + UNIT, lab))
    (line,) = found["answers"][1]["lines"]
    assert "sampling took" in line
    assert "does not explain it" in line
    assert re.search(r"Other stages moved too: vae_decode \+2\d\.\d ms", line)


def test_fast_and_wrong_is_reported_as_wrong(tmp_path: Path) -> None:
    lab = FakeLab({"b": {"sampling": 0.1}}, image=painter(tmp_path / "made", {"b": 50}))
    one = only(bench(tmp_path / "r", ARMS + UNIT, lab))
    assert one.verdict == "wrong output"
    assert one.reason == "PSNR falls to 14.2 dB, 40 is asked for"
    assert one.total is not None
    assert one.total.shown == "faster"


def test_fast_and_right_is_faster_and_the_question_is_answered_with_its_numbers(tmp_path: Path) -> None:
    text = '[quality]\nquestion = "May I use b?"\n'
    lab = FakeLab({"b": {"sampling": 0.5}}, image=painter(tmp_path / "made", {"b": 1}))
    found = bench(tmp_path / "r", ARMS.replace("[[", text + "[[", 1) + UNIT, lab)
    assert only(found).verdict == "faster"
    (answer,) = report.build(found)["quality_question"]["answers"]
    assert answer.startswith("b, M03: yes, within the limits (worst PSNR 48.1 dB, worst SSIM ")
    assert answer.endswith("criterion: PSNR ≥ 40 dB and SSIM ≥ 0.98 for every seed")


PROVED = """servers = 9
repeats = 1
[[arm]]
name = "a"
[[arm]]
name = "b"
active = [{ what = "attention", log = "Using sage" }]
"""


def test_an_arm_that_was_not_active_has_no_other_verdict(tmp_path: Path) -> None:
    found = bench(tmp_path / "r", PROVED + UNIT, FakeLab({"b": {"sampling": 0.1}}))
    one = only(found)
    assert (one.verdict, one.total) == ("not active", None)
    assert "attention: not in a line of the server's log" in one.reason
    assert found.cell("M03", "", "b").status == "not active"


def test_an_unavailable_arm_is_in_the_table_with_its_reason(tmp_path: Path) -> None:
    found = bench(tmp_path / "r", ARMS + UNIT, FakeLab(missing={"b": "no such package"}))
    text = report.markdown(found, report.build(found))
    assert "| b | - | unavailable: no such package | 0 |" in text
    assert only(found).verdict == "unavailable"


def test_without_its_reference_nothing_is_compared(tmp_path: Path) -> None:
    found = bench(tmp_path / "r", ARMS + UNIT, FakeLab(missing={"a": "gone"}))
    assert (only(found).verdict, only(found).reason) == ("not shown", "a: gone")


def spoil(folder: Path, name: str, value: Any, arm: str, count: int = 3) -> tables.Tables:
    """Give some counted runs of an arm another value, in the raw file."""
    lines = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    for run in [run for run in lines if run["arm"] == arm and run["role"] == "counted"][:count]:
        run[name] = value
    (folder / "runs.jsonl").write_text("".join(json.dumps(run) + "\n" for run in lines))
    return tables.load(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [("condition_id", "other"), ("timing", "events"), ("machine", {"name": "there"}), ("executor", "host")],
)
def test_runs_of_different_conditions_timing_modes_or_machines_are_never_pooled(
    tmp_path: Path, name: str, value: Any
) -> None:
    bench(tmp_path / "r", ARMS + UNIT, FakeLab())
    found = spoil(tmp_path / "r", name, value, "b")
    cell = found.cell("M03", "", "b")
    assert (cell.status, cell.n, cell.total) == ("not pooled", 0, None)
    assert name in str(cell.reason)
    assert only(found).verdict == "not pooled"


@pytest.mark.parametrize(("name", "value"), [("timing", "events"), ("machine", {"name": "there"})])
def test_arms_of_different_timing_modes_or_machines_are_never_compared(
    tmp_path: Path, name: str, value: Any
) -> None:
    bench(tmp_path / "r", ARMS + UNIT, FakeLab({"b": {"sampling": 0.1}}))
    one = only(spoil(tmp_path / "r", name, value, "b", count=99))
    assert (one.verdict, one.total) == ("not shown", None)
    assert name in one.reason


def test_arms_may_differ_in_their_condition(tmp_path: Path) -> None:
    bench(tmp_path / "r", ARMS + UNIT, FakeLab({"b": {"sampling": 0.1}}))
    assert only(spoil(tmp_path / "r", "condition_id", "other", "b", count=99)).verdict == "faster"


def test_failed_runs_stay_in_the_table_with_the_time_they_lost(tmp_path: Path) -> None:
    lab = FakeLab(script={("b", 5): "fail", ("b", 7): "die"})
    found = bench(tmp_path / "r", ARMS + UNIT, lab)
    cell = found.cell("M03", "", "b")
    assert (cell.n, cell.failed) == (9, 2)
    assert cell.lost_ns > 150_000_000
    assert cell.outcomes == {"success": 9, "failed": 1, "lost": 1}
    assert only(found).pairs == 9
    (line,) = report.build(found)["answers"][3]["lines"]
    assert "2 of 11 runs of b failed" in line


def test_corrupt_files_make_the_output_wrong(tmp_path: Path) -> None:
    bench(tmp_path / "r", ARMS + UNIT, FakeLab())
    one = only(spoil(tmp_path / "r", "artifacts", [{"state": "nonfinite"}], "b"))
    assert (one.verdict, one.reason) == ("wrong output", "delivered files: 3 nonfinite")


def test_work_that_was_not_the_same_is_said(tmp_path: Path) -> None:
    bench(tmp_path / "r", ARMS + UNIT, FakeLab())
    found = report.build(spoil(tmp_path / "r", "executed_nodes", ["3"], "b", count=99))
    (line,) = found["answers"][2]["lines"]
    assert line == "M03, b against a: executed nodes differ, so the times are of different work."


def test_first_against_second_is_told_by_stage(tmp_path: Path) -> None:
    found = bench(tmp_path / "r", '[[unit]]\nname = "u"\nstate = "first_second"\n', FakeLab())
    rows = {row["stage"]: row["reading"] for row in found.one_time()}
    assert rows["model_load_residency"] == "one-time cost"
    assert rows["sampling"] == "paid again"
    assert rows["total"] != "one-time cost"  # loading is a small part of these runs
    assert "one-time cost" in report.markdown(found, report.build(found))


def test_a_unit_that_is_not_ranked_says_so_beside_each_verdict(tmp_path: Path) -> None:
    text = '[[unit]]\nname = "M02"\nstate = "cached"\nranked = false\nwarmup = 1\n'
    found = bench(tmp_path / "r", ARMS + text, FakeLab())
    assert report.comparison_row(only(found))[2] == "not ranked (not shown)"


def test_warnings_name_outliers_rounds_and_an_unfinished_bench(tmp_path: Path) -> None:
    text = ARMS.replace("9", "1")
    bench(tmp_path / "r", text + UNIT, FakeLab())
    spoil(tmp_path / "r", "total_ns", 10**12, "b", count=1)
    notes = tmp_path / "r" / "notes.jsonl"
    notes.write_text(
        "".join(line + "\n" for line in notes.read_text().splitlines() if '"finished"' not in line)
    )
    found = report.build(tables.load(tmp_path / "r"))
    told = " ".join(found["warnings"])
    assert "1 of 10 runs lies far from the median" in told
    assert "arms took turns in rounds" in told
    assert "`--resume` goes on with it" in told


def test_a_busy_machine_is_said(tmp_path: Path) -> None:
    opened = bench(tmp_path / "r", ARMS + UNIT, FakeLab()).results
    for share in (0.02, 0.4, 0.3):
        opened.note("closed", number=1, unit="M03", arm="b", others_cpu=share)
    opened.note("closed", number=2, unit="M03", arm="a", others_cpu=0.02)
    told = [line for line in report.warnings(tables.load(tmp_path / "r")) if "other programs" in line]
    assert len(told) == 1
    assert told[0].startswith("M03, b: other programs took 40% of the processors' time")


def test_one_process_an_arm_is_said_unless_the_arms_share_it(tmp_path: Path) -> None:
    apart = report.build(bench(tmp_path / "apart", "chunk = 10\n" + ARMS + UNIT, FakeLab()))
    shared = report.build(bench(tmp_path / "shared", ARMS + UNIT.replace("recompute", "no_cache"), FakeLab()))
    told = ["one process" in " ".join(found["warnings"]) for found in (apart, shared)]
    assert told == [True, False]


def test_an_arm_that_could_not_run_has_one_row_and_no_verdict(tmp_path: Path) -> None:
    text = '[[unit]]\nname = "M09"\nstate = "switch"\nwarmup = 1\ncounted = 4\n'
    text += 'switch = [{ node = "1", input = "ckpt_name", value = "b" }]\n'
    found = bench(tmp_path / "r", ARMS + text, FakeLab(missing={"b": "no package"}))
    rows = report.cell_rows(found, "M09")
    assert [row[:3] for row in rows if row[0] == "b"] == [["b", "A", "unavailable: no package"]]
    assert sum(row[0] == "a" for row in rows) == 3
    assert report.comparison_rows(found, "M09") == []


def test_the_ticks_of_the_axis_stand_apart_and_hold_1() -> None:
    assert charts.ticks(0.97, 1.04) == [0.95, 1, 1.05]
    assert charts.ticks(0.08, 1.0) == [0.1, 0.2, 0.3, 0.5, 0.8, 1]


@pytest.mark.parametrize("plotly", [True, False])
def test_the_page_is_one_file_that_loads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plotly: bool
) -> None:
    if plotly:
        pytest.importorskip("plotly")
    monkeypatch.setattr(charts, "has_plotly", lambda: plotly)
    lab = FakeLab({"b": {"sampling": 0.5}}, image=painter(tmp_path / "made", {"b": 1}))
    bench(tmp_path / "r", ARMS + UNIT, lab)
    report.write(tmp_path / "r")
    page = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"""<(?:script|link|img)[^>]+(?:src|href)=["'](?:https?:)?//""", page)
    assert "a &lt;test&gt;" in page
    assert page.count('<figure><img alt="" src="data:image/png;base64,') == 8
    assert ("<script" in page) is plotly
    assert ("M03</text>" in page) is not plotly
    for question in report.build(tables.load(tmp_path / "r"))["answers"]:
        assert question["question"] in page


FACTORS = """fraction = 1
[quality]
compare = false
[[factor]]
name = "sampler"
level = [{ name = "euler" }, { name = "heun", edits = [{ node = "3", input = "slow", value = 2.0 }] }]
[[factor]]
name = "decoder"
level = [{ name = "plain" }, { name = "tiled" }]
[[unit]]
name = "M04"
state = "no_cache"
"""


def test_a_factorial_plan_tells_what_each_level_does_over_all_combinations(tmp_path: Path) -> None:
    found = report.build(bench(tmp_path / "r", FACTORS, FakeLab(noise=0.01, seed=2)))
    told = {(row["factor"], row["level"]): (row["shown"], row["ratio"]) for row in found["effects"]}
    assert told["sampler", "heun"][0] == "slower"
    assert told["sampler", "heun"][1] == pytest.approx(1.6, abs=0.15)
    assert told["decoder", "tiled"][0] == "not shown"


def test_ends_that_the_workflow_does_not_tell_apart_are_named(tmp_path: Path) -> None:
    found = report.build(bench(tmp_path / "r", UNIT + 'until = "native"\n', FakeLab()))
    assert any("no run has postprocess or encode_mux" in line for line in found["warnings"])


def test_not_shown_says_how_many_pairs_would_decide_it(tmp_path: Path) -> None:
    found = bench(tmp_path / "r", ARMS + UNIT, FakeLab(noise=0.1, seed=3))
    one = only(found)
    assert one.verdict == "not shown"
    assert one.total is not None
    assert one.total.needed is not None
    assert one.total.needed > 10
    assert f"{one.total.needed} pairs would show a difference of 5% in 4 of 5 benches, " in one.reason
    assert f"{one.total.needed} pairs would show" in report.comparison_row(one)[6]


def test_runs_of_one_launch_are_one_measure_however_many_there_are(tmp_path: Path) -> None:
    """A result of an earlier version, or a plan with a large `chunk`: interleaved, but one launch an arm."""
    lab = FakeLab({"b": {"sampling": 0.5}}, noise=0.01)
    one = only(bench(tmp_path / "r", "chunk = 10\n" + ARMS + UNIT, lab))
    assert (one.verdict, one.pairs, one.runs) == ("not shown", 1, 10)
    assert one.reason.startswith("1 pair is too few (the 10 runs of each arm share launches")


def test_two_rounds_of_five_are_two_measures_and_four_of_five_are_four(tmp_path: Path) -> None:
    lab = FakeLab({"b": {"sampling": 0.5}}, noise=0.01, fits=False)
    old = only(bench(tmp_path / "old", "chunk = 5\n" + ARMS + UNIT, lab))
    assert (old.verdict, old.pairs, old.runs) == ("not shown", 2, 10)
    more = only(bench(tmp_path / "more", "chunk = 5\n" + ARMS + UNIT + "counted = 20\n", lab))
    assert (more.verdict, more.pairs, more.runs) == ("faster", 4, 20)


def test_an_old_result_without_notes_of_room_or_load_is_read_and_says_what_it_cannot_show(
    tmp_path: Path,
) -> None:
    bench(tmp_path / "r", "chunk = 5\n" + ARMS.replace("9", "1") + UNIT, FakeLab())
    for name, drop in (("runs.jsonl", "around"), ("notes.jsonl", None)):
        lines = [json.loads(line) for line in (tmp_path / "r" / name).read_text().splitlines()]
        kept = [{k: v for k, v in line.items() if k != drop} for line in lines if line.get("kind") != "room"]
        (tmp_path / "r" / name).write_text("".join(json.dumps(line) + "\n" for line in kept))
    found = report.write(tmp_path / "r")
    assert "the servers of all arms did not live at once" in " ".join(found["warnings"])
    assert found["comparisons"][0]["verdict"] == "not shown"
    assert "room" not in found["units"][0]


def test_warnings_are_data_with_figures_and_advice(tmp_path: Path) -> None:
    opened = bench(tmp_path / "r", ARMS + UNIT, FakeLab(fits=False)).results
    opened.note("closed", number=1, unit="M03", arm="b", others_cpu=0.4)
    found = report.build(tables.load(tmp_path / "r"))
    assert found["warnings"] == [one["text"] for one in found["cautions"]]
    by_kind = {one["kind"]: one for one in found["cautions"]}
    assert by_kind["busy machine"]["figures"] == {"others_cpu": 0.4}
    assert by_kind["busy machine"]["advice"].startswith("Run it again on a quiet machine")
    assert by_kind["busy machine"]["line"].endswith(by_kind["busy machine"]["advice"])
    assert "1 more do not fit, so arms took turns in rounds" in by_kind["not interleaved"]["text"]
    assert by_kind["not interleaved"]["figures"]["rounds"] == 10
    assert found["units"][0]["room"]["fits"] is False
    assert "Beware" in report.markdown(tables.load(tmp_path / "r"), found)


def test_on_random_weights_there_is_no_verdict_on_quality(tmp_path: Path) -> None:
    text = '[quality]\nquestion = "May I use b?"\n'
    lab = FakeLab({"b": {"sampling": 0.5}}, image=painter(tmp_path / "made", {"b": 50}))
    folder = tmp_path / "r"
    bench(folder, ARMS.replace("[[", text + "[[", 1) + UNIT, lab)
    header = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**header, "random_weights": ["tiny.safetensors"]}))
    found = tables.load(folder)
    one = only(found)
    assert (one.verdict, one.quality.refused) == ("faster", True)
    built = report.build(found)
    (answer,) = built["quality_question"]["answers"]
    said = "b, M03: cannot tell, the shipped checkpoint has random weights: no verdict on quality"
    assert answer.startswith(said)
    assert "worst PSNR 14.2 dB" in answer
    assert any(one["kind"] == "random weights" for one in built["cautions"])
    (line,) = built["answers"][3]["lines"]
    assert "the shipped checkpoint has random weights: no verdict on quality (worst PSNR" in line


def test_the_report_is_rebuilt_the_same_from_the_raw_runs(tmp_path: Path) -> None:
    bench(tmp_path / "r", ARMS + UNIT, FakeLab(image=painter(tmp_path / "made", {})))
    first = report.write(tmp_path / "r")
    for name in (report.JSON, report.MARKDOWN, report.PAGE):
        (tmp_path / "r" / name).unlink()
    assert report.write(tmp_path / "r") == first
    assert json.loads((tmp_path / "r" / report.JSON).read_text())["plan"] == "test"


def test_a_folder_without_a_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(results.ResultError, match="no result in"):
        report.write(tmp_path)
