"""`stagexec runs`: the runs of the ledger, one a line."""

from __future__ import annotations

import datetime
import re
import time
from typing import Any

import click

from stagexec import stages as sets
from stagexec.cli import common
from stagexec.reading.table import summary_of

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])\Z")
SHOWN = 50
"""So many runs are shown to a person who asks for no number: a screen, not a million lines."""

COUNT = "SELECT count(*) AS count FROM runs WHERE {where}"

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MICROSECOND = datetime.timedelta(microseconds=1)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def since_ns(text: str, now_ns: int) -> int:
    """Nanoseconds since 1970 of `2h`, `7d` (before `now_ns`) or an ISO date or time (local without a zone).

    0 for what lies before 1970. Raises click.BadParameter for anything else.
    """
    length = _DURATION.match(text)
    if length:
        seconds = min(float(length[1]) * _SECONDS[length[2]], now_ns / 1e9)
        return now_ns - int(seconds * 1e9)
    try:
        moment = datetime.datetime.fromisoformat(text.removesuffix("Z") + "+00:00" * text.endswith("Z"))
        return max(0, (moment.astimezone(datetime.timezone.utc) - _EPOCH) // _MICROSECOND * 1000)
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(f"{text!r} is neither a length like 2h or 7d nor an ISO date") from None


@click.command("runs")
@common.ledger_option
@common.stages_option
@common.json_option
@click.option("--since", metavar="TIME", help="Only runs accepted since: 30m, 2h, 7d, or an ISO date.")
@click.option("--outcome", type=click.Choice(sets.OUTCOMES), multiple=True, help="Only runs that ended so.")
@click.option("--limit", type=click.IntRange(min=1), help=f"Only the newest so many; {SHOWN} without --json.")
def command(
    ledger: str | None, as_json: bool, since: str | None, outcome: tuple[str, ...], limit: int | None
) -> None:
    """List the runs of the ledger, oldest first.

    --ledger may also name a glob or URL of Parquet files that `stagexec export --parquet` wrote.
    """
    where, values = condition(since, outcome)
    newest = limit or (None if as_json else SHOWN)
    with common.relation(ledger) as runs:
        table = [summary_of(row) for row in runs.rows(where, values, newest)]
        count = len(table) if newest is None else runs.ask(COUNT.format(where=where), values)[0]["count"]
    if not count:
        which = "no such runs" if since or outcome else "no runs"
        common.say(f"{which} in {common.place(ledger)}")
    if as_json:
        common.print_json(table)
    elif table:
        from stagexec.views import text

        out = text.console()
        text.print_runs(out, table)
        if count > len(table):
            out.print(f"and {count - len(table)} earlier runs (--limit shows more, --json all)")


def condition(since: str | None, outcome: tuple[str, ...]) -> tuple[str, list[Any]]:
    """The runs that were asked for, as SQL with its values."""
    where: list[str] = ["true"]
    values: list[Any] = []
    if since is not None:
        where.append("accepted_wall_ns >= ?")
        values.append(since_ns(since, time.time_ns()))
    if outcome:
        where.append(f"outcome IN ({', '.join('?' * len(outcome))})")
        values += outcome
    return " AND ".join(where), values
