"""Runs, differences, findings and the doctor's report for a terminal."""

from __future__ import annotations

import io
import sys
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stagexec.answers.diff import residency_of
from stagexec.answers.explain import Difference
from stagexec.answers.words import human, part_lines, percent, share_named, size
from stagexec.printable import visible
from stagexec.reading.audit import Finding
from stagexec.reading.named import share_of_many
from stagexec.views.beside import MARKS, print_beside
from stagexec.views.names import print_headline, print_names, print_others, print_reads

BAR_CELLS = 30
MOST_VISITS = 40
WIDE_COLUMNS = 180
"""Where there is less, a list of runs leaves out what `show` tells anyway, and no word is cut in two."""

PIPED_COLUMNS = 160
"""Width where there is no terminal to ask: rich's own 80 would cut columns off."""

TOLD = ("model_load", "attention", "weights_read", "messages", *MARKS)
"""Marks that are told in other words: by model, as a diagnosis, all reads together, beside the run."""

OUTCOME_STYLES = {
    "success": "green",
    "success_empty": "yellow",
    "success_unverified": "yellow",
    "partial": "yellow",
    "failed": "red",
    "cancelled": "magenta",
    "lost": "red",
}


class Screen(Console):
    """A console whose own words alone may steer the terminal: no text of others that is printed does."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich's, of texts with what is unseen in them made visible."""
        shown = (visible(one, keep="\n") if isinstance(one, str) else one for one in objects)
        super().print(*shown, **options)


def console() -> Console:
    """A console on standard output. What its encoding lacks, as a Windows pipe's, becomes a question mark."""
    out: Any = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="replace")
    if out is None:  # a process may have been started without any
        out = io.StringIO()
    return Screen(file=out, width=None if out.isatty() else PIPED_COLUMNS, highlight=False)


def text(value: Any) -> str:
    """User data, made safe for rich and for the terminal; `-` for None."""
    return "-" if value is None else escape(visible(value))


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def _outcome(row: dict[str, Any]) -> str:
    name = row["outcome"]
    if name is None:
        return "[cyan]waiting[/]" if list(row["stages"]) == ["queue_wait"] else "[cyan]running[/]"
    style = OUTCOME_STYLES.get(name, "red")
    cause = f" ({text(row['cause'])})" if row["cause"] else ""
    return f"[{style}]{text(name)}[/]{cause}"


def print_runs(out: Console, rows: list[dict[str, Any]]) -> None:
    """One line a run. `rows` as `runs --json` gives them."""
    more = ("named", "non-compute", "pictures/s") if out.width >= WIDE_COLUMNS else ()
    names = ("run", "accepted (UTC)", "outcome", "start-up", "where", "total", "wasted", "most time in")
    table = _table(*names, *more, right=("total", "wasted", *more))
    for row in rows:
        stage, spent = max(row["stages"].items(), key=lambda item: item[1], default=("-", 0))
        where = "-" if row["error_stage"] is None else text(row["error_stage"])
        if row["error_node"] is not None:
            where += f", node {text(row['error_node'])}"
        share = percent(spent / row["total_ns"]) if row["total_ns"] else ""
        rate = "-" if row["pictures_per_s"] is None else f"{row['pictures_per_s']:.3g}"
        table.add_row(
            text(row["run_id"][:8]),
            text((row["accepted_wall"] or "-")[:19].replace("T", " ")),
            _outcome(row),
            text(row["startup_class"]),
            where,
            human(row["total_ns"]),
            human(row["wasted_ns"]) if row["wasted_ns"] else "-",
            f"{text(stage)} {share}",
            *((share_named(row["named_share"]), percent(row["non_compute_share"]), rate) if more else ()),
        )
    out.print(table)
    print_headline(out, share_of_many(rows), "this run" if len(rows) == 1 else f"these {len(rows)} runs")


def print_run(out: Console, run: dict[str, Any], all_visits: bool = False) -> None:
    """Everything of one run. `run` as `show --json` gives it."""
    out.print(f"[bold]run {text(run['run_id'])}[/]  {_outcome(run)}")
    out.print(
        f"prompt {text(run['prompt_id'])}, accepted {text(run['accepted_wall'])}, "
        f"{text(run['startup_class'])}, executor {text(run['executor'])}, timing {text(run['timing'])}, "
        f"host {text(run['host_version'])}"
    )
    if run.get("startup_evidence"):
        out.print(f"{text(run['startup_class'])}: {text(run['startup_evidence']['reason'])}", soft_wrap=True)
    print_stages(out, run)
    print_names(out, run)
    print_reads(out, run)
    print_others(out, run)
    print_beside(out, run)
    _print_error(out, run)
    _print_visits(out, run, all_visits)
    _print_spans(out, run)
    _print_artifacts(out, run)
    _print_messages(out, run)
    _print_nodes(out, run)
    _print_diagnoses(out, run)
    _print_models(out, run)
    _print_memory(out, run)
    _print_remarks(out, run)


