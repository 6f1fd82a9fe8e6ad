"""The report of a result folder: one JSON, Markdown and a self-contained page, all from the raw runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stagexec.answers.words import human, many
from stagexec.bench import cautions, speech, stats
from stagexec.bench.cautions import state
from stagexec.bench.effects import effects
from stagexec.bench.tables import VERDICTS, Cell, Comparison, Tables, load
from stagexec.reading import conditions

JSON, MARKDOWN, PAGE = "report.json", "report.md", "report.html"


def write(folder: Path) -> dict[str, Any]:
    """Compute all of it again from the raw runs, write the three files, give the JSON. Raises ResultError."""
    from stagexec.bench import page

    tables = load(folder)
    found = build(tables)
    (folder / JSON).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    (folder / MARKDOWN).write_text(markdown(tables, found), encoding="utf-8")
    (folder / PAGE).write_text(page.html(tables, found), encoding="utf-8")
    return found


def build(tables: Tables) -> dict[str, Any]:
    """What the report says, as JSON values. Times in ns, ratios are arm ÷ reference."""
    results = tables.results
    questions = [line for c in tables.comparisons if (line := speech.may_i_use(tables, c))]
    return {
        "plan": tables.plan.name,
        "about": tables.plan.about,
        "reference": tables.plan.reference_arm,
        "timing": tables.plan.timing,
        "seed": tables.plan.seed,
        "machine": results.header.get("machine"),
        "environment": environment(tables),
        "made": results.header.get("made"),
        "stagexec": results.header.get("stagexec"),
        "workflow": results.header.get("workflow_file"),
        "host": results.header.get("host"),
        "state": state(tables),
        "units": [_unit(tables, unit) for unit in tables.plan.unit],
        "cells": [msgspec.to_builtins(cell) for cell in tables.cells],
        "comparisons": [msgspec.to_builtins(one) for one in tables.comparisons],
        "one_time": tables.one_time(),
        "effects": effects(tables),
        "answers": speech.answers(tables),
        "quality_question": {"question": tables.plan.quality.question, "answers": questions},
        "arms": dropped(tables),
        "proofs": proofs(tables),
        "warnings": warnings(tables),
        "cautions": [{**msgspec.to_builtins(one), "line": one.line} for one in cautions.find(tables)],
        "comparisons_made": tables.family,
        "level": stats.level(tables.family),
        "random_weights": results.header.get("random_weights") or [],
        "runs": len(results.runs),
    }


ONE_TIME_RULE = "From 80% on, loading is a one-time cost; of the total, the share is that of loading alone."

ENVIRONMENT = ("host_version", "torch", "python", "os", "cpu", "gpu_model", "driver", "cuda")
"""Fields of the condition that say where it ran."""


def environment(tables: Tables) -> dict[str, Any]:
    """Those of ENVIRONMENT that all cells have in common."""
    ids = {cell.condition_id for cell in tables.cells if cell.condition_id}
    known = [m.fields for m in (conditions.manifest(tables.results.ledger, one) for one in ids) if m]
    return {
        name: known[0].get(name)
        for name in ENVIRONMENT
        if known and all(fields.get(name) == known[0].get(name) for fields in known)
    }


def _unit(tables: Tables, unit: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(unit)
    found["rounds"] = cautions.rounds(tables, unit)
    noted = [n for n in tables.results.notes if n["kind"] == "room" and n["unit"] == unit.name]
    if noted:
        found["room"] = {name: noted[-1][name] for name in ("fits", "why", "figures")}
    repeats = tables.plan.repeats_of(unit)
    found |= {"warmup": unit.warmups, "counted": unit.pairs, "repeats": repeats}
    return found


def dropped(tables: Tables) -> list[dict[str, Any]]:
    """Per unit and arm that left or never took part, the last word on it."""
    last = {(n["unit"], n["arm"]): n for n in tables.results.notes if n["kind"] == "arm"}
    return [{name: n[name] for name in ("unit", "arm", "status", "reason")} for n in last.values()]


def proofs(tables: Tables) -> list[dict[str, Any]]:
    """Per unit and arm, the last proof: what was checked, by which evidence, what was found."""
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for note in tables.results.notes:
        if note["kind"] == "proof":
            key = (note["unit"], note["arm"])
            last[key] = {"unit": key[0], "arm": key[1], "active": note["active"], "checks": note["checks"]}
    return list(last.values())


def warnings(tables: Tables) -> list[str]:
    """What a reader must know before trusting the figures, as sentences."""
    return [one.text for one in cautions.find(tables)]


# --- Markdown ----------------------------------------------------------------------------------------


def markdown(tables: Tables, found: dict[str, Any]) -> str:
    """The report as Markdown."""
    lines = [f"# Bench {found['plan']}", "", found["about"], "", facts(found), ""]
    for answer in found["answers"]:
        lines += [f"## {answer['question']}", "", *(f"* {line}" for line in answer["lines"]), ""]
    if found["quality_question"]["answers"]:
        question = found["quality_question"]
        lines += [f"## {question['question']}", "", *(f"* {line}" for line in question["answers"]), ""]
    for unit in tables.plan.unit:
        lines += [f"## {unit.name}: {unit.about or unit.state}", ""]
        lines += _table(CELL_HEADS, cell_rows(tables, unit.name))
        lines += _table(COMPARISON_HEADS, comparison_rows(tables, unit.name))
        if not unit.ranked:
            lines += ["This unit is not a comparison of speed: its verdicts rank nothing.", ""]
        lines += _table(STAGE_HEADS, stage_rows([c for c in tables.cells if c.unit == unit.name]))
    if found["one_time"]:
        lines += [
            "## First against second run",
            "",
            ONE_TIME_RULE,
            "",
        ]
        lines += _table(ONE_TIME_HEADS, [one_time_row(row) for row in found["one_time"]])
    if found["effects"]:
        lines += ["## What each factor does", ""]
        lines += _table(EFFECT_HEADS, [effect_row(row) for row in found["effects"]])
    lines += ["## Were the arms active?", "", *_table(PROOF_HEADS, proof_rows(found))]
    if found["cautions"]:
        lines += ["## Beware", "", *(f"* {one['line']}" for one in found["cautions"]), ""]
    return "\n".join(lines)


def facts(found: dict[str, Any]) -> str:
    """What was held fixed, in a sentence or two."""
    machine, place = found["machine"] or {}, found["environment"]
    told = [machine.get("name"), place.get("os") or machine.get("system")]
    told += [place.get("cpu") or (f"{many(machine['cores'], 'core')}" if machine.get("cores") else None)]
    told += [place.get("gpu_model") or machine.get("gpu") or "no GPU"]
    names = (("host_version", "ComfyUI"), ("torch", "PyTorch"), ("python", "Python"), ("cuda", "CUDA"))
    software = [f"{name} {place[key]}" for key, name in names if place.get(key)]
    made = f" Made {found['made'][:10]} with stagexec {found['stagexec']}." if found["made"] else ""
    flow = f" Workflow: {found['workflow']}." if found["workflow"] else ""
    return (
        f"Reference arm: {found['reference']}.{flow} Timing mode: {found['timing']}. Order and seeds "
        f"drawn from {found['seed']}. {many(found['runs'], 'raw run')} in runs.jsonl. "
        f"Machine: {', '.join(filter(None, told)) if machine else 'not recorded'}."
        + (f" {', '.join(software)}." if software else "")
        + made
    )


CELL_HEADS = ("arm", "position", "status", "n", "failed", "P50", "P90", "min", "max", "MAD")
COMPARISON_HEADS = ("arm", "position", "verdict", "ratio", "95% interval", "pairs", "why")
STAGE_HEADS = ("arm", "position", "stage", "P50", "P90", "min", "max", "MAD")
ONE_TIME_HEADS = ("unit", "arm", "stage", "(first − second) ÷ first", "n", "reading")
EFFECT_HEADS = ("unit", "factor", "level", "against", "ratio", "95% interval", "shown")
PROOF_HEADS = ("unit", "arm", "active", "what", "evidence", "found")


def cell_row(cell: Cell) -> list[str]:
    """A cell as text, in the order of CELL_HEADS."""
    failed = f"{cell.failed} ({human(cell.lost_ns)} lost)" if cell.failed else "0"
    status = cell.status if cell.reason is None else f"{cell.status}: {cell.reason}"
    return [cell.arm, cell.position or "-", status, str(cell.n), failed, *_summary(cell.total)]


def _summary(summary: Any) -> list[str]:
    names = ("p50", "p90", "min", "max", "mad")
    if summary is None:
        return ["-"] * 5
    told = [human(round(getattr(summary, name))) for name in names]
    return told if summary.n > 1 else [told[0], "-", told[2], told[3], "-"]  # one run has no spread


def comparison_row(found: Comparison) -> list[str]:
    """A comparison as text, in the order of COMPARISON_HEADS."""
    ratio = found.total
    interval = "-" if ratio is None or ratio.low is None else f"{ratio.low:.3f} – {ratio.high:.3f}"
    verdict = found.verdict if found.ranked else f"not ranked ({found.verdict})"
    shown = "-" if ratio is None else f"{ratio.ratio:.3f}"
    why = found.reason.removeprefix(f"{found.arm}: ")
    if why.startswith("ratio "):  # the figures have columns of their own
        why = why.partition("; ")[2]
    return [found.arm, found.position or "-", verdict, shown, interval, str(found.pairs), why]


def cell_rows(tables: Tables, unit: str) -> list[list[str]]:
    """The rows of a unit; an arm that could not run has one, not one for each position."""
    cells = [cell for cell in tables.cells if cell.unit == unit]
    first = cells[0].position if cells else ""
    rows = [cell for cell in cells if cell.status in ("measured", "not pooled") or cell.position == first]
    return [cell_row(cell) for cell in rows]


def comparison_rows(tables: Tables, unit: str) -> list[list[str]]:
    """The verdicts of a unit. An arm that could not run has none; its reason stands among the cells."""
    mine = [one for one in tables.comparisons if one.unit == unit and one.verdict in VERDICTS]
    return [comparison_row(one) for one in mine if one.total is not None or one.verdict != "not shown"]


def stage_rows(cells: list[Cell]) -> list[list[str]]:
    """Every stage of every cell, in the order of STAGE_HEADS."""
    return [
        [cell.arm, cell.position or "-", stage, *_summary(summary)]
        for cell in cells
        for stage, summary in cell.stages.items()
    ]


def one_time_row(row: dict[str, Any]) -> list[str]:
    """A row of `one_time` as text, in the order of ONE_TIME_HEADS."""
    share = f"{row['share'] * 100:.0f}%"
    return [row["unit"], row["arm"], row["stage"], share, str(row["n"]), row["reading"]]


def effect_row(row: dict[str, Any]) -> list[str]:
    """A row of `effects` as text, in the order of EFFECT_HEADS."""
    interval = "-" if row["low"] is None else f"{row['low']:.3f} – {row['high']:.3f}"
    names = [row[name] for name in ("unit", "factor", "level", "against")]
    return [*names, f"{row['ratio']:.3f}", interval, row["shown"]]


def proof_rows(found: dict[str, Any]) -> list[list[str]]:
    """Every check of every arm; an arm that promised nothing says so."""
    rows = []
    for proof in found["proofs"]:
        head = [proof["unit"], proof["arm"]]
        if not proof["checks"]:
            rows.append([*head, "yes", "nothing to prove", "the plan asks for no proof", "-"])
        for check in proof["checks"]:
            active = {True: "yes", False: "no", None: "no evidence"}[check["ok"]]
            value = check["found"]
            shown = (
                "-" if value is None else ", ".join(map(str, value)) if type(value) is list else str(value)
            )
            rows.append([*head, active, check["what"], check["evidence"], shown])
    return rows


def _table(heads: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    if not rows:
        return []

    def line(cells: Any) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return [line(heads), "|" + "---|" * len(heads), *map(line, rows), ""]
