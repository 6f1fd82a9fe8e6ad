"""The four questions a bench is asked, answered in words from its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stagexec.answers.explain import SPOKEN
from stagexec.answers.words import human, many, percent, size
from stagexec.bench import stats
from stagexec.bench.tables import Cell, Comparison, Tables

QUESTIONS = (
    "Which stage dominates under this condition?",
    "Which stage did the change cut, and did the cost move to another?",
    "Were executed nodes, cache hits and the end of delivery the same?",
    "Did quality, failure rate, memory or energy change?",
)
MEMORY_NAMES = {
    "rss_bytes": "resident memory",
    "allocated_bytes": "allocated device memory",
    "reserved_bytes": "reserved device memory",
    "dynamic_bytes": "dynamic VRAM",
}
SMALL = 0.02
"""Memory or energy that changed by less than this share is called the same."""


def answers(tables: Tables) -> list[dict[str, Any]]:
    """`{question, lines}` for each question."""
    compared = tables.comparisons
    measured = [c for c in compared if c.total is not None]
    return [
        {"question": QUESTIONS[0], "lines": [line for c in tables.cells if (line := dominant(c))]},
        {"question": QUESTIONS[1], "lines": [cut(c) for c in measured] or [_nothing(tables)]},
        {"question": QUESTIONS[2], "lines": [same(c) for c in measured] or [_nothing(tables)]},
        {"question": QUESTIONS[3], "lines": [changed(tables, c) for c in measured] or [_nothing(tables)]},
    ]


def _nothing(tables: Tables) -> str:
    if len(tables.plan.arm) == 1:
        return "The plan has one arm: there is no change to speak of."
    return "No arm could be compared with the reference arm."


def where(one: Cell | Comparison) -> str:
    """`M09 (B)`, `M03`."""
    return f"{one.unit} ({one.position})" if one.position else one.unit


def dominant(cell: Cell) -> str | None:
    """Which stage takes most of a cell's time."""
    if cell.total is None or not cell.stages:
        return None
    stage, spent = max(cell.stages.items(), key=lambda item: item[1].p50)
    share = spent.p50 / cell.total.p50 if cell.total.p50 else 0.0
    spoken = SPOKEN.get(stage, stage)
    named = stage if spoken == stage else f"{spoken} ({stage})"
    return (
        f"{where(cell)}, {cell.arm}: {named} takes {percent(share)} of "
        f"{human(round(cell.total.p50))} (P50 of {many(cell.n, 'run')})."
    )


def cut(found: Comparison) -> str:
    """Which stage changed most, what that would do to the total, and what was seen."""
    verdict = found.verdict if found.ranked else f"not ranked ({found.verdict})"
    head = f"{where(found)}, {found.arm} against {found.reference}: {verdict}"
    amdahl = found.amdahl
    if found.total is None or amdahl is None:
        return f"{head}; no stage changed."
    if found.total.shown == "not shown" or found.verdict == "not shown":
        return f"{head} ({found.reason}).{_shown_stages(found)}"
    moved = found.moved_ns[amdahl.stage]
    how = "less" if moved < 0 else "more"
    text = f"{head} ({found.reason}). {amdahl.stage} took {human(round(abs(moved)))} {how}"
    text += (
        f", which alone would make the total {amdahl.predicted:.3f} of what it was; seen {amdahl.seen:.3f}"
    )
    if amdahl.covers is None:
        text += ": that does not explain it."
    else:
        verdict = "that explains it" if amdahl.explains else "that does not explain it"
        text += f"; it is {percent(amdahl.covers)} of the change: {verdict}."
    if amdahl.elsewhere:
        parts = [
            f"{stage} {'+' if d > 0 else '−'}{human(round(abs(d)))}" for stage, d in amdahl.elsewhere.items()
        ]
        text += f" Other stages moved too: {', '.join(parts)}."
    else:
        text += " No other stage moved by 2% of the total or more."
    return text


def _shown_stages(found: Comparison) -> str:
    """What single stages show where the total shows nothing."""
    shown = [
        f"{stage} {r.shown} (×{r.ratio:.2f})" for stage, r in found.stages.items() if r.shown != "not shown"
    ]
    if shown:
        return f" By itself is shown: {', '.join(shown)}."
    return " No single stage is shown to have changed." if found.total and found.total.low else ""