def print_stages(out: Console, run: dict[str, Any]) -> None:
    """The ledger as bars that add up to the total, with the sum spelled out."""
    total = run["total_ns"]
    on_device = run.get("device_stages", {}) if run["device_ns"] is not None else {}
    names = ("stage", "time", "device", "share", "") if on_device else ("stage", "time", "share", "")
    table = _table(*names, right=("time", "device", "share"))
    for stage, spent in run["stages"].items():
        share = spent / total if total else 0.0
        device = (human(on_device.get(stage)),) if on_device else ()
        bar = "█" * round(share * BAR_CELLS) or "▏"
        table.add_row(text(stage), human(spent), *device, percent(share), bar)
        for name, ns in part_lines(run, stage):
            nothing = ("",) if on_device else ()
            table.add_row(f"  [dim]{text(name)}[/]", f"[dim]{human(ns)}[/]", *nothing, "", "")
    out.print(table)
    print_proof(out, run)
    _print_shares(out, run)
    if on_device:
        out.print(f"device {human(run['device_ns'])} from event to event, its idle time included")
    if run["wasted_ns"]:
        out.print(f"wasted {human(run['wasted_ns'])} ({text(run['wasted_kind'])})")
    if run["cancel_latency_ns"] is not None:
        out.print(f"stopped {human(run['cancel_latency_ns'])} after the cancel was asked")
    if run["cancel_had_effect"] is False:
        out.print("the cancel had no effect: it came too late to stop anything")


def _print_shares(out: Console, run: dict[str, Any]) -> None:
    if run.get("non_compute_share") is None:
        return
    rate = run["pictures_per_s"]
    made = "" if rate is None else f", {run['pictures']} pictures, {rate:.3g} a second"
    out.print(f"non-compute share {percent(run['non_compute_share'])}{made}")


def print_proof(out: Console, run: dict[str, Any]) -> None:
    """Whether the segments fill the run's bounds, which other events tell; loudly where they do not."""
    proof = run.get("proof")
    if proof is None:
        return
    for problem in proof["problems"]:
        out.print(f"[bold red]the ledger of this run does not add up[/]: {text(problem)}", soft_wrap=True)
    if not proof["problems"]:
        out.print(text(proof["says"]), soft_wrap=True)


def _print_error(out: Console, run: dict[str, Any]) -> None:
    error = run["error"]
    if error is None:
        return
    place = [f"stage {text(error['stage'])}"]
    if error["node_id"] is not None:
        place.append(f"node {text(error['node_id'])} ({text(error['node_class'])})")
    if error["visit"] is not None:
        place.append(f"visit {error['visit']}")
    if error["list_index"] is not None:
        place.append(f"list item {error['list_index']}")
    out.print(f"[red]ended in[/] {', '.join(place)}")
    if error["exception_type"] or error["message"]:
        out.print(f"  {text(error['exception_type'])}: {text(error['message'])}")


def _print_visits(out: Console, run: dict[str, Any], all_visits: bool) -> None:
    visits = run["visits"]
    if not visits:
        return
    shown = visits
    if not all_visits and len(visits) > MOST_VISITS:
        longest = sorted(visits, key=lambda v: -v["self_ns"])[:MOST_VISITS]
        shown = sorted(longest, key=lambda v: int(v["visit"]))
    names = ("visit", "node", "class", "kind", "stage", "origin", "self")
    with_device = run["device_ns"] is not None
    table = _table(*names, *(("device",) if with_device else ()), right=("visit", "self", "device"))
    for v in shown:
        node = text(v["node_id"]) + (f" (from {text(v['parent'])})" if v["parent"] is not None else "")
        kind = text(v["kind"]) + (f" at item {v['list_index']}" if v["list_index"] is not None else "")
        likely = v.get("hint") if v["stage"] == "node_other" else None
        stage = text(v["stage"]) + (f" (likely {text(likely)})" if likely else "")
        where = (stage, text(v["origin"]))
        times = (human(v["self_ns"]), *((human(v["device_ns"]),) if with_device else ()))
        table.add_row(str(v["visit"]), node, text(v["class_type"]), kind, *where, *times)
    out.print(table)
    if len(shown) < len(visits):
        rest = sum(v["self_ns"] for v in visits) - sum(v["self_ns"] for v in shown)
        out.print(f"and {len(visits) - len(shown)} shorter visits, {human(rest)} together (--all shows them)")


