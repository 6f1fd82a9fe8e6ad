"""`stagexec bench` on a scripted lab, as a person meets it: mistakes, exit codes, resuming, reports."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stagexec.bench import results, servers
from stagexec.cli import bench
from tests.bench.fake_lab import PROMPT, FakeLab

PLAN = """name = "mine"
about = "a test"
workflow = "flow.json"
servers = 2
chunk = 4
repeats = 1
[[arm]]
name = "a"
[[arm]]
name = "b"
[[unit]]
name = "M03"
state = "recompute"
counted = 4
warmup = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.toml").write_text(PLAN)
    (tmp_path / "flow.json").write_text(json.dumps(PROMPT))
    monkeypatch.chdir(tmp_path)
    place = servers.Place(tmp_path, tmp_path, tmp_path)
    monkeypatch.setattr(bench, "prepare", lambda plan, workflow, options: place)
    return tmp_path


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> FakeLab:
    one = FakeLab()
    monkeypatch.setattr(servers, "Servers", lambda place: one)
    return one


def call(*words: str) -> Result:
    return CliRunner().invoke(bench.command, list(words))


def test_a_plan_runs_and_leaves_raw_runs_and_three_reports(folder: Path, lab: FakeLab) -> None:
    done = call("mine.toml", "--out", "result")
    assert done.exit_code == 0, done.output
    assert len((folder / "result" / "runs.jsonl").read_text().splitlines()) == 10
    for name in ("report.md", "report.json", "report.html"):
        assert (folder / "result" / name).stat().st_size > 500
    assert "Which stage dominates under this condition?" in done.output
    assert lab.alive == 0


def test_json_alone_is_on_standard_output(folder: Path, lab: FakeLab) -> None:
    done = call("mine.toml", "--out", "result", "--json")
    assert json.loads(done.stdout)["plan"] == "mine"
    assert "M03, a: counted run" in done.stderr


def test_the_shipped_plans_are_listed_without_running_anything() -> None:
    done = call("list", "--json")
    assert done.exit_code == 0, done.output
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["self"]["arms"] == ["this", "this again"]
    assert rows["self"]["counted"] == 10 * 2 + 10 * 2 * 2  # runs of one server, then two runs a launch
    assert rows["matrix"]["units"][:2] == ["M01", "M02"]
    told = call("list")
    assert "attention: The same workflow with each attention backend (1 unit(s), 6 arm(s)," in told.output
    assert call("list", "more").exit_code == 2


def test_runs_in_a_pair_can_be_asked_for(folder: Path, lab: FakeLab) -> None:
    done = call("mine.toml", "--out", "result", "--repeats", "3", "--counted", "1", "--json")
    assert done.exit_code == 0, done.output
    assert [cell["n"] for cell in json.loads(done.stdout)["cells"]] == [3, 3]
    assert json.loads(done.stdout)["units"][0]["repeats"] == 3


def test_a_bench_that_is_interrupted_says_how_to_go_on_and_does(folder: Path, lab: FakeLab) -> None:
    lab.interrupt_after = 5
    cut = call("mine.toml", "--out", "result")
    assert cut.exit_code == 1
    assert "Traceback" not in cut.output
    assert "stagexec bench mine.toml --resume --out result" in cut.output.replace("\n", "")
    lab.interrupt_after = None
    done = call("mine.toml", "--out", "result", "--resume", "--json")
    assert done.exit_code == 0
    assert [cell["n"] for cell in json.loads(done.stdout)["cells"]] == [4, 4]


def test_without_a_folder_the_last_result_of_the_plan_is_gone_on_with(folder: Path, lab: FakeLab) -> None:
    assert "there is no result of mine" in call("mine.toml", "--resume").output
    assert call("mine.toml").exit_code == 0
    opened = len(lab.opened)
    assert call("mine.toml", "--resume").exit_code == 0
    assert len(lab.opened) == opened
    assert len(list((folder / ".stagexec" / "bench").iterdir())) == 1


