"""Failures, plans and comparisons for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from stagexec.answers.amdahl import Plan, SpeedUp
from stagexec.answers.cache_defeat import ReExecution
from stagexec.answers.diff import Comparison
from stagexec.answers.failures import Failures, Group
from stagexec.answers.words import human, nodes, part_lines, percent, sampler_steps, share_named
from stagexec.views.names import print_headline
from stagexec.views.text import print_difference, residency, text

MOST_ROWS = 40


def _table(*columns: str, left: int = 1) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at < left else "right", overflow="fold")
    return table


def _rate(rate: float | None, low: float | None, high: float | None) -> str:
    if rate is None or low is None or high is None:
        return "-"
    return f"{rate * 100:.2f}% ({low * 100:.2f}–{high * 100:.2f})"


def _money(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def print_failures(out: Console, found: Failures) -> None:
    """The whole in words, then a line a group, worst first."""
    total = found.total
    ended = ", ".join(f"{count} {text(outcome)}" for outcome, count in total.outcomes.items())
    out.print(f"{total.accepted} runs accepted: {ended or 'none has ended'}; {total.running} under way")
    rate = _rate(total.failure_rate, total.failure_low, total.failure_high)
    out.print(f"failure rate {rate}, 95% interval: {total.failures} of {total.attempts}, cancels left out")
    sure = _rate(total.reliability, total.reliability_low, total.reliability_high)
    out.print(f"reliability {sure}: {total.delivered_runs} delivered all, of all that ended")
    if total.stopped:
        out.print(
            f"{total.stopped} were stopped with their process (signal, exit or restart), and count in neither"
        )
    if total.late_cancels:
        plural = "s" if total.late_cancels > 1 else ""
        out.print(f"{total.late_cancels} cancel{plural} came too late and had no effect")
    out.print(f"wasted {human(total.wasted_ns)} ({text(total.wasted_kind)}) of {human(total.busy_ns)} busy")
    if found.price_per_gpu_hour is not None:
        out.print(
            f"cost {_money(total.cost)}, of it wasted {_money(total.wasted_cost)}; "
            f"{_money(total.cost_per_delivered_run)} a delivered run, "
            f"{_money(total.cost_per_delivered_output)} a delivered output"
        )
    if found.by is not None:
        out.print(_groups(found))
        if len(found.groups) > MOST_ROWS:
            out.print(f"and {len(found.groups) - MOST_ROWS} more (--json has them)")


def _groups(found: Failures) -> Table:
    priced = found.price_per_gpu_hour is not None
    extra = ("wasted cost",) if priced else ()
    table = _table(str(found.by), "failures", "cancelled", "attempts", "rate (95%)", "wasted", *extra)
    for group in found.groups[:MOST_ROWS]:
        table.add_row(text(group.group), *_cells(group), *((_money(group.wasted_cost),) if priced else ()))
    return table


def _cells(group: Group) -> tuple[str, ...]:
    rate = _rate(group.failure_rate, group.failure_low, group.failure_high)
    counts = (str(group.failures), str(group.cancelled), str(group.attempts))
    return (*counts, rate, human(group.wasted_ns))


def print_plan(out: Console, found: Plan) -> None:
    """Shares and bounds, then what was asked."""
    of = f"run {text(found.run_id[:8])}" if found.runs == 1 else f"{found.runs} runs, P50"
    out.print(f"{of}: {human(found.total_ns)}, timing {text(found.timing)}")
    table = _table("stage", "time", "share", "at most, 1/(1-s)")
    for one in found.stages:
        bound = "-" if one.limit is None else f"{one.limit:.2f}×"
        mark = " (lower bound)" if one.lower_bound else ""
        table.add_row(text(one.stage) + mark, human(one.ns), percent(one.share), bound)
        for name, ns in part_lines({"parts": found.parts, "steps": found.steps}, one.stage):
            table.add_row(f"  [dim]{text(name)}[/]", f"[dim]{human(ns)}[/]", "", "")
    out.print(table)
    print_headline(out, found.named_share, "this run" if found.runs == 1 else f"these {found.runs} runs")
    for what_if in [*found.speedups, *([found.combined] if found.combined else [])]:
        out.print(_speed_up(what_if))
    for note in found.notes:
        out.print(f"note: {text(note)}", soft_wrap=True)


def _speed_up(one: SpeedUp) -> str:
    times = f" {one.k:g} times as fast" if one.k is not None else " together"
    return f"{text(one.stage)}{times}: the whole {one.speedup:.3f}× as fast, {human(one.total_ns)}"


def print_comparison(out: Console, found: Comparison) -> None:
    """The difference, then condition, residency, nodes, and what was executed again."""
    print_difference(out, found)
    shares = [share_named(found.named_share.get(side)) for side in ("a", "b")]
    out.print(f"named {shares[0]} of A, {shares[1]} of B")
    steps = [found.steps.get(side) for side in ("a", "b")]
    if any(steps):
        told = [sampler_steps(one) if one else "none" for one in steps]
        out.print(f"sampler steps: {told[0]} → {told[1]}")
    for row in found.conditions:
        packs = f" (packs: {text(', '.join(row['packs']))})" if row.get("packs") else ""
        out.print(
            f"condition {text(row['field'])}: {text(row['a'])} → {text(row['b'])}{packs}", soft_wrap=True
        )
    for name in dict.fromkeys([*found.residency.get("a", {}), *found.residency.get("b", {})]):
        told = [residency(found.residency[side].get(name)) for side in ("a", "b")]
        out.print(f"model {text(name)}: {told[0]} → {told[1]}")
    print_re_executed(out, found.re_executed)


def print_re_executed(out: Console, found: Sequence[ReExecution]) -> None:
    """A line a node that was executed again, and why."""
    for again in found[:MOST_ROWS]:
        place = f"node {text(again.node_id)} ({text(again.node_class)})"
        out.print(f"{place} executed again: {text(again.why)}", soft_wrap=True)
    if len(found) > MOST_ROWS:
        out.print(f"and {nodes(len(found) - MOST_ROWS)} more")
