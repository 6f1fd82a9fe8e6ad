"""`stagexec export RUN…`: runs in the formats of other tools, one function each."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import click
import msgspec

from stagexec.cli import common
from stagexec.reading import rows
from stagexec.reading.runs import Run


def perfetto(runs: list[Run], target: str) -> str:
    """One run's timeline for ui.perfetto.dev."""
    from stagexec.views import perfetto as view

    if len(runs) != 1:
        raise common.BadInput("--perfetto takes exactly one RUN: runs of two processes have two clocks")
    try:
        count = view.write(rows.detail(runs[0]), pathlib.Path(target))
    except msgspec.DecodeError as problem:
        raise click.ClickException(f"the torch trace of this run is no JSON: {problem}") from None
    return f"{count} events; open {target} in https://ui.perfetto.dev"


FORMATS: dict[str, Callable[[list[Run], str], str]] = {"perfetto": perfetto}
"""Option -> what writes it: takes the runs and the option's value, gives a sentence for the person."""


@click.command("export")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@common.ledger_option
@click.option("--perfetto", metavar="FILE", help="A timeline for ui.perfetto.dev (one RUN).")
def command(runs: tuple[str, ...], ledger: str | None, **targets: str | None) -> None:
    """Write runs in the formats of other tools."""
    asked = [(name, target) for name, target in targets.items() if target is not None]
    if not asked:
        raise common.BadInput("say what to write: " + ", ".join(f"--{name}" for name in FORMATS))
    loaded = common.load(ledger)
    found = [common.find(loaded, name) for name in runs]
    for name, target in asked:
        try:
            said = FORMATS[name](found, target)
        except OSError as problem:
            raise click.ClickException(f"{target}: {problem.strerror or problem}") from None
        click.echo(said, err=True)
