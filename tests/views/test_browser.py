"""The report and the page in a real browser, without a network."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from stagexec.reading import table
from stagexec.reading.store import load
from stagexec.views import html, prometheus
from stagexec.web.routes import Site
from tests.reading.fake_journal import FakeJournal, FakeRun, S, cached_run, reseeded_run, tiny_run
from tests.web.test_routes import Served

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")

EVIL = "<img src=x onerror=document.title='owned'>"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa", "process_cold")
    cached_run(journal, "bbbb")
    reseeded_run(journal, "cccc")
    run = FakeRun(journal, "dddd", {"1": (EVIL, [])}).start()
    run.visit(1, "1", EVIL, [("sampling", S)], kind="failed")
    error = {"stage": "sampling", "node_id": "1", "node_class": EVIL}
    run.execute(host_status="error").close("failed", "oom", error=error)
    journal.write(tmp_path)
    return tmp_path


def shown(address: str, profile: Path) -> str:
    """The document as it stands after its scripts have run; no name resolves but this machine's."""
    assert BROWSER is not None
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={profile}",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "--virtual-time-budget=15000",
            "--dump-dom",
            address,
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout


def test_the_report_draws_every_figure(ledger: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    html.write(load(ledger).runs, report, ledger)
    document = shown(report.as_uri(), tmp_path / "profile")
    body = document[document.index("<body") :]
    # bars, the difference, and a waterfall of each of the four runs
    assert body.count('class="js-plotly-plot"') == 6
    assert "main-svg" in body
    assert "sampling" in body
    assert "First against second" in body
    assert "<title>owned" not in document


def test_the_page_lists_the_runs_and_runs_nothing_foreign(ledger: Path, tmp_path: Path) -> None:
    metrics = prometheus.Metrics()
    metrics.observe(table.flat(load(ledger).runs[0]))
    served = Served(Site(lambda: ledger, metrics))
    try:
        document = shown(f"http://127.0.0.1:{served.port}/stagexec/", tmp_path / "profile")
    finally:
        served.stop()
    assert "4 newest runs" in document
    assert document.count('class="run"') == 4
    assert "failed, oom, sampling" in document


def test_the_page_says_that_the_worker_is_dead_and_why(ledger: Path, tmp_path: Path) -> None:
    state = {"up": False, "restarts": 3, "exception_type": "builtins.OSError", "at": "pack:7"}
    served = Served(Site(lambda: ledger, prometheus.Metrics(), lambda: state))
    try:
        document = shown(f"http://127.0.0.1:{served.port}/stagexec/", tmp_path / "profile")
    finally:
        served.stop()
    assert "The worker is dead (builtins.OSError at pack:7)" in document
