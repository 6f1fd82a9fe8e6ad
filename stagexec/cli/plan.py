"""`stagexec plan`: what a faster stage would bring."""

from __future__ import annotations

import math
from typing import Any

import click

from stagexec import stages as sets
from stagexec.cli import common
from stagexec.reading import store
from stagexec.reading.relation import Runs, is_files
from stagexec.reading.runs import Run


def factor(text: str) -> tuple[str, float]:
    """(stage, k) of `sampling=2`; raises click.BadParameter."""
    stage, equals, number = text.partition("=")
    try:
        k = float(number)
    except ValueError:
        k = math.nan
    if not equals or stage not in sets.STAGES or not k > 0 or math.isinf(k):
        known = ", ".join(sets.STAGES)
        raise click.BadParameter(f"{text!r} is not STAGE=K, K a number above 0 and STAGE one of: {known}")
    return stage, k


@click.command("plan")
@click.argument("run")
@common.ledger_option
@common.stages_option
@common.json_option
@click.option("--speedup", metavar="STAGE=K", multiple=True, help="What if STAGE were K times as fast.")
@click.option("--condition", is_flag=True, help="P50 over all good runs that did the same as RUN.")
@click.option("--graph", is_flag=True, help="The critical path over RUN's graph, and each node's slack.")
def command(
    run: str,
    ledger: str | None,
    as_json: bool,
    speedup: tuple[str, ...],
    condition: bool,
    graph: bool,
) -> None:
    """Show each stage's share of RUN, and how much faster the whole can get.

    With a stage's share s, a stage k times as fast makes the whole 1/((1-s)+s/k) times as fast, and never
    more than 1/(1-s). --condition takes the good runs of RUN's condition, timing mode and start-up class that
    executed as many nodes.

    --graph looks at the nodes instead: the longest path of those that were executed, how much longer each of
    the others could take before the whole does, and what independent branches at the same time would bring.
    """
    if graph:
        if speedup or condition:
            raise common.BadInput("--graph is of one run as it was: leave out --speedup and --condition")
        of_graph(run, ledger, as_json)
        return
    from stagexec.answers.amdahl import plan

    asked = dict(factor(text) for text in speedup)
    with common.relation(ledger) as runs:
        try:
            row = runs.find(run)
        except store.NoSuchRun as error:
            raise common.BadInput(str(error)) from None
        rows = of_condition(runs, row) if condition else [row]
    detail = None if condition else detail_of(ledger, row)
    try:
        found = plan(rows, asked, row["run_id"], detail)
    except ValueError as error:
        raise common.BadInput(str(error)) from None
    if as_json:
        common.print_json(found)
        return
    from stagexec.views import reports, text

    reports.print_plan(text.console(), found)


def of_graph(run: str, ledger: str | None, as_json: bool) -> None:
    """`plan RUN --graph`."""
    from stagexec.answers.critical import critical

    found = critical(common.find(common.load(ledger), run))
    if as_json:
        common.print_json(found)
        return
    from stagexec.views import graph, text

    graph.print_graph(text.console(), found)


def of_condition(runs: Runs, row: dict[str, Any]) -> list[dict[str, Any]]:
    """The good runs of the row's condition, timing mode and start-up class that executed as many nodes: what
    may be pooled. A run that took everything from the cache says nothing about one that did the work.
    """
    if row["condition_id"] is None:
        raise common.BadInput("the condition of this run is not known")
    same = (
        "condition_id = $1 AND timing = $2 AND startup_class IS NOT DISTINCT FROM $3 AND "
        "starts_with(outcome, 'success') AND executed_visits IS NOT DISTINCT FROM $4 AND warmup IS NOT TRUE"
    )
    alike = [row[name] for name in ("condition_id", "timing", "startup_class", "executed_visits")]
    found = runs.rows(same, alike)
    if not found:
        raise common.BadInput("no run of this condition that executed as much ended well")
    return found


def detail_of(ledger: str | None, row: dict[str, Any]) -> Run | None:
    """The run itself, where the ledger is a folder."""
    if is_files(ledger):
        return None
    from stagexec.reading import lookup

    return lookup.run(common.ledger_path(ledger), row)
