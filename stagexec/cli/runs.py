"""`stagexec runs`: the runs of the ledger, one a line."""

from __future__ import annotations

import datetime
import re
import time

import click

from stagexec import stages as sets
from stagexec.cli import common
from stagexec.reading import rows

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def since_ns(text: str, now_ns: int) -> int:
    """Nanoseconds since 1970 of `2h`, `7d` (before `now_ns`) or an ISO date or time (local without a zone).

    Raises click.BadParameter for anything else.
    """
    length = _DURATION.match(text)
    if length:
        return now_ns - int(float(length[1]) * _SECONDS[length[2]] * 1e9)
    try:
        moment = datetime.datetime.fromisoformat(text.removesuffix("Z") + "+00:00" * text.endswith("Z"))
        return int(moment.timestamp() * 1e9)
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(f"{text!r} is neither a length like 2h or 7d nor an ISO date") from None


@click.command("runs")
@common.ledger_option
@common.json_option
@click.option("--since", metavar="TIME", help="Only runs accepted since: 30m, 2h, 7d, or an ISO date.")
@click.option("--outcome", type=click.Choice(sets.OUTCOMES), multiple=True, help="Only runs that ended so.")
def command(ledger: str | None, as_json: bool, since: str | None, outcome: tuple[str, ...]) -> None:
    """List the runs of the ledger, oldest first."""
    start = None if since is None else since_ns(since, time.time_ns())
    found = common.load(ledger).runs
    if start is not None:
        found = [run for run in found if (rows.accepted_wall_ns(run) or 0) >= start]
    if outcome:
        found = [run for run in found if run.outcome in outcome]
    table = [rows.summary(run) for run in found]
    if as_json:
        common.print_json(table)
    elif table:
        from stagexec.views import text

        text.print_runs(text.console(), table)
