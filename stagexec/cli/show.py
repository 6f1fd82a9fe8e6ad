"""`stagexec show`: one run in full."""

from __future__ import annotations

import click
import msgspec

from stagexec.answers import diagnose
from stagexec.cli import common
from stagexec.reading import rows


@click.command("show")
@click.argument("run")
@common.ledger_option
@common.json_option
@click.option("--all", "all_visits", is_flag=True, help="Print every visit, not only the longest.")
def command(run: str, ledger: str | None, as_json: bool, all_visits: bool) -> None:
    """Show one run: its stages, visits, artifacts and how it ended."""
    loaded = common.load(ledger)
    chosen = common.find(loaded, run)
    found = rows.detail(chosen)
    found["diagnoses"] = msgspec.to_builtins(diagnose.diagnose(chosen, loaded.runs))
    if as_json:
        common.print_json(found)
        return
    from stagexec.views import text

    text.print_run(text.console(), found, all_visits)
