"""Rates, intervals, waste and cost, against figures worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from stagexec.answers.failures import Failures, failures, wilson
from stagexec.cli import command
from stagexec.reading import index, relation
from tests.reading.fake_journal import MS, TINY, WALL0, FakeJournal, FakeRun, S, tiny_run

DAY = 24 * 3600 * S


def failed_run(journal: FakeJournal, name: str, cause: str = "oom") -> FakeRun:
    """1 s of sampling, and then the end."""
    run = FakeRun(journal, name, TINY).spend(MS).start()
    run.visit(1, "3", "KSampler", [("sampling", S)], kind="failed")
    run.identify({"3": "x"}, packs={"KSampler": "pack of samplers"})
    error = {"stage": "sampling", "node_id": "3", "node_class": "KSampler", "visit": 1}
    return run.execute(host_status="error").close("failed", cause, error=error)


def cancelled_run(journal: FakeJournal, name: str) -> FakeRun:
    run = FakeRun(journal, name, TINY).spend(MS).start()
    run.visit(1, "3", "KSampler", [("sampling", S)], kind="failed")
    asked = {"cancel_ns": journal.now - 200 * MS}
    return run.execute(**asked).close("cancelled", "user_cancel", **asked)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Seven good runs, two failures and a cancel; the second failure a day later."""
    journal = FakeJournal().head()
    for number in range(7):
        tiny_run(journal, f"good{number}")
    failed_run(journal, "bad1")
    cancelled_run(journal, "stop")
    journal.now += DAY
    failed_run(journal, "bad2", cause="node_exception")
    journal.write(tmp_path)
    return tmp_path


def asked(
    ledger: Path, by: str | None = None, price: float | None = None, since: int | None = None
) -> Failures:
    with relation.of_ledger(ledger) as runs:
        return failures(runs, by, since, price)


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"),
    [(0, 10, 0.0, 0.27753), (10, 10, 0.72247, 1.0), (5, 10, 0.23659, 0.76341), (1, 1000, 0.00018, 0.00565)],
)
def test_the_wilson_interval_is_the_one_in_the_tables(hits: int, of: int, low: float, high: float) -> None:
    assert wilson(hits, of) == pytest.approx((low, high), abs=1e-5)


def test_the_interval_of_none_begins_at_nothing_and_that_of_all_ends_at_all() -> None:
    assert all(wilson(0, of)[0] == 0 and wilson(of, of)[1] == 1 for of in range(1, 200))


def test_nothing_has_no_interval(tmp_path: Path) -> None:
    assert wilson(0, 0) == (None, None)
    total = asked(tmp_path).total
    assert (total.accepted, total.failure_rate, total.reliability) == (0, None, None)


def test_a_cancel_is_no_failure_and_not_in_the_rate(ledger: Path) -> None:
    total = asked(ledger).total
    assert (total.accepted, total.attempts, total.failures, total.cancelled) == (10, 9, 2, 1)
    assert total.failure_rate == pytest.approx(2 / 9)
    assert total.reliability == pytest.approx(7 / 10)
    assert total.outcomes == {"success": 7, "failed": 2, "cancelled": 1}


def test_wasted_time_is_that_of_what_nobody_got(ledger: Path) -> None:
    assert asked(ledger).total.wasted_ns == 3 * S
    assert asked(ledger).total.wasted_kind == "estimated"


def test_cost_is_that_of_busy_time(ledger: Path) -> None:
    found = asked(ledger, price=3.6)
    total = found.total
    assert total.cost == pytest.approx(total.busy_ns / S / 1000)
    assert total.wasted_cost == pytest.approx(0.003)
    assert total.cost_per_delivered_run == pytest.approx(total.cost / 7)
    assert total.cost_per_delivered_output == pytest.approx(total.cost / 7)


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("stage", {"sampling": (2, 9)}),
        ("cause", {"oom": (1, 9), "node_exception": (1, 9), "user_cancel": (0, 9)}),
        ("node", {"KSampler": (2, 9)}),
        ("pack", {"pack of samplers": (2, 9)}),
        ("condition", {None: (2, 9)}),
        ("host", {"0.30.0": (2, 9)}),
        ("day", {"2025-10-09": (1, 8), "2025-10-10": (1, 1)}),
    ],
)
def test_groups_have_their_failures_and_what_they_are_a_share_of(
    ledger: Path, by: str, groups: dict[str | None, tuple[int, int]]
) -> None:
    found = {g.group: (g.failures, g.attempts) for g in asked(ledger, by).groups}
    found = {name: counts for name, counts in found.items() if name is not None or by == "condition"}
    assert found == groups


