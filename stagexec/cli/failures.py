"""`stagexec failures`: how often runs fail, where, and what that costs."""

from __future__ import annotations

import math
import time

import click

from stagexec.cli import common
from stagexec.cli.runs import since_ns

BY = ("stage", "cause", "node", "pack", "condition", "host", "day")


@click.command("failures")
@common.ledger_option
@common.stages_option
@common.json_option
@click.option("--since", metavar="TIME", help="Only runs accepted since: 30m, 2h, 7d, or an ISO date.")
@click.option("--by", type=click.Choice(BY), help="Group by this.")
@click.option("--price", metavar="PER_GPU_HOUR", type=click.FloatRange(min=0), help="What a GPU hour costs.")
def command(
    ledger: str | None, as_json: bool, since: str | None, by: str | None, price: float | None
) -> None:
    """Count failures, with 95% intervals, and the time and money they wasted.

    A cancelled run is no failure. --ledger may also name a glob or URL of Parquet files.
    """
    from stagexec.answers.failures import failures

    if price is not None and not math.isfinite(price):
        raise common.BadInput(f"--price {price}: give an amount of money")
    start = None if since is None else since_ns(since, time.time_ns())
    with common.relation(ledger) as runs:
        found = failures(runs, by, start, price)
    if as_json:
        common.print_json(found)
        return
    from stagexec.views import reports, text

    reports.print_failures(text.console(), found)