def test_a_report_is_rebuilt_from_a_folder(folder: Path, lab: FakeLab) -> None:
    call("mine.toml", "--out", "result")
    (folder / "result" / "report.md").unlink()
    assert call("report", "result").exit_code == 0
    assert (folder / "result" / "report.md").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing_such"], "no plan nothing_such"),
        (["report"], "give one folder"),
        (["report", "nowhere"], "no result in nowhere"),
        (["mine.toml", "another"], "one plan at a time"),
        (["bad.toml"], "bad.toml:2: unknown key `x`"),
        (["mine.toml", "--unit", "M99"], "no unit 'M99': M03"),
        (["mine.toml", "--arm", "z"], "no arm 'z': a, b"),
        (["mine.toml", "--workflow", "gone.json"], "no workflow gone.json"),
        (["mine.toml", "--workflow", "mine.toml"], "is not JSON"),
        (["mine.toml", "--workflow", "editor.json"], "not in API format"),
        (["mine.toml", "--set", "5"], "give NODE.INPUT=VALUE"),
        (["mine.toml", "--set", "5.width=16"], "no input 5.width"),
        (["mine.toml", "--fail-over", "x"], "give a percentage"),
        (["mine.toml", "--against", "nowhere", "--out", "r"], "no result in nowhere"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_2(
    folder: Path, lab: FakeLab, words: list[str], says: str
) -> None:
    (folder / "bad.toml").write_text('name = "bad"\nx = 1\n')
    (folder / "editor.json").write_text('{"nodes": [], "links": []}')
    done = call(*words)
    assert done.exit_code == 2, done.output
    assert says in done.output
    assert "Traceback" not in done.output


def test_a_result_is_never_overwritten(folder: Path, lab: FakeLab) -> None:
    call("mine.toml", "--out", "result")
    again = call("mine.toml", "--out", "result")
    assert again.exit_code == 2
    assert "already holds a result" in again.output


def test_the_command_line_shortens_a_plan(folder: Path, lab: FakeLab) -> None:
    done = call(
        "mine.toml", "--out", "r", "--counted", "2", "--warmup", "0", "--arm", "b", "--set", "1.ckpt_name=z"
    )
    assert done.exit_code == 0
    header = json.loads((folder / "r" / "result.json").read_text())
    assert header["workflow"]["1"]["inputs"]["ckpt_name"] == "z"
    assert [arm["name"] for arm in header["plan"]["arm"]] == ["b"]


def test_a_bench_in_which_nothing_could_be_measured_ends_with_1(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = FakeLab(missing={"a": "gone", "b": "gone"})
    monkeypatch.setattr(servers, "Servers", lambda place: lab)
    done = call("mine.toml", "--out", "result")
    assert done.exit_code == 1
    assert "unavailable M03, a: gone" in done.output


@pytest.mark.parametrize(("factor", "code"), [(2.0, 1), (1.0, 0)])
def test_against_an_older_result_only_a_shown_slow_down_ends_with_1(
    folder: Path, monkeypatch: pytest.MonkeyPatch, factor: float, code: int
) -> None:
    speeds: dict[str, Any] = {"a": {"sampling": factor}, "b": {}}
    labs = iter([FakeLab(seed=1), FakeLab(speeds, seed=2)])
    monkeypatch.setattr(servers, "Servers", lambda place: next(labs))
    assert call("mine.toml", "--out", "old").exit_code == 0
    done = call("mine.toml", "--out", "new", "--against", "old", "--fail-over", "5%")
    assert done.exit_code == code, done.output
    assert ("slower by more than 5%" in done.output) is bool(code)


@pytest.mark.parametrize(
    ("words", "header", "says"),
    [
        ([], {"machine": {"name": "another"}}, "it was made on another machine"),
        (["--arm", "b"], {}, "it has measured no unit and arm of this plan"),
    ],
)
def test_an_older_result_that_cannot_be_compared_is_said_before_anything_runs(
    folder: Path, lab: FakeLab, words: list[str], header: dict[str, Any], says: str
) -> None:
    assert call("mine.toml", "--out", "old", "--arm", "a").exit_code == 0
    file = folder / "old" / "result.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **header}))
    opened = len(lab.opened)
    done = call("mine.toml", "--out", "new", "--against", "old", *words)
    assert done.exit_code == 2, done.output
    assert says in done.output
    assert len(lab.opened) == opened
    assert not (folder / "new").exists()


def test_a_full_disk_is_one_line_and_stops_the_servers(
    folder: Path, lab: FakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "runs.jsonl")

    with monkeypatch.context() as patched:
        patched.setattr(results, "_append", full)
        done = call("mine.toml", "--out", "result")
    assert done.exit_code == 1
    assert done.output.splitlines()[-1].startswith("Error: stopped: [Errno 28] No space left on device: ")
    assert "The runs are kept. Go on with: stagexec bench mine.toml --resume --out result" in done.output
    assert lab.alive == 0
    assert call("mine.toml", "--out", "result", "--resume").exit_code == 0


def test_the_command_that_goes_on_has_all_that_was_asked_for(folder: Path, lab: FakeLab) -> None:
    lab.interrupt_after = 2
    asked = ["--counted", "3", "--warmup", "1", "--arm", "a", "--arm", "b", "--set", "1.ckpt_name=a b"]
    cut = call("mine.toml", "--out", "result", *asked)
    words = shlex.split(cut.output.partition("Go on with: stagexec bench ")[2])
    lab.interrupt_after = None
    done = call(*words, "--json")
    assert done.exit_code == 0, done.output
    assert [cell["n"] for cell in json.loads(done.stdout)["cells"]] == [3, 3]


@pytest.mark.parametrize("change", [["--counted", "5"], ["--set", "1.ckpt_name=z"]])
def test_another_plan_or_workflow_is_no_going_on(folder: Path, lab: FakeLab, change: list[str]) -> None:
    assert call("mine.toml", "--out", "result").exit_code == 0
    done = call("mine.toml", "--out", "result", "--resume", *change)
    assert done.exit_code == 2
    assert "start again in another --out" in done.output


def test_without_ray_the_option_says_how_to_get_it(
    folder: Path, lab: FakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    done = call("mine.toml", "--ray")
    assert done.exit_code == 2
    assert "pip install 'stagexec[ray]'" in done.output


def test_arms_that_drop_out_are_named_as_it_happens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = FakeLab(fails_to_open={"b": "No module named 'x'"})
    monkeypatch.setattr(servers, "Servers", lambda place: lab)
    done = call("mine.toml", "--out", "result")
    assert done.exit_code == 0
    assert "failed M03, b: No module named 'x'" in done.stderr