def test_runs_before_since_do_not_count(ledger: Path) -> None:
    assert asked(ledger, since=WALL0 + DAY).total.accepted == 1


def test_the_verb_prints_the_same_as_json_and_as_text(ledger: Path) -> None:
    words = ["failures", "--ledger", str(ledger), "--by", "cause", "--price", "2"]
    told = json.loads(CliRunner().invoke(command, [*words, "--json"]).stdout)
    assert told["total"]["failures"] == 2
    assert [group["group"] for group in told["groups"]][:2] == ["node_exception", "oom"]
    shown = CliRunner().invoke(command, words).stdout
    assert "22.22% (6.32–54.74)" in shown
    assert "user_cancel" in shown


def test_a_price_below_nothing_is_refused(ledger: Path) -> None:
    done = CliRunner().invoke(command, ["failures", "--ledger", str(ledger), "--price", "-1"])
    assert done.exit_code == 2


def test_the_trace_of_a_profile_is_no_delivered_output(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    for number, odd in enumerate((False, True)):  # an ordinary run, and one that only the fold can read
        run = FakeRun(journal, f"run{number}", TINY).spend(MS).start()
        run.visit(1, "5", "SaveImage", [("sampling", S)]).artifact("5")
        trace = {"node_id": None, "media": "profile", "artifact": "/ledger/trace.json"}
        journal.add("artifact", run, state="unverified", orphan=False, cached=False, **trace)
        if odd:
            journal.add("mark", run, name="cancel_requested")
        run.execute(outputs={"5": 1}).close()
    journal.write(tmp_path)
    assert asked(tmp_path).total.delivered_outputs == 2
    with index.opened(tmp_path) as opened:
        delivered = "SELECT delivered, executed_visits FROM runs"
        assert opened.connection.execute(delivered).fetchall() == [(1, 1), (1, 1)]


def test_files_that_know_of_no_warm_ups_count_in_full(ledger: Path, tmp_path: Path) -> None:
    file = str(tmp_path / "old.parquet")
    with relation.of_ledger(ledger) as runs:
        runs.connection.execute(f"COPY (SELECT * EXCLUDE (warmup) FROM runs) TO '{file}'")
    with relation.of_files(file) as runs:
        assert failures(runs).total.accepted == 10


def test_a_warm_up_is_in_no_statistic_but_stays_a_run(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    warm = FakeRun(journal, "warm", TINY).spend(MS)
    journal.add("mark", warm, name="warmup", detail={})
    warm.start().visit(1, "3", "KSampler", [("sampling", S)], kind="failed")
    warm.execute(host_status="error").close("failed", "oom")
    tiny_run(journal, "good")
    journal.write(tmp_path)
    assert (asked(tmp_path).total.accepted, asked(tmp_path).total.failures) == (1, 0)
    with relation.of_ledger(tmp_path) as runs:
        assert [row["warmup"] for row in runs.rows("true", [])] == [True, False]


def test_runs_that_a_planned_end_took_are_counted_apart_and_those_of_a_crash_as_failures(
    tmp_path: Path,
) -> None:
    for number, ended in enumerate((True, False)):
        journal = FakeJournal(pid=2**22 + number).head()
        tiny_run(journal, f"god{number}")
        FakeRun(journal, f"los{number}", TINY).spend(S)
        journal.heartbeat()
        if ended:
            journal.end("restart")
        journal.write(tmp_path)
    total = asked(tmp_path).total
    assert (total.accepted, total.stopped, total.attempts, total.failures) == (4, 1, 3, 1)
    assert (total.failure_rate, total.reliability) == (1 / 3, 2 / 3)
    assert total.outcomes == {"success": 2, "lost": 2}
    groups = {group.group: (group.failures, group.stopped) for group in asked(tmp_path, "cause").groups}
    assert groups == {"process_died": (1, 0), "process_stopped": (0, 1)}
    said = CliRunner().invoke(command, ["failures", "--ledger", str(tmp_path)]).output
    assert "1 were stopped with their process" in " ".join(said.split())
