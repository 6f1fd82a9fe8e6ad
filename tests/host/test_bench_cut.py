"""A real bench that is ended in the middle, by Ctrl-C and by a kill, and gone on with each time."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stagexec.bench import leftover, plan, schedule
from stagexec.bench.results import complete

ROOT = Path(__file__).resolve().parents[2]
PLAN = """name = "cut"
about = "two arms"
servers = 1
chunk = 4
repeats = 1
[[arm]]
name = "split"
args = ["--use-split-cross-attention"]
active = [{ what = "attention", diagnosis = "attention(_other)?", value = "^[^,]+: attention_split " }]
[[arm]]
name = "pytorch"
args = ["--use-pytorch-cross-attention"]
active = [{ what = "attention", diagnosis = "attention(_other)?", value = "^[^,]+: attention_pytorch " }]
[[unit]]
name = "M03"
state = "recompute"
warmup = 1
counted = 4
"""
SIZE = ("--set", "5.width=16", "--set", "5.height=16", "--set", "3.steps=4")

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs signals that Windows does not have"),
    pytest.mark.timeout(900),
]


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "stagexec", "bench", *words],
        cwd=folder, env=env, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that is being written."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def wait_for(process: subprocess.Popen[str], what: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.01)


@dataclass
class Story:
    """What happened: Ctrl-C after the first counted run, SIGKILL after the next, then to the end."""

    folder: Path
    interrupted: tuple[int, str]
    after_interrupt: list[int]
    report_between: subprocess.CompletedProcess[str]
    after_kill: list[int]
    second_bench: subprocess.CompletedProcess[str]
    finished: tuple[int, str]
    after_all: list[int]

    @property
    def raw(self) -> list[dict[str, Any]]:
        return lines(self.folder / "result" / "runs.jsonl")

    @property
    def notes(self) -> list[dict[str, Any]]:
        return lines(self.folder / "result" / "notes.jsonl")


def servers(folder: Path) -> list[int]:
    return [process.pid for process in leftover.servers_in(folder / "result" / "servers")]


def command(said: str) -> list[str]:
    """The words of the command that the bench says would go on with it."""
    told = re.search(r"Go on with: stagexec bench (.*)", said)
    assert told, said
    return shlex.split(told[1])


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, host_tree: Path, checkpoint: Path) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("cut")
    (folder / "cut.toml").write_text(PLAN)
    runs = folder / "result" / "runs.jsonl"

    def done(process: subprocess.Popen[str]) -> tuple[int, str]:
        out, err = process.communicate(timeout=400)
        return process.returncode, err + out

    def short(*words: str) -> subprocess.CompletedProcess[str]:
        process = start(folder, *words)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    first = start(folder, "cut.toml", "--out", "result", "--comfyui", str(host_tree), *SIZE)
    wait_for(first, lambda: any(run["role"] == "counted" for run in lines(runs)))
    first.send_signal(signal.SIGINT)
    interrupted = done(first)
    after_interrupt = servers(folder)
    report = short("report", "result", "--json")
    words = command(interrupted[1])

    had = len(lines(runs))
    second = start(folder, *words)
    wait_for(second, lambda: bool(servers(folder)))
    other = short(*words)
    wait_for(second, lambda: len(lines(runs)) >= had + 2)  # its warm-up and one that counts
    second.send_signal(signal.SIGKILL)
    second.communicate()
    after_kill = servers(folder)
    finished = done(start(folder, *words))
    yield Story(folder, interrupted, after_interrupt, report, after_kill, other, finished, servers(folder))
    for pid in servers(folder):
        os.kill(pid, signal.SIGKILL)


def test_ctrl_c_ends_with_1_and_one_line_that_says_how_to_go_on_and_leaves_no_server(story: Story) -> None:
    code, said = story.interrupted
    assert code == 1
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith(
        "Error: interrupted; the runs are kept. Go on with: stagexec bench "
    )
    assert story.after_interrupt == []


def test_what_was_interrupted_can_be_read(story: Story) -> None:
    assert story.report_between.returncode == 0, story.report_between.stderr
    found = json.loads(story.report_between.stdout)
    assert found["state"] == "interrupted"
    assert any("--resume" in warning for warning in found["warnings"])
    assert sum(cell["n"] for cell in found["cells"]) >= 1


def test_while_it_runs_a_second_bench_on_the_folder_is_refused(story: Story) -> None:
    assert story.second_bench.returncode == 2
    assert "another bench is still writing into result" in story.second_bench.stderr
    assert "Traceback" not in story.second_bench.stderr


def test_a_killed_bench_leaves_a_server_which_going_on_stops(story: Story) -> None:
    assert len(story.after_kill) == 1
    code, said = story.finished
    assert code == 0, said
    assert f"stopped servers that the last sitting had left running: {story.after_kill[0]}" in said
    assert [note["pids"] for note in story.notes if note["kind"] == "left"] == [story.after_kill]
    assert story.after_all == []
    assert list((story.folder / "result" / "servers").iterdir()) == []


def test_each_measure_is_counted_once_with_the_seed_of_a_bench_that_nobody_disturbed(story: Story) -> None:
    measures = complete(story.raw, {"M03": 1})
    assert set(measures) == {("M03", arm, pair) for arm in ("split", "pytorch") for pair in range(4)}
    counted = [run for run in story.raw if run["role"] == "counted" and run["right_state"]]
    assert len(counted) == len({(run["arm"], run["pair"]) for run in counted}) == 8
    assert len({run["run_id"] for run in story.raw}) == len(story.raw)
    seed = plan.parse(PLAN).seed
    assert {(run["pair"], run["seeds"][0][2]) for run in counted} == {(p, seed + 100 * p) for p in range(4)}


def test_the_order_is_that_of_a_bench_that_nobody_disturbed(story: Story) -> None:
    wanted = plan.parse(PLAN)
    rounds = schedule.rounds(["split", "pytorch"], 4, wanted.seed, "M03", wanted.chunk, together=False)
    expected = [(name, pair) for block in rounds for name in block.orders[0] for pair in block.pairs]
    counted = [run for run in story.raw if run["role"] == "counted"]
    assert [(run["arm"], run["pair"]) for run in counted] == expected
    assert len([note for note in story.notes if note["kind"] == "order"]) == 1


def test_the_table_is_that_of_the_counted_runs_alone(story: Story) -> None:
    from stagexec.bench import report, results, tables

    whole = tables.load(story.folder / "result")
    assert report.state(whole) == "finished"
    assert [(cell.status, cell.n) for cell in whole.cells] == [("measured", 4)] * 2
    assert [one.runs for one in whole.comparisons] == [4]
    # Rebuilt as if the bench had run through: the warm-ups and notes of the broken sittings never written.
    clean = results.load(story.folder / "result")
    clean.runs = [run for run in clean.runs if run["role"] == "counted"]
    clean.notes = [note for note in clean.notes if note["kind"] in ("order", "finished")]
    alone = tables.Tables(clean)
    assert alone.cells == whole.cells
    assert alone.comparisons == whole.comparisons
