"""Every report of a run says how much of it has a name, and has its parts and the steps of its samplers."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stagexec.answers.critical import critical
from stagexec.answers.diff import diff
from stagexec.cli import command
from stagexec.reading import parts, rows, table
from stagexec.reading.runs import Run
from stagexec.reading.store import load
from stagexec.views import html, otlp, perfetto, prometheus
from stagexec.web import page
from tests.reading.fake_journal import MS, TINY, FakeJournal, FakeRun

SAMPLES = "step: 3 × 50.0 ms, first 310 ms"


def played(journal: FakeJournal, name: str, nameless_ms: int, first_ms: int = 310) -> None:
    """A run of 1000 ms of which so many have no name, with three steps of a sampler in it."""
    run = FakeRun(journal, name, TINY).start()
    rest = 1000 - nameless_ms - first_ms - 100
    run.visit(1, "1", "Odd", [("node_other", nameless_ms * MS)], origin="none")
    run.visit(2, "2", "CLIPTextEncode", [("conditioning", rest * MS, "encode_text")])
    for number, ms in enumerate((first_ms, 50, 50), 3):
        run.switch("sampling", "step", number, "step", ("3", "KSampler")).spend(ms * MS)
        run.switch("executor_overhead")
    run.execute().close()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Two runs of 1 s each, of which 97% and 90% have a name."""
    journal = FakeJournal().head()
    played(journal, "aaaa", 30)
    played(journal, "bbbb", 100, first_ms=60)
    journal.write(tmp_path)
    return tmp_path


def said(*words: str, ledger: Path) -> str:
    done = CliRunner().invoke(command, [*words, "--ledger", str(ledger)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def first(ledger: Path) -> Run:
    return load(ledger).runs[0]


def test_runs_has_the_share_of_each_and_of_all_together(ledger: Path, monkeypatch: Any) -> None:
    found = json.loads(said("runs", "--json", ledger=ledger))
    assert [run["named_share"] for run in found] == pytest.approx([0.97, 0.90])
    assert "named 94% of these 2 runs" in said("runs", ledger=ledger)
    assert "named 90% of this run" in said("runs", "--limit", "1", ledger=ledger)
    monkeypatch.setattr("stagexec.views.text.PIPED_COLUMNS", 200)
    wide = said("runs", ledger=ledger)
    assert wide.strip().splitlines()[0].split()[-3:-1] == ["named", "non-compute"]


def test_a_row_tells_the_share_as_the_run_itself_does(ledger: Path) -> None:
    for run in load(ledger).runs:
        row = table.flat(run)
        assert rows.summary(run) == table.summary_of(row)
        assert rows.detail(run)["named_share"] == table.summary_of(row)["named_share"]
        assert row["unnamed_ns"] in (30 * MS, 100 * MS)


def test_a_row_of_an_earlier_release_has_no_share(ledger: Path) -> None:
    assert table.summary_of({**table.flat(first(ledger)), "unnamed_ns": None})["named_share"] is None


def test_diff_has_the_shares_and_steps_of_both(ledger: Path) -> None:
    told = said("diff", "last~1", "last", ledger=ledger)
    assert "named 97% of A, 90% of B" in told
    assert "sampler steps: 3 × 50.0 ms, first 310 ms → 3 × 50.0 ms, first 60" in told
    found = diff(*load(ledger).runs)
    assert found.named_share == pytest.approx({"a": 0.97, "b": 0.90})
    assert found.steps["a"] == parts.steps(first(ledger))


def test_plan_has_the_share_parts_and_steps(ledger: Path) -> None:
    told = said("plan", "last~1", ledger=ledger)
    assert "named 97% of this run" in told
    assert SAMPLES in told
    assert "named 97% of this run" in said("plan", "last~1", "--graph", ledger=ledger)
    assert critical(first(ledger)).named_share == pytest.approx(0.97)


def test_show_has_the_share_parts_and_steps(ledger: Path) -> None:
    told = said("show", "last~1", ledger=ledger)
    assert "named 97% of this run" in told
    assert SAMPLES in told


def test_the_report_has_a_table_of_stages_with_parts_and_steps_of_each_run(ledger: Path) -> None:
    pytest.importorskip("plotly")
    text = html.page(load(ledger).runs)
    assert "; named 94% of them" in text
    assert [f"named {share} of this run" in text for share in ("97%", "90%")] == [True, True]
    assert SAMPLES in text
    assert "named 97% of the first, 90% of the second" in text
    assert "sampler: 3 × 50.0 ms, first 310 ms → 3 × 50.0 ms, first 60" in text
    assert "<td>sampling</td><td class=n>410 ms</td><td class=n>41%</td>" in text


def test_a_report_of_runs_without_length_has_no_share(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    journal = FakeJournal().head()
    FakeRun(journal, "aaaa", TINY).start().execute().close()
    journal.write(tmp_path)
    assert (
        "named" not in html.page(load(tmp_path).runs).partition("</style>")[2].rpartition("<body>")[2][:400]
    )


def test_csv_has_the_share_and_a_row_a_step(ledger: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    said("export", "last~1", "--csv", str(target), ledger=ledger)
    found = list(csv.DictReader(target.read_text().splitlines()))
    assert {row["named_share"] for row in found} == {"0.970000"}
    assert [row["cpu_wall_ms"] for row in found if row["part"] == "step"] == [
        "310.000000",
        "50.000000",
        "50.000000",
    ]


def test_a_timeline_and_a_trace_have_the_share(ledger: Path) -> None:
    run = first(ledger)
    assert perfetto.timeline(rows.detail(run))["otherData"]["named_share"] == pytest.approx(0.97)
    pytest.importorskip("opentelemetry.sdk")
    root = next(span for span in otlp.spans_of(run) if span.name == "run")
    assert root.attributes["stagexec.named_share"] == pytest.approx(0.97)


def test_metrics_count_the_time_without_a_name(ledger: Path) -> None:
    metrics = prometheus.Metrics()
    for run in load(ledger).runs:
        metrics.observe(table.flat(run))
    assert "stagexec_unnamed_seconds_total 0.13" in metrics.text().decode()


def test_the_page_asks_for_the_share_of_each_run_and_of_the_one_that_is_shown() -> None:
    assert page.SCRIPT.count("named(run.named_share)") == 2
