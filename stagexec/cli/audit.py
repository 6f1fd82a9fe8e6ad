"""`stagexec audit`: contradictions in the journal; exit code 1 if there are any."""

from __future__ import annotations

import click

from stagexec.cli import common
from stagexec.reading import audit
from stagexec.reading.journal import sources


@click.command("audit")
@common.ledger_option
@common.stages_option
@common.json_option
def command(ledger: str | None, as_json: bool) -> None:
    """Look for contradictions in the journal. Exit code 1 if there are any."""
    folder = common.ledger_path(ledger)
    findings = audit.audit(folder)
    if not findings and not sources(folder):
        common.say(f"no journal in {folder}")
    if as_json:
        common.print_json(findings)
    else:
        from stagexec.views import text

        text.print_findings(text.console(), findings)
    if any(found.severity == "error" for found in findings):
        raise SystemExit(1)
