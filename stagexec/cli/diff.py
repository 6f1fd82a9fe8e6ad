"""`stagexec diff`: what made one run faster or slower than another."""

from __future__ import annotations

import click

from stagexec.answers.diff import diff
from stagexec.cli import common


@click.command("diff")
@click.argument("run_a")
@click.argument("run_b")
@common.ledger_option
@common.stages_option
@common.json_option
def command(run_a: str, run_b: str, ledger: str | None, as_json: bool) -> None:
    """Say what made RUN_B faster or slower than RUN_A, and what else differs."""
    loaded = common.load(ledger)
    a, b = common.find(loaded, run_a), common.find(loaded, run_b)
    found = diff(a, b, common.ledger_path(ledger), loaded.runs)
    if as_json:
        common.print_json(found)
        return
    from stagexec.views import reports, text

    reports.print_comparison(text.console(), found)
