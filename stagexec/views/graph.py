"""The graph of a run with its times, for a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from stagexec.answers.critical import GraphPlan, NodeTime
from stagexec.answers.words import human, nodes, percent
from stagexec.views.names import print_headline
from stagexec.views.text import text

MOST_ROWS = 20


def print_graph(out: Console, found: GraphPlan) -> None:
    """The path in words, then the nodes on it, those with the least slack beside it, fan-in and chains."""
    out.print(
        f"run {text(found.run_id[:8])}: {human(found.total_ns)} in all, {nodes(len(found.nodes))} visited: "
        f"{human(found.serial_ns)} one after the other"
    )
    print_headline(out, found.named_share)
    many = "" if found.parallelism is None else f" ({found.parallelism:.2f} lanes would be busy)"
    out.print(f"critical path {human(found.critical_ns)}{many}, up to {found.most_at_once} nodes at once")
    out.print(
        f"independent branches at the same time: {human(found.gain_ns)} less, "
        f"{human(found.overlapped_total_ns)} in place of {human(found.total_ns)}"
    )
    by_id = {one.node_id: one for one in found.nodes}
    path = [by_id[node] for node in found.critical_path]
    _print_path(out, path, found.critical_ns)
    _print_slack(out, [one for one in found.nodes if not one.critical and one.length_ns])
    fans = sorted((one for one in found.nodes if one.fan_in > 1), key=lambda one: -one.fan_in)[:3]
    told = ", ".join(f"node {text(one.node_id)} ({text(one.class_type)}) from {one.fan_in}" for one in fans)
    out.print(f"widest level {nodes(found.width)}; most inputs: {told or 'one each'}", soft_wrap=True)
    for chain in found.chains[:3]:
        ends = f"{text(chain.nodes[0])} → {text(chain.nodes[-1])}"
        out.print(f"serial chain of {nodes(len(chain.nodes))}, {ends}: {human(chain.length_ns)}")
    for note in found.notes:
        out.print(f"note: {text(note)}", soft_wrap=True)


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def _print_path(out: Console, path: list[NodeTime], whole: int) -> None:
    if not path:
        return
    right = ("time", "share", "begins at")
    table = _table("critical node", "class", "time", "share", "begins at", right=right)
    shown = sorted(sorted(path, key=lambda one: -one.length_ns)[:MOST_ROWS], key=lambda one: one.start_ns)
    for one in shown:
        share = percent(one.length_ns / whole) if whole else "-"
        times = (human(one.length_ns), share, human(one.start_ns))
        table.add_row(text(one.node_id), text(one.class_type), *times)
    out.print(table)
    if len(shown) < len(path):
        rest = sum(one.length_ns for one in path) - sum(one.length_ns for one in shown)
        out.print(f"and {len(path) - len(shown)} more on the path, {human(rest)} together (--json has them)")


def _print_slack(out: Console, beside: list[NodeTime]) -> None:
    if not beside:
        return
    table = _table("beside it", "class", "time", "slack", right=("time", "slack"))
    for one in sorted(beside, key=lambda one: (one.slack_ns, -one.length_ns))[:MOST_ROWS]:
        table.add_row(text(one.node_id), text(one.class_type), human(one.length_ns), human(one.slack_ns))
    out.print(table)
    if len(beside) > MOST_ROWS:
        out.print(f"and {len(beside) - MOST_ROWS} more (--json has them)")
