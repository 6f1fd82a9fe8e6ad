"""Texts of others in the views: shown, and never obeyed by a terminal, a spreadsheet or a scraper."""

from __future__ import annotations

import csv as csv_module
import io
import logging
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from stagexec import cli
from stagexec.bench import screen
from stagexec.printable import Visible, visible
from stagexec.reading.store import load
from stagexec.reading.table import flat
from stagexec.views import csv, prometheus, text
from tests.reading.fake_journal import FakeJournal, FakeRun, S

EVIL = "\x1b]0;owned\x07\x9b31m\x7f\u202edne\u2028\r\nnext\u200b"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A run whose every text is one that steers a terminal."""
    journal = FakeJournal().head()
    run = FakeRun(journal, "evil", {EVIL: (EVIL, [])}).start()
    run.visit(1, EVIL, EVIL, [("sampling", S)], kind="failed")
    error = {
        "stage": "sampling",
        "node_id": EVIL,
        "node_class": EVIL,
        "exception_type": EVIL,
        "message": EVIL,
    }
    run.execute(host_status="error").close("failed", "oom", error=error)
    journal.write(tmp_path)
    return tmp_path


def is_clean(printed: str) -> bool:
    return visible(printed, keep="\n") == printed


@pytest.mark.parametrize(
    ("char", "shown"),
    [
        ("\x1b", "\\x1b"), ("\x00", "\\x00"), ("\x07", "\\x07"), ("\x7f", "\\x7f"), ("\x9b", "\\x9b"),
        ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"), ("\u202e", "\\u202e"), ("\u2066", "\\u2066"),
        ("\u2028", "\\u2028"), ("\u200b", "\\u200b"), ("\ufeff", "\\ufeff"), ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"), ("\u061c", "\\u061c"),
    ],
    ids=ascii,
)  # fmt: skip
def test_what_is_unseen_is_shown_as_its_escape(char: str, shown: str) -> None:
    assert visible(f"a{char}b") == f"a{shown}b"
    assert visible(f"a{char}b", keep=char) == f"a{char}b"


def test_letters_of_all_scripts_stay_as_they_are() -> None:
    plain = "é ß 日本語 עברית العربية हिन्दी 👩\u200d🎨 \U0001f1e9\U0001f1ea [red] \\n"
    assert visible(plain) == plain


@pytest.mark.parametrize(
    "words", [["runs"], ["show", "last"], ["failures", "--by", "node"], ["plan", "last"], ["audit"],
              ["diff", "last", "last"]], ids=lambda words: words[0])  # fmt: skip
def test_no_verb_prints_what_steers_a_terminal(words: list[str], ledger: Path) -> None:
    done = CliRunner().invoke(cli.command, [*words, "--ledger", str(ledger)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert is_clean(done.stdout), ascii(done.stdout)
    assert is_clean(done.stderr), ascii(done.stderr)


def test_json_keeps_texts_as_they_are(ledger: Path) -> None:
    done = CliRunner().invoke(cli.command, ["show", "last", "--json", "--ledger", str(ledger)])
    assert "\\u001b]0;owned" in done.stdout


def test_the_console_lets_no_text_through_that_no_view_has_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    text.console().print(f"[bold]x[/] {EVIL}")
    assert is_clean(sys.stdout.getvalue())  # type: ignore[attr-defined]


def test_a_closed_standard_output_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    screen_of_none = text.console()
    screen_of_none.print("x")
    assert screen_of_none.file.getvalue() == "x\n"  # type: ignore[attr-defined]


def test_the_screen_of_a_bench_shows_it_too() -> None:
    told = screen.told("died", {"unit": EVIL, "arm": EVIL, "text": EVIL})
    assert told is not None
    assert is_clean(told)
    assert "\\x1b" in told


def test_a_message_of_ours_is_one_visible_line(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("stagexec.tested")
    rule = Visible()
    log.addFilter(rule)

    class Untold:
        def __str__(self) -> str:
            raise ValueError("no text")

    log.warning("node %s", EVIL)
    log.warning("node %s", Untold())
    log.warning("node %d", "x")
    log.removeFilter(rule)
    assert all(len(m.splitlines()) == 1 and visible(m) == m for m in caplog.messages)
    assert len(caplog.messages) == 3


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"), ("+1+1", "'+1+1"), ("-2+3", "'-2+3"), ("@SUM(A1)", "'@SUM(A1)"), (" =1", "' =1"),
        ("\t=1", "'\\t=1"), ("\r=1", "'\\r=1"), ("\uff1d1", "'\uff1d1"), ("-1.000000", "-1.000000"),
        ("12.5", "12.5"), (-7, -7), (None, None), ("sampling", "sampling"), ("a=1", "a=1"),
        ("\x1b[31m", "\\x1b[31m"), ("a\nb", "a\\nb"),
    ],
    ids=ascii,
)  # fmt: skip
def test_a_cell_is_shown_by_a_spreadsheet_and_not_computed(value: object, cell: object) -> None:
    assert csv.cell(value) == cell


def test_a_csv_file_holds_no_formula(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "=HYPERLINK(1)", {"1": ("X", [])}).start()
    run.visit(1, "1", "X", [("sampling", S)])
    run.execute(host_status="success").close("success", None)
    journal.write(tmp_path)
    csv.write(load(tmp_path).runs, tmp_path / "x.csv")
    with (tmp_path / "x.csv").open(newline="") as file:
        rows = list(csv_module.reader(file))
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "@"))]


def test_labels_of_metrics_are_one_line_of_text(ledger: Path) -> None:
    metrics = prometheus.Metrics()
    for run in load(ledger).runs:
        metrics.observe(flat(run))
    row = {**flat(load(ledger).runs[0]), "error_class": 'half \ud800 a "quote" \\ and\nline'}
    metrics.observe(row)
    told = metrics.text().decode()
    assert is_clean(told)
    assert 'node_class="half \\\\ud800 a \\"quote\\"' in told