def _print_spans(out: Console, run: dict[str, Any]) -> None:
    if not run["spans"]:
        return
    table = _table("lane", "span", "stage", "start", "length", right=("start", "length"))
    for span in run["spans"][:MOST_VISITS]:
        table.add_row(
            text(span["lane"]),
            text(span["name"]),
            text(span["stage"]),
            human(span["start_ns"] - run["accepted_mono_ns"]),
            human(span["end_ns"] - span["start_ns"]),
        )
    out.print(table)
    if len(run["spans"]) > MOST_VISITS:
        out.print(f"and {len(run['spans']) - MOST_VISITS} more spans (--json has them)")
    tasks = run["concurrency"]
    if tasks["concurrency"]:
        out.print(
            f"async tasks: up to {tasks['concurrency']} at once, busy for {human(tasks['union_ns'])}, "
            f"longest chain {human(tasks['critical_ns'])}; beside the ledger, never added to it"
        )


def _print_artifacts(out: Console, run: dict[str, Any]) -> None:
    if not run["artifacts"]:
        return
    table = _table("artifact", "size", "state", "ready after", "sha256", right=("size", "ready after"))
    for a in run["artifacts"]:
        style = {"verified": "green", "unverified": "yellow"}.get(a["state"], "red")
        state = f"[{style}]{text(a['state'])}[/]"
        state += "".join(f", {word}" for word in ("orphan", "cached") if a[word])
        if a["reason"]:
            state += f": {text(a['reason'])}"
        if a["first_bad"] is not None:
            state += f" (first at node {text(a['first_bad'])})"
        digest = text(a["sha256"][:12]) if a["sha256"] else "-"
        table.add_row(text(a["path"]), size(a["bytes"]), state, human(a["ready_ns"]), digest)
    out.print(table)


def _print_messages(out: Console, run: dict[str, Any]) -> None:
    for one in run["messages"]:
        sent = f"{one['messages']} message{'s' if one['messages'] != 1 else ''}"
        clients = f"{one['sockets']} client{'s' if one['sockets'] != 1 else ''}"
        missed = one["messages"] - one["reached"]
        what = "delivered" if one["delivered"] else "[yellow]not delivered[/]"
        rest = f"; {missed} reached no client" if missed else ""
        out.print(f"node {text(one['node_id'])} sent {sent} to {clients} by socket: {what}{rest}")


def _print_nodes(out: Console, run: dict[str, Any]) -> None:
    counts = {
        "selected": run["selected_outputs"],
        "expected": run["expected_nodes"],
        "cached at the start": run["cached_nodes"],
        "cached in the run": run["cached_in_run"],
        "executed": run["executed_nodes"],
        "not executed": run["not_executed"],
        "unexpected": run["unexpected"],
    }
    told = ", ".join(f"{len(found)} {name}" for name, found in counts.items() if found)
    out.print(f"nodes: {told or 'none'}")
    for node, grown in list(run["rollup"].items())[:MOST_VISITS]:
        out.print(
            f"node {text(node)} grew {grown['nodes']} nodes: {human(grown['wall_ns'])} wall clock, "
            f"{human(grown['self_ns'])} of it on the main lane"
        )


def _print_diagnoses(out: Console, run: dict[str, Any]) -> None:
    for found in run.get("diagnoses", ()):
        style = "yellow" if found["severity"] == "problem" else "cyan"
        out.print(f"[{style}]{text(found['name'])}[/]: {text(found['says'])}", soft_wrap=True)


def _print_models(out: Console, run: dict[str, Any]) -> None:
    loads = [mark["detail"] for mark in run["marks"] if mark["name"] == "model_load"]
    for name, found in residency_of(loads).items():
        out.print(f"model {text(name)}: {residency(found)}")


def _print_memory(out: Console, run: dict[str, Any]) -> None:
    if run["memory"]:
        sizes = [
            f"{text(name)} {size(n) if isinstance(n, int) else text(n)}" for name, n in run["memory"].items()
        ]
        out.print(f"memory at the end: {', '.join(sizes)}")
    samples = run["memory_samples"]
    names = ("allocated_bytes", "reserved_bytes", "dynamic_bytes", "rss_bytes")
    most = {n: max((v for v in samples.get(n, ()) if v is not None), default=None) for n in names}
    if any(value is not None for value in most.values()):
        told = ", ".join(f"{text(name)} {size(value)}" for name, value in most.items() if value is not None)
        out.print(f"most at {len(samples['at_ns'])} readings between stages: {told}")
    if run["nvml"] is not None:
        _print_nvml(out, run["nvml"])


def _print_nvml(out: Console, nvml: dict[str, Any]) -> None:
    if nvml["reason"]:
        out.print(f"NVML not active: {text(nvml['reason'])}")
    for uuid, told in nvml["devices"].items():
        energy = "-" if told["energy_mj"] is None else f"{told['energy_mj'] / 1000:.1f} J"
        most = ", ".join(
            f"{text(name[:-4])} {size(told[name]) if 'bytes' in name else told[name]}"
            for name in told
            if name.endswith("_max") and told[name] is not None
        )
        out.print(f"{text(told.get('name'))} {text(uuid)}: {energy}, {told['samples']} samples, most: {most}")


