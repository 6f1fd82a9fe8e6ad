"""The report as one HTML file that loads nothing from anywhere."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from stagexec.bench import charts, report
from stagexec.bench.quality import VIDEO, Unreadable, frames
from stagexec.bench.tables import Tables
from stagexec.stages import STAGES

MOST_SEEDS = 4
"""Seeds whose pictures are shown; the rest lie in the folder."""
THUMB = 160

STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0;font-size:13px;display:block;overflow-x:auto}
th,td{padding:.25rem .6rem;border-bottom:1px solid #8884;text-align:left;vertical-align:top}
td.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.faster{color:#1e8449;font-weight:600}.slower,.wrong{color:#c0392b;font-weight:600}.none{opacity:.7}
svg{width:100%;height:auto}.legend span{margin-right:1rem;white-space:nowrap}
.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
figure{display:inline-block;margin:.3rem;text-align:center;font-size:12px}figure img{max-width:160px}
details{margin:.5rem 0}
"""
VERDICT_CLASS = {"faster": "faster", "slower": "slower", "wrong output": "wrong", "not active": "wrong"}


def html(tables: Tables, found: dict[str, Any]) -> str:
    """The whole page."""
    title = escape(f"Bench {found['plan']}")
    body = "\n".join(_body(tables, found))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>{charts.library()}</head>'
        f"<body><h1>{title}</h1>{body}</body></html>"
    )


def _body(tables: Tables, found: dict[str, Any]) -> Iterator[str]:
    yield f"<p>{escape(found['about'])}</p><p>{escape(report.facts(found))}</p>"
    for answer in [*found["answers"], found["quality_question"]]:
        lines = answer.get("lines", answer.get("answers"))
        if lines:
            yield f"<h2>{escape(answer['question'])}</h2>{_list(lines)}"
    if tables.comparisons:
        yield f"<h2>Arm against reference</h2>{charts.forest(tables.comparisons)}"
    colours = dict(zip(STAGES, charts.COLOURS, strict=True))
    for cell in tables.cells:  # a stage that this version does not know has a colour too
        colours |= {stage: "#000" for stage in cell.stages if stage not in colours}
    used = {s: c for s, c in colours.items() if any(s in cell.stages for cell in tables.cells)}
    yield f"<h2>Where the time goes</h2>{charts.stacks(tables.cells, used)}"
    for unit in tables.plan.unit:
        yield f"<h2>{escape(unit.name)}: {escape(unit.about or unit.state)}</h2>"
        cells = [c for c in tables.cells if c.unit == unit.name]
        yield _table(report.CELL_HEADS, report.cell_rows(tables, unit.name))
        yield _table(report.COMPARISON_HEADS, report.comparison_rows(tables, unit.name))
        if not unit.ranked:
            yield "<p>This unit is not a comparison of speed: its verdicts rank nothing.</p>"
        stages = _table(report.STAGE_HEADS, report.stage_rows(cells))
        yield f"<details><summary>Every stage</summary>{stages}</details>"
        yield "".join(_pictures(tables, unit.name))
    if found["one_time"]:
        yield f"<h2>First against second run</h2><p>{report.ONE_TIME_RULE}</p>"
        yield _table(report.ONE_TIME_HEADS, [report.one_time_row(row) for row in found["one_time"]])
    if found["effects"]:
        rows = [report.effect_row(row) for row in found["effects"]]
        yield f"<h2>What each factor does</h2>{_table(report.EFFECT_HEADS, rows)}"
    yield f"<h2>Were the arms active?</h2>{_table(report.PROOF_HEADS, report.proof_rows(found))}"
    if found["cautions"]:
        yield f"<h2>Beware</h2>{_list([one['line'] for one in found['cautions']])}"


def _list(lines: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _table(heads: tuple[str, ...], rows: list[list[str]]) -> str:
    if not rows:
        return ""
    numbers = {"n", "failed", "P50", "P90", "min", "max", "MAD", "ratio", "95% interval", "pairs"}
    out = ["<table><tr>", *(f"<th>{escape(head)}</th>" for head in heads), "</tr>"]
    for row in rows:
        out.append("<tr>")
        for head, cell in zip(heads, row, strict=True):
            name = "num" if head in numbers else VERDICT_CLASS.get(cell, "none") if head == "verdict" else ""
            out.append(f'<td class="{name}">{escape(cell)}</td>' if name else f"<td>{escape(cell)}</td>")
        out.append("</tr>")
    return "".join([*out, "</table>"])


def _pictures(tables: Tables, unit: str) -> Iterator[str]:
    """Each arm's picture for the first seeds, the reference's first, the likeness below."""
    reference = tables.plan.reference_arm
    names = [reference, *(arm.name for arm in tables.plan.arm if arm.name != reference)]
    found = {c.arm: c for c in tables.comparisons if c.unit == unit}
    position = next((c.position for c in tables.cells if c.unit == unit), "")
    shown = []
    for arm in names:
        runs = tables.runs(unit, position, arm)
        judged = found[arm].quality if arm in found else None
        if judged is not None and runs:
            shown.append(f"<p>{escape(arm)}: {escape(judged.why)} ({escape(judged.criterion)})</p>")
        for pair in sorted(runs)[:MOST_SEEDS]:
            for file in runs[pair]["files"][:1]:
                picture = thumbnail(tables.results.folder / file)
                if picture:
                    caption = f"{arm}, pair {pair + 1}"
                    shown.append(f'<figure><img alt="" src="{picture}"><br>{escape(caption)}</figure>')
    if shown:
        yield f"<details open><summary>Delivered pictures</summary>{''.join(shown)}</details>"


def thumbnail(path: Path) -> str | None:
    """A small picture as a data URL; of a video its first frame; None of what cannot be read."""
    from PIL import Image

    try:
        if path.suffix.lower() in VIDEO:
            frame = next(frames(path))
            image = Image.fromarray((frame.clip(0, 1) * 255).round().astype("uint8"))
        else:
            image = Image.open(path).convert("RGB")
    except (OSError, ValueError, Unreadable, StopIteration):
        return None
    image.thumbnail((THUMB, THUMB))
    times = THUMB // max(image.size)
    if times > 1:  # a picture of a few pixels is shown as what it is: large squares
        image = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
