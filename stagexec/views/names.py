"""For a terminal: how much of a run has a name, what ran in the rest, what was read, who else was at work."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from stagexec.answers.words import human, percent, share_named, size
from stagexec.printable import visible

BUSY = 0.2
"""Other programs that take less of the machine than this are not worth a line."""

MOST = 10


def text(value: Any) -> str:
    """User data, made safe for rich and for the terminal; `-` for None."""
    return "-" if value is None else escape(visible(value))


def print_names(out: Console, run: dict[str, Any]) -> None:
    """The headline, then one line a visit that has no name. `run` as `show --json` gives it."""
    print_headline(out, run["named_share"])
    for row in run["unnamed"][:MOST]:
        out.print(line_of(row), soft_wrap=True)
    if len(run["unnamed"]) > MOST:
        out.print(f"and {len(run['unnamed']) - MOST} more of them (--json has them)")


def print_headline(out: Console, share: float | None, of: str = "this run") -> None:
    """`named 97% of this run`; nothing where the share is not known."""
    if share is not None:
        out.print(f"named {share_named(share)} of {of}")


def line_of(row: dict[str, Any]) -> str:
    """`node 7 (X): 1.2 s unnamed, 80% in cv2.inpaint ← pack.module.func`."""
    what = "unnamed" if row["stage"] == "node_other" else f"of {text(row['stage'])} by its class"
    ran = [one for one in row["ran"] if one["name"] is not None][:3]
    told = ", ".join(f"{percent(one['share'])} in {text(one['name'])}" for one in ran)
    place = f"node {text(row['node_id'])} ({text(row['node_class'])})"
    return f"{place}: {human(row['ns'])} {what}" + (f", {told}" if told else "")


def print_reads(out: Console, run: dict[str, Any]) -> None:
    """The files of weights that were read, together."""
    reads = run["reads"]
    if not reads:
        return
    count, ns = sum(one["bytes"] for one in reads), sum(one["ns"] or 0 for one in reads)
    cold = None if any(one["disk_bytes"] is None for one in reads) else sum(o["disk_bytes"] for o in reads)
    speed = f" ({count / ns * 1e3:.0f} MB/s)" if ns else ""
    files = "1 file" if len(reads) == 1 else f"{len(reads)} files"
    source = "" if cold is None else f", {size(cold)} of it from disk"
    out.print(f"read {size(count)} of weights from {files} in {human(ns)}{speed}{source}")


def print_others(out: Console, run: dict[str, Any]) -> None:
    """Stages in which other programs had a good part of the machine."""
    for stage, told in run["cpu"].items():
        share = told["others_share"]
        if share is not None and share >= BUSY and told["covered_ns"] >= 0.02 * (run["total_ns"] or 0):
            out.print(f"[yellow]during {text(stage)} other programs had {percent(share)} of the CPUs[/]")
