"""Amdahl's bounds against figures worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from stagexec.answers.amdahl import plan
from stagexec.cli import command
from stagexec.reading import table
from stagexec.reading.store import load
from tests.reading.fake_journal import MS, TINY, FakeJournal, FakeRun, S, cached_run, reseeded_run


def row(sampling_ns: int, rest_ns: int, lower_bound: bool = False) -> dict[str, object]:
    cells = dict(zip(table.STAGE_NAMES, table.stage_cells({}), strict=True))
    cells.update(sampling_ns=sampling_ns, model_load_residency_ns=rest_ns)
    facts = {"outcome": "success", "condition_id": "c", "timing": "baseline", "lower_bound": lower_bound}
    return {**facts, **cells, "total_ns": sampling_ns + rest_ns, "unnamed_ns": rest_ns // 10}


def test_a_stage_of_three_quarters_twice_as_fast_gives_one_point_six() -> None:
    found = plan([row(750, 250)], {"sampling": 2.0}, "r")
    assert found.speedups[0].speedup == pytest.approx(1.6)
    assert found.speedups[0].total_ns == 625
    assert {s.stage: s.limit for s in found.stages}["sampling"] == pytest.approx(4.0)


def test_the_named_share_of_many_runs_is_that_of_their_time_together() -> None:
    assert plan([row(750, 250)], {}, "r").named_share == pytest.approx(0.975)
    rows = [row(900, 100), row(0, 3000), {**row(0, 10**6), "unnamed_ns": None}]
    assert plan(rows, {}, "r").named_share == pytest.approx(1 - 310 / 4000)


def test_speed_ups_of_two_stages_are_taken_together() -> None:
    found = plan([row(750, 250)], {"sampling": 3.0, "model_load_residency": 5.0}, "r")
    assert found.combined is not None
    assert found.combined.speedup == pytest.approx(1 / (0.25 + 0.05))


def test_a_stage_that_is_everything_has_no_limit() -> None:
    assert plan([row(10, 0)], {}, "r").stages[-1].limit is None


def test_over_runs_of_a_condition_the_middle_counts() -> None:
    found = plan([row(100, 100), row(300, 100), row(900, 100)], {"sampling": 1e9}, "r")
    assert (found.runs, found.total_ns) == (3, 400)
    assert {s.stage: s.share for s in found.stages}["sampling"] == pytest.approx(0.75)
    assert any("P50 over 3 runs" in note for note in found.notes)


def test_paged_weights_make_residency_a_lower_bound() -> None:
    found = plan([row(750, 250, lower_bound=True)], {}, "r")
    assert {s.stage: s.lower_bound for s in found.stages}["model_load_residency"]
    assert any("lower bound" in note for note in found.notes)


def test_a_stage_without_time_cannot_be_sped_up() -> None:
    with pytest.raises(ValueError, match="vae_decode: no time was spent there"):
        plan([row(750, 250)], {"vae_decode": 2.0}, "r")


def test_stages_whose_middle_shares_exceed_the_whole_do_not_give_a_speed_up_below_nothing() -> None:
    rows = [row(600, 400), row(600, 0), row(0, 600)]
    rows[1]["conditioning_ns"], rows[2]["conditioning_ns"] = 400, 400
    rows[1]["total_ns"] = rows[2]["total_ns"] = 1000
    together = {"sampling": 1e6, "model_load_residency": 1e6, "conditioning": 1e6}
    found = plan(rows, together, "r")
    assert sum(stage.share for stage in found.stages) > 1
    assert found.combined is not None
    assert found.combined.total_ns == pytest.approx(0, abs=1)
    assert found.combined.speedup > 1000


def test_a_factor_too_small_to_divide_by_is_a_mistake_and_no_traceback(ledger: Path) -> None:
    words = ["plan", "last", "--ledger", str(ledger), "--speedup", "sampling=1e-320"]
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 2
    assert "infinitely slow" in done.output


def test_a_run_that_did_not_end_well_is_told_as_such() -> None:
    lost = {**row(750, 250), "outcome": "lost"}
    assert any("ended as lost" in note for note in plan([lost], {}, "r").notes)
    assert not any("ended as" in note for note in plan([row(750, 250)], {}, "r").notes)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    journal = FakeJournal().head()
    for number, sampling in enumerate((100, 300, 200)):
        run = reseeded_run(journal, f"run{number}", sampling * MS)
        run.know_condition("ab" * 32)
    journal.write(tmp_path)
    return tmp_path


def test_the_verb_takes_many_speed_ups_and_pools_one_condition(ledger: Path) -> None:
    words = ["plan", "last", "--ledger", str(ledger), "--json", "--speedup", "sampling=2"]
    one = json.loads(CliRunner().invoke(command, words).stdout)
    assert one["runs"] == 1
    assert {s["stage"]: s["ns"] for s in one["stages"]}["sampling"] == 200 * MS
    many = json.loads(
        CliRunner().invoke(command, [*words, "--condition", "--speedup", "vae_decode=4"]).stdout
    )
    assert many["runs"] == 3
    assert [s["stage"] for s in many["speedups"]] == ["sampling", "vae_decode"]
    assert "P50" in CliRunner().invoke(command, [*words[:-3], "--condition"]).stdout


def test_a_run_that_took_all_from_the_cache_is_not_pooled_with_those_that_did_the_work(ledger: Path) -> None:
    more = FakeJournal(pid=4243).head()
    for number in range(3):
        cached_run(more, f"cache{number}").know_condition("ab" * 32)
    more.write(ledger)
    words = ["--ledger", str(ledger), "--json", "--condition"]
    worked = json.loads(CliRunner().invoke(command, ["plan", "run0", *words]).stdout)
    assert worked["runs"] == 3
    assert {s["stage"]: s["ns"] for s in worked["stages"]}["sampling"] == 200 * MS
    hits = json.loads(CliRunner().invoke(command, ["plan", "cache0", *words]).stdout)
    assert hits["runs"] == 3
    assert "sampling" not in {s["stage"] for s in hits["stages"]}


@pytest.mark.parametrize(
    "wrong", ["sampling", "sampling=", "sampling=0", "sampling=-1", "cooking=2", "sampling=nan"]
)
def test_a_speed_up_that_makes_no_sense_is_refused_in_one_line(ledger: Path, wrong: str) -> None:
    done = CliRunner().invoke(command, ["plan", "last", "--ledger", str(ledger), "--speedup", wrong])
    assert done.exit_code == 2
    assert "STAGE=K" in done.output


def test_other_lanes_in_the_same_stage_are_named(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa").start()
    run.visit(1, "1", "X", [("sampling", S)]).spans(("task:1", "sampling", "s", 1, 0, 300 * MS))
    run.execute().close()
    journal.write(tmp_path)
    (loaded,) = load(tmp_path).runs
    found = plan([table.flat(loaded)], {}, loaded.run_id, loaded)
    assert any("sampling also ran for 300 ms on other lanes" in note for note in found.notes)


def test_each_part_of_a_stage_has_a_line_and_steps_are_counted(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start()
    run.switch("model_load_residency", "read", 1, "read_weights", ("1", "Loader")).spend(70 * MS)
    run.switch("sampling", "step", 2, "step", ("3", "KSampler")).spend(310 * MS)
    run.switch("sampling", None, 2, None, ("3", "KSampler")).spend(5 * MS)
    run.switch("sampling", "step", 2, "step", ("3", "KSampler")).spend(51 * MS)
    run.execute(outputs={"5": 1}).close()
    journal.write(tmp_path)
    words = ["plan", "last", "--ledger", str(tmp_path)]
    found = json.loads(CliRunner().invoke(command, [*words, "--json"]).stdout)
    assert found["parts"]["sampling"] == {"step": 361 * MS, "rest": 5 * MS}
    told = CliRunner().invoke(command, words).stdout
    assert "  read " in told
    assert "  step: 2 × 51.0 ms, first 310 ms" in told
