"""`stagexec diff`: what made one run faster or slower than another."""

from __future__ import annotations

import click

from stagexec.answers.explain import explain
from stagexec.cli import common


@click.command("diff")
@click.argument("run_a")
@click.argument("run_b")
@common.ledger_option
@common.json_option
def command(run_a: str, run_b: str, ledger: str | None, as_json: bool) -> None:
    """Say what made RUN_B faster or slower than RUN_A."""
    loaded = common.load(ledger)
    found = explain(common.find(loaded, run_a), common.find(loaded, run_b))
    if as_json:
        common.print_json(found)
        return
    from stagexec.views import text

    text.print_difference(text.console(), found)
