"""`stagexec export`: runs in the formats of other tools, one function each."""

from __future__ import annotations

import pathlib
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
import msgspec

from stagexec import addresses
from stagexec.cli import common
from stagexec.printable import visible
from stagexec.reading import rows

if TYPE_CHECKING:
    from stagexec.reading.runs import Run


class Chosen:
    """The runs that were asked for: named ones, or all of the ledger."""

    def __init__(self, ledger: str | None, names: tuple[str, ...]) -> None:
        self.ledger = ledger
        self.names = names
        self._runs: list[Run] | None = None

    @property
    def runs(self) -> list[Run]:
        """The runs in full."""
        if self._runs is None:
            loaded = common.load(self.ledger, whole=not self.names)
            named = [common.find(loaded, name) for name in self.names] if self.names else loaded.runs
            self._runs = list({run.run_id: run for run in named}.values())  # two names may mean one run
        return self._runs


def perfetto(chosen: Chosen, target: str) -> str:
    """One run's timeline for ui.perfetto.dev."""
    from stagexec.views import perfetto as view

    if len(chosen.names) != 1:
        raise common.BadInput("--perfetto takes exactly one RUN: runs of two processes have two clocks")
    try:
        count = view.write(rows.detail(chosen.runs[0]), pathlib.Path(target))
    except msgspec.DecodeError as problem:
        raise click.ClickException(f"the torch trace of this run is no JSON: {problem}") from None
    return f"{count} events; open {target} in https://ui.perfetto.dev"


def csv(chosen: Chosen, target: str) -> str:
    """A row a segment."""
    from stagexec.views import csv as view

    return f"{view.write(chosen.runs, pathlib.Path(target))} segments in {target}"


def parquet(chosen: Chosen, target: str) -> str:
    """A row a run, partitioned by day; of named runs also a row a segment."""
    from stagexec.views import parquet as view

    folder = pathlib.Path(target)
    try:
        with common.relation(chosen.ledger) as found:
            if not chosen.names:
                name = view.name_of(str(common.ledger_path(chosen.ledger)))
                return f"{view.write_runs(found, folder, name)} runs in {folder / 'runs'}"
            name = f"runs-{uuid.uuid4().hex[:16]}"
            count = view.write_runs(found, folder, name, [run.run_id for run in chosen.runs])
        segments = view.write_segments(chosen.runs, folder, name)
    except view.CannotWrite as problem:
        raise click.ClickException(f"{target}: {problem}") from None
    return f"{count} runs in {folder / 'runs'}, {segments} segments in {folder / 'segments'}"


def otlp(chosen: Chosen, target: str) -> str:
    """A trace a run, to an OpenTelemetry collector."""
    from stagexec.views import otlp as view

    try:
        count = view.send(chosen.runs, target)
    except view.CannotSend as problem:
        raise click.ClickException(str(problem)) from None
    return f"{count} spans of {len(chosen.runs)} runs sent to {addresses.shown(target)}"


def html(chosen: Chosen, target: str) -> str:
    """A report in one file."""
    from stagexec.views import html as view

    try:
        size = view.write(chosen.runs, pathlib.Path(target), common.ledger_path(chosen.ledger))
    except view.NoPlotly as problem:
        raise click.ClickException(str(problem)) from None
    return f"{size} bytes in {target}"


FORMATS: dict[str, Callable[[Chosen, str], str]] = {
    "perfetto": perfetto,
    "csv": csv,
    "parquet": parquet,
    "otlp": otlp,
    "html": html,
}
"""Option -> what writes it: takes the runs and the option's value, gives a sentence for the person."""


@click.command("export")
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@common.ledger_option
@common.stages_option
@click.option("--perfetto", metavar="FILE", help="A timeline for ui.perfetto.dev (one RUN).")
@click.option("--csv", metavar="FILE", help="A row a segment.")
@click.option("--parquet", metavar="DIR", help="A row a run (and of named RUNs a row a segment), by day.")
@click.option("--otlp", metavar="URL", help="Traces to a collector, such as http://localhost:4318.")
@click.option("--html", metavar="FILE", help="A report in one file.")
def command(runs: tuple[str, ...], ledger: str | None, **targets: str | None) -> None:
    """Write runs in the formats of other tools; without a RUN all of them."""
    asked = [(name, target) for name, target in targets.items() if target is not None]
    if not asked:
        raise common.BadInput("say what to write: " + ", ".join(f"--{name}" for name in FORMATS))
    chosen = Chosen(ledger, runs)
    for name, target in asked:
        if name != "otlp":
            common.target(target, f"--{name}")
        try:
            said = FORMATS[name](chosen, target)
        except OSError as problem:
            shown = addresses.shown(target)
            raise common.failed(f"{shown}: {problem.strerror or problem}", problem) from None
        click.echo(visible(said), err=True)