def same(found: Comparison) -> str:
    """Whether the two arms did the same work."""
    names = {
        "executed_nodes": "executed nodes",
        "cache_hits": "cache hits",
        "delivery_boundary": "end of delivery",
    }
    differ = [names[name] for name, equal in found.same.items() if not equal]
    head = f"{where(found)}, {found.arm} against {found.reference}"
    if not differ:
        return f"{head}: executed nodes, cache hits and the end of delivery are the same."
    return f"{head}: {' and '.join(differ)} differ, so the times are of different work."


def changed(tables: Tables, found: Comparison) -> str:
    """Quality, failures, memory and energy of an arm beside the reference's."""
    ours = tables.cell(found.unit, found.position, found.arm)
    theirs = tables.cell(found.unit, found.position, found.reference)
    parts = [_quality(found), _failures(ours, theirs), _memory(ours, theirs), _energy(ours, theirs)]
    return f"{where(found)}, {found.arm} against {found.reference}: {'; '.join(parts)}."


def _quality(found: Comparison) -> str:
    judged = found.quality
    if judged is None:
        return "quality was not compared"
    if judged.psnr_min is None or judged.ssim_min is None:
        return f"output {judged.why}"
    if judged.refused:
        return f"{judged.why} (worst PSNR {judged.psnr_min:.1f} dB, worst SSIM {judged.ssim_min:.4f})"
    figures = f"worst PSNR {judged.psnr_min:.1f} dB, worst SSIM {judged.ssim_min:.4f}"
    return f"output {judged.why} ({figures})"


def _failures(ours: Cell, theirs: Cell) -> str:
    if not ours.failed and not theirs.failed:
        return "no run failed"
    pairs = [(c, c.failed, c.n + c.failed) for c in (ours, theirs)]
    lost = f", {human(ours.lost_ns)} lost" if ours.lost_ns else ""
    return " and ".join(f"{failed} of {n} runs of {c.arm} failed" for c, failed, n in pairs) + lost


def _memory(ours: Cell, theirs: Cell) -> str:
    told = []
    for name in sorted(set(ours.memory) & set(theirs.memory)):
        a, b = ours.memory[name], theirs.memory[name]
        if abs(a - b) > SMALL * max(a, b):
            told.append(f"{MEMORY_NAMES.get(name, name)} {size(round(b))} → {size(round(a))}")
    if told:
        return ", ".join(told)
    return "memory the same within 2%" if ours.memory and theirs.memory else "memory not known"


def _energy(ours: Cell, theirs: Cell) -> str:
    if ours.energy_mj is None or theirs.energy_mj is None:
        return "energy not measured"
    if abs(ours.energy_mj - theirs.energy_mj) <= SMALL * max(ours.energy_mj, theirs.energy_mj):
        return "energy the same within 2%"
    return f"energy {theirs.energy_mj / 1000:.1f} J → {ours.energy_mj / 1000:.1f} J"


def may_i_use(tables: Tables, found: Comparison) -> str | None:
    """The plan's own question, answered for an arm with the criterion and its numbers."""
    judged, question = found.quality, tables.plan.quality.question
    if judged is None or not question:
        return None
    if judged.refused:
        answer = "cannot tell"
    elif not judged.compared:
        answer = "cannot tell" if judged.right else "no"
    else:
        answer = "yes" if judged.right else "no"
    numbers = []
    if judged.psnr_min is not None:
        numbers.append(f"worst PSNR {judged.psnr_min:.1f} dB")
    if judged.ssim_min is not None and judged.psnr_min is not None:
        numbers.append(f"worst SSIM {judged.ssim_min:.4f}")
    if judged.max_abs:
        numbers.append(f"largest difference {judged.max_abs * 255:.1f} of 255")
    given = f" ({', '.join(numbers)})" if numbers else ""
    return f"{found.arm}, {where(found)}: {answer}, {judged.why}{given}; criterion: {judged.criterion}"


def one_time(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What of the first run's time the second does not take, where that is a share worth naming."""
    return [
        f"{row['unit']}, {row['arm']}: {percent(row['share'])} of {row['stage']}, {row['reading']}"
        for row in rows
        if row["share"] >= stats.ONE_TIME or row["stage"] == "total"
    ]


def effects(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each level of a factor does to the total, over all combinations."""
    return [
        f"{row['unit']}, {row['factor']} {row['level']} against {row['against']}: {row['shown']}, "
        f"ratio {row['ratio']:.3f}"
        + (f", 95% interval {row['low']:.3f} to {row['high']:.3f}" if row["low"] is not None else "")
        for row in rows
    ]
