"""`stagexec span`: work of other programs is beside a run, exact on its wall anchor, and in no sum."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stagexec.cli import command
from tests.reading.fake_journal import MS, WALL0, FakeJournal, tiny_run

SLEEP = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(0.2)")


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    tiny_run(journal, "bbbb")
    journal.write(tmp_path / "ledger")
    return tmp_path / "ledger"


def call(*words: str) -> Result:
    return CliRunner().invoke(command, words)


def shown(ledger: Path, run: str = "aaaa") -> Any:
    result = call("show", run, "--ledger", str(ledger), "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def outside(run: Any) -> list[Any]:
    return [span for span in run["spans"] if span["lane"].startswith("outside:")]


def test_the_time_of_a_command_is_a_span_of_its_run_and_of_no_other(ledger: Path) -> None:
    before = shown(ledger)
    result = call("span", "aaaa", "encode_mux/encode", "--ledger", str(ledger), "--json", "--", *SLEEP)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    after = shown(ledger)
    (span,) = outside(after)
    assert span["lane"] == f"outside:{Path(sys.executable).name}"
    assert (span["stage"], span["detail"]["part"], span["detail"]["exit_code"]) == ("encode_mux", "encode", 0)
    assert span["end_ns"] - span["start_ns"] == told["length_ns"] >= 200 * MS
    assert span["start_ns"] == told["start_wall_ns"] - WALL0  # the head's pair is (0, WALL0)
    assert (after["total_ns"], after["stages"]) == (before["total_ns"], before["stages"])
    assert outside(shown(ledger, "bbbb")) == []
    assert span["lane"] in call("show", "aaaa", "--ledger", str(ledger)).stdout


def test_a_command_that_fails_is_kept_and_ends_with_exit_code_1(ledger: Path) -> None:
    fails = (sys.executable, "-I", "-S", "-c", "raise SystemExit(3)")
    assert call("span", "aaaa", "delivery_commit", "--ledger", str(ledger), "--", *fails).exit_code == 1
    assert [span["detail"]["exit_code"] for span in outside(shown(ledger))] == [3]


def test_no_word_of_the_command_is_kept(ledger: Path) -> None:
    words = (sys.executable, "-I", "-S", "-c", "pass", "--secret-token")
    call("span", "aaaa", "delivery_commit/upload", "--ledger", str(ledger), "--", *words)
    kept = [path.read_text(encoding="utf-8") for path in (ledger / "spans").glob("*/*.jsonl")]
    assert len(kept) == 1
    assert "secret-token" not in kept[0]
    assert str(Path(sys.executable).parent) not in kept[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("zzzz", "encode_mux"), "nothing was run"),
        (("aaaa", "nonsense"), "unknown stage"),
        (("aaaa", "encode_mux/nonsense"), "unknown part"),
    ],
)
def test_what_is_wrong_is_said_before_the_command_is_run(
    ledger: Path, tmp_path: Path, words: tuple[str, str], said: str
) -> None:
    mark = tmp_path / "ran"
    touch = (sys.executable, "-I", "-S", "-c", f"open({str(mark)!r}, 'w')")
    result = call("span", *words, "--ledger", str(ledger), "--", *touch)
    assert (result.exit_code, said in result.stderr) == (2, True)
    assert not mark.exists()


def test_a_program_that_is_not_there_is_the_users_mistake(ledger: Path) -> None:
    result = call("span", "aaaa", "encode_mux", "--ledger", str(ledger), "--", "no-such-program-at-all")
    assert (result.exit_code, "nothing was run" in result.stderr) == (2, True)
    assert outside(shown(ledger)) == []


def test_many_at_once_are_all_kept_also_when_the_ledger_is_moved(ledger: Path) -> None:
    line = [
        sys.executable,
        "-m",
        "stagexec",
        "span",
        "aaaa",
        "encode_mux",
        "--ledger",
        str(ledger),
        "--",
        *SLEEP,
    ]
    running = [subprocess.Popen(line, stderr=subprocess.DEVNULL) for _ in range(4)]
    assert [one.wait(120) for one in running] == [0] * 4
    moved = ledger.with_name("moved")
    shutil.move(ledger, moved)
    assert len(outside(shown(moved))) == 4


def test_a_torn_or_foreign_file_among_the_spans_costs_itself_alone(ledger: Path) -> None:
    call("span", "aaaa", "encode_mux", "--ledger", str(ledger), "--", *SLEEP)
    (day,) = (ledger / "spans").iterdir()
    (day / "torn.jsonl").write_bytes(b'{"event_type":"outside_span","run_id":"aaaa')
    (day / "foreign.jsonl").write_bytes(b"\xff\xfe nothing\n[]\n")
    (day / "folder.jsonl").mkdir()
    assert len(outside(shown(ledger))) == 1
