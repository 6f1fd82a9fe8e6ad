"""`--stages FILE`: another stage table for journals that are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stagexec.cli import command
from stagexec.reading import refold
from tests.reading.fake_journal import MS, TINY, FakeJournal, FakeRun, S, tiny_run

SEAM = '[[seam]]\nid = "core.sample"\nstage = "postprocess"\npart = "<node class>"\n'
CLASSES = '[[nodes]]\nstage = "conditioning"\npart = "control"\nclasses = ["KSampler"]\n'


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A good run, and one that failed in the sampler's own time."""
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    run = FakeRun(journal, "bbbb", TINY).start()
    run.visit(1, "3", "KSampler", [("sampling", 70 * MS)], kind="failed")
    error = {"stage": "sampling", "visit": 1, "node_id": "3", "node_class": "KSampler"}
    run.execute().close("failed", "node_exception", error=error)
    journal.write(tmp_path / "ledger")
    return tmp_path / "ledger"


def call(*words: str) -> Result:
    return CliRunner().invoke(command, words)


def printed(*words: str) -> Any:
    result = call(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def table(ledger: Path, text: str) -> str:
    path = ledger.parent / "stages.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_seams_segments_go_where_the_table_says_and_the_sum_stays(ledger: Path) -> None:
    plain = printed("show", "aaaa", "--ledger", str(ledger))
    moved = printed("show", "aaaa", "--ledger", str(ledger), "--stages", table(ledger, SEAM))
    assert plain["stages"]["sampling"] == 1 * S
    assert moved["stages"]["postprocess"] == 600 * MS
    assert moved["stages"]["sampling"] == 400 * MS
    assert {one["part"] for one in moved["segments"] if one["stage"] == "postprocess"} == {"KSampler"}
    assert moved["total_ns"] == plain["total_ns"] == sum(moved["stages"].values())
    edges = [(one["start_ns"], one["end_ns"]) for one in moved["segments"]]
    assert edges == [(one["start_ns"], one["end_ns"]) for one in plain["segments"]]


def test_a_class_takes_its_own_time_along_and_leaves_that_of_seams_and_of_the_loop(ledger: Path) -> None:
    moved = printed("show", "aaaa", "--ledger", str(ledger), "--stages", table(ledger, CLASSES))
    assert moved["stages"]["sampling"] == 600 * MS
    assert moved["stages"]["conditioning"] == 450 * MS
    (visit,) = [one for one in moved["visits"] if one["class_type"] == "KSampler"]
    assert visit["self_ns"] == 1 * S
    loop = ("queue_wait", "executor_prepare", "executor_overhead", "delivery_commit")
    plain = printed("show", "aaaa", "--ledger", str(ledger))
    assert [moved["stages"].get(name) for name in loop] == [plain["stages"].get(name) for name in loop]


def test_a_whole_stage_can_be_renamed(ledger: Path) -> None:
    text = '[[stage]]\nstage = "vae_decode"\nto = "postprocess"\nto_part = "VAE"\n'
    moved = printed("show", "aaaa", "--ledger", str(ledger), "--stages", table(ledger, text))
    assert "vae_decode" not in moved["stages"]
    assert moved["stages"]["postprocess"] == 100 * MS


def test_every_reading_verb_goes_by_the_table(ledger: Path, tmp_path: Path) -> None:
    rest = ("--ledger", str(ledger), "--stages", table(ledger, CLASSES + SEAM))
    rows = printed("runs", *rest)
    assert [row["error_stage"] for row in rows] == [None, "conditioning"]
    assert all("sampling" not in row["stages"] for row in rows)
    assert [one["group"] for one in printed("failures", "--by", "stage", *rest)["groups"]] == ["conditioning"]
    assert "sampling" not in {one["stage"] for one in printed("plan", "aaaa", *rest)["stages"]}
    assert "sampling" not in {one["stage"] for one in printed("diff", "aaaa", "bbbb", *rest)["stages"]}
    assert call("audit", *rest).exit_code == 0
    assert printed("plan", "aaaa", "--graph", *rest)["critical_path"] == ["1", "2", "3", "4", "5"]
    target = tmp_path / "out.csv"
    assert call("export", "aaaa", "--csv", str(target), *rest).exit_code == 0
    assert "sampling" not in target.read_text(encoding="utf-8")


def test_the_shipped_tables_can_be_used_as_they_are(ledger: Path) -> None:
    patches = Path(__file__).resolve().parents[2] / "patches"
    for path in patches.glob("*.toml"):
        rules = refold.read(str(path)) if "stage = " in path.read_text(encoding="utf-8") else None
        assert rules is None or rules.seams or rules.classes


def test_the_next_call_without_a_table_reads_as_ever(ledger: Path) -> None:
    printed("runs", "--ledger", str(ledger), "--stages", table(ledger, SEAM))
    assert printed("show", "aaaa", "--ledger", str(ledger))["stages"]["sampling"] == 1 * S
    assert not refold.active()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[seam]\n", "is not TOML"),
        ('[[seam]]\nid = "x"\nstage = "nonsense"\n', "seam 1: unknown stage 'nonsense'"),
        ('[[seam]]\nstage = "sampling"\n', "seam 1: id is missing"),
        ('[[seam]]\nid = "x"\n', "seam 1: stage is missing"),
        ('[[seam]]\nid = "x"\nstage = "sampling"\npart = "mux"\n', "unknown part 'mux'"),
        ('[[nodes]]\nstage = "sampling"\nclasses = "KSampler"\n', "classes must be a list"),
        ('[[stage]]\nstage = "sampling"\n', "stage 1: to is missing"),
        ('[seam]\nid = "x"\n', "must be written as [[seam]]"),
        ("[[seems]]\n", "unknown table seems"),
        ("", "holds no [[seam]]"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_a_line(ledger: Path, text: str, said: str) -> None:
    result = call("runs", "--ledger", str(ledger), "--stages", table(ledger, text))
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_a_file_that_is_not_there_and_parquet_are_refused(ledger: Path) -> None:
    assert call("runs", "--ledger", str(ledger), "--stages", str(ledger / "none.toml")).exit_code == 2
    result = call("runs", "--ledger", "*.parquet", "--stages", table(ledger, SEAM))
    assert (result.exit_code, "needs journals" in result.stderr) == (2, True)
