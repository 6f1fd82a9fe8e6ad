"""`stagexec show`: one run in full."""

from __future__ import annotations

import click
import msgspec

from stagexec.answers import cache_defeat, diagnose, proof
from stagexec.cli import common
from stagexec.reading import rows


@click.command("show")
@click.argument("run")
@common.ledger_option
@common.stages_option
@common.json_option
@click.option("--all", "all_visits", is_flag=True, help="Print every visit, not only the longest.")
def command(run: str, ledger: str | None, as_json: bool, all_visits: bool) -> None:
    """Show one run: its stages, visits, artifacts and how it ended."""
    loaded = common.load(ledger)
    chosen = common.find(loaded, run)
    found = rows.detail(chosen)
    found["diagnoses"] = msgspec.to_builtins(diagnose.diagnose(chosen, loaded.runs))
    before = cache_defeat.previous(chosen, loaded.runs)
    again = cache_defeat.re_executions(chosen, before) if before is not None else []
    found["re_executed"] = msgspec.to_builtins(again)
    found["proof"] = proof.proof(chosen)
    if as_json:
        common.print_json(found)
    else:
        from stagexec.views import reports, text

        out = text.console()
        text.print_run(out, found, all_visits)
        reports.print_re_executed(out, again)
    for problem in found["proof"]["problems"]:
        common.say(f"run {chosen.run_id[:8]} does not add up: {problem}")
    if found["proof"]["problems"]:
        raise SystemExit(1)