def residency(one: dict[str, int] | None) -> str:
    """How often a model was asked for and was there already; `one` as in diff.residency."""
    if one is None:
        return "not used"
    times = "once" if one["asked"] == 1 else f"{one['asked']} times"
    return f"asked for {times}, there already {one['resident']} of {one['asked']}, {size(one['bytes'])}"


def _print_remarks(out: Console, run: dict[str, Any]) -> None:
    for blocked in run["blocked"]:
        out.print(f"blocked at node {text(blocked.get('node_id'))}: {text(blocked.get('message'))}")
    for mark in run["marks"]:
        if mark["name"] not in TOLD:
            out.print(f"mark {text(mark['name'])}: {text(mark['detail'])}")
    for fault in run["faults"]:
        out.print(f"[red]fault in stagexec[/]: {text(fault['detail'])}")
    for seam in run["seams"]:
        if seam.get("state") in ("refused", "lost"):
            out.print(
                f"[yellow]seam {text(seam.get('seam'))} {text(seam['state'])}[/]: {text(seam.get('reason'))}"
            )
    if run["executor"] == "host" and run["executor_reason"]:
        out.print(f"[yellow]native executor not active[/]: {text(run['executor_reason'])}")
    if run["device_reason"] is not None:
        state = "not active" if run["device_ns"] is None else "not whole"
        out.print(f"device time {state}: {text(run['device_reason'])}")
    for thing in run["device_unseen"]:
        out.print(f"device events do not see: {text(thing)}")
    if run["lost_events"]:
        out.print(f"[red]{run['lost_events']} events of this process could not be written[/]")
    for note in run["notes"]:
        out.print(f"note: {text(note)}", soft_wrap=True)


def print_difference(out: Console, found: Difference) -> None:
    """The verdict, the stages, and what else changed."""
    out.print(text(found.verdict), soft_wrap=True)
    table = _table("stage", "A", "B", "B − A", "share", right=("A", "B", "B − A", "share"))
    for d in found.stages:
        table.add_row(text(d.stage), human(d.a_ns), human(d.b_ns), human(d.delta_ns), percent(d.share))
        for name, ns in sorted(d.parts.items(), key=lambda one: -abs(one[1])):
            table.add_row(f"  [dim]{text(name)}[/]", "", "", f"[dim]{human(ns)}[/]", "")
    total = (human(found.total_a_ns), human(found.total_b_ns), human(found.delta_ns))
    table.add_row("[bold]total[/]", *total, percent(1.0) if found.delta_ns else "-")
    out.print(table)
    for change in found.changed:
        out.print(f"{text(change['what'])}: {_brief(change['a'])} → {_brief(change['b'])}")
    for warning in found.warnings:
        out.print(f"[yellow]note[/]: {text(warning)}")


def _brief(value: Any) -> str:
    if isinstance(value, list) and len(value) > 12:
        return f"{text(value[:12])[:-1]}, … {len(value)} in all]"
    return text(value)


def print_findings(out: Console, findings: list[Finding]) -> None:
    """What `audit` found, worst first inside a file's order."""
    errors = [f for f in findings if f.severity == "error"]
    for f in findings:
        style = "red" if f.severity == "error" else "yellow"
        run = f" run {text(f.run_id[:8])}" if f.run_id else ""
        place = f"{text(f.file)}:{f.line}" if f.line else text(f.file)
        out.print(f"[{style}]{f.severity}[/] {text(f.kind)}{run}: {text(f.what)}\n  {place}", soft_wrap=True)
    out.print(f"{len(errors)} errors, {len(findings) - len(errors)} notes")


def print_doctor(out: Console, report: dict[str, Any]) -> None:
    """Host, facts, executor, seams, problems: each as found in `stagexec.host.doctor.report`'s answer."""
    for title in ("host", "facts", "executor"):
        table = _table(title, "")
        for name, value in report.get(title, {}).items():
            table.add_row(text(name), text(value))
        out.print(table)
    table = _table("seam", "target", "state", "reason")
    styles = {"installed": "green", "absent": "dim", "refused": "red", "lost": "red"}
    for seam in report.get("seams", ()):
        state = str(seam.get("state"))
        styled = f"[{styles.get(state, 'yellow')}]{text(state)}[/]"
        table.add_row(text(seam.get("seam")), text(seam.get("target")), styled, text(seam.get("reason")))
    out.print(table)
    problems = report.get("problems", ())
    for problem in problems:
        out.print(f"[red]problem[/]: {text(problem)}")
    if not problems:
        out.print("[green]no problems[/]")
