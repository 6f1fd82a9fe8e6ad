"""A report in one HTML file: it loads nothing from anywhere, so it can be mailed and kept.

Needs plotly: pip install 'stagexec[html]'.
"""

from __future__ import annotations

import html
import pathlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from stagexec import stages as sets
from stagexec.answers.diff import Comparison, diff
from stagexec.answers.explain import COMPLETE, StageDelta
from stagexec.answers.failures import STOPPED, counts_as_failure, wilson
from stagexec.answers.words import human, part_lines, percent, sampler_steps, share_named
from stagexec.reading import derive, named, parts, rows
from stagexec.reading.runs import Run

MOST_BARS = 200
MOST_WATERFALLS = 20
MOST_INTERVALS = 3000

COLOURS = dict(
    zip(
        sets.STAGES,
        (
            *("#b8b8b8", "#8da0cb", "#e5954f", "#66c2a5", "#377eb8", "#984ea3", "#c9b458"),
            *("#e377c2", "#d62728", "#8c564b", "#cccccc", "#7f7f7f", "#dddddd"),
        ),
        strict=True,
    )
)

UNKNOWN = "#999999"
"""Colour of a stage that this version does not know."""

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1100px;padding:0 1rem;color:#222}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}table{border-collapse:collapse}
td,th{padding:.2rem .8rem .2rem 0;text-align:left}td.n{text-align:right;font-variant-numeric:tabular-nums}
.bad{color:#b00020}.dim{color:#666}
"""


class NoPlotly(Exception):
    """plotly is not installed; one line."""


def write(runs: Sequence[Run], path: pathlib.Path, ledger: pathlib.Path | None = None) -> int:
    """Write the report of `runs`; its size in bytes. `ledger` has the manifests. Raises OSError, NoPlotly."""
    data = page(runs, ledger).encode("utf-8", "backslashreplace")
    path.write_bytes(data)
    return len(data)


def page(runs: Sequence[Run], ledger: pathlib.Path | None = None) -> str:
    """The report as text. Raises NoPlotly."""
    try:
        import plotly.graph_objects as go
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise NoPlotly("the report needs plotly: pip install 'stagexec[html]'") from None
    body = [_head(runs), "<h2>Stages of each run</h2>", _figure(_bars(go, runs), "bars")]
    body.append(_failures(runs))
    pair = first_and_second(runs)
    if pair is not None:
        body.append(_comparison(go, diff(*pair, ledger, runs, "the first run", "the second run")))
    shown = list(runs)[-MOST_WATERFALLS:]
    for place, run in enumerate(shown):
        title = f"Waterfall of run {run.run_id[:8]}"
        body += [f"<h2>{html.escape(title)}</h2>", _facts(run)]
        body += [_figure(_waterfall(go, run), f"waterfall{place}"), _stages(run)]
    if len(shown) < len(runs):
        body.append(f"<p class=dim>Waterfalls of the newest {len(shown)} runs of {len(runs)}.</p>")
    # A browser would end the script at the first "</script" inside the library.
    library = get_plotlyjs().replace("</script", "<\\/script")
    policy = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    policy += "img-src data: blob:"
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>stagexec report</title><style>{STYLE}</style><script>{library}</script></head><body>"
        f"{''.join(body)}</body></html>"
    )


def _figure(figure: Any, name: str) -> str:
    figure.update_layout(template="plotly_white", margin={"l": 60, "r": 20, "t": 20, "b": 50})
    data = figure.to_json().replace("<", "\\u003c")
    draw = f"var f={data};Plotly.newPlot('{name}',f.data,f.layout,{{displaylogo:false,responsive:true}});"
    return f'<div id="{name}"></div><script>{draw}</script>'


def _head(runs: Sequence[Run]) -> str:
    count = Counter(run.outcome or "under way" for run in runs)
    told = ", ".join(f"{n} {name}" for name, n in count.most_common()) or "no runs"
    times = [rows.iso(rows.accepted_wall_ns(run)) for run in runs]
    known = sorted(time for time in times if time is not None)
    when = f"{known[0][:19]} to {known[-1][:19]} UTC" if known else ""
    return (
        f"<h1>stagexec: {len(runs)} runs</h1><p>{html.escape(told)}{_named(runs)}<br>"
        f"<span class=dim>{when}</span></p>"
    )


def _named(runs: Sequence[Run]) -> str:
    found = [named.parts(run) for run in runs]
    total = sum(sum(one.values()) for one in found)
    share = named.share_of(total, sum(one["unnamed_ns"] for one in found))
    whose = "this run" if len(runs) == 1 else "them"
    return "" if share is None else f"; named {share_named(share)} of {whose}"


def _bars(go: Any, runs: Sequence[Run]) -> Any:
    shown = list(runs)[-MOST_BARS:]
    times = [derive.stage_times(run) for run in shown]
    names = [run.run_id[:8] for run in shown]
    figure = go.Figure()
    for stage in dict.fromkeys([*sets.STAGES, *(stage for one in times for stage in one)]):
        if any(stage in one for one in times):
            seconds = [one.get(stage, 0) / 1e9 for one in times]
            figure.add_bar(
                name=html.escape(stage), x=names, y=seconds, marker_color=COLOURS.get(stage, UNKNOWN)
            )
    figure.update_layout(barmode="stack", yaxis_title="seconds", xaxis_type="category", height=460)
    return figure


def _facts(run: Run) -> str:
    """How it ended, and how much of it has a name."""
    share = named.share(run)
    told = f"{human(run.segments.total_ns())}, {run.outcome or 'under way'}"
    return f"<p>{html.escape(told)}{'' if share is None else f'; named {share_named(share)} of this run'}</p>"


def _stages(run: Run) -> str:
    """The run's stages with their parts, the steps of its samplers among them."""
    times, total = derive.stage_times(run), run.segments.total_ns()
    found = {"parts": parts.part_times(run), "steps": parts.steps(run)}
    lines = "".join(
        f"<tr><td>{html.escape(stage)}</td><td class=n>{human(ns)}</td>"
        f"<td class=n>{percent(ns / total if total else None)}</td></tr>"
        + "".join(
            f"<tr class=dim><td>&emsp;{html.escape(name)}</td><td class=n>{human(of)}</td><td></td></tr>"
            for name, of in part_lines(found, stage)
        )
        for stage, ns in times.items()
    )
    return f"<table><tr><th>stage<th>time<th>share</tr>{lines}</table>"


def _waterfall(go: Any, run: Run) -> Any:
    """Segments by stage over time; the longest ones where there are too many."""
    segments = list(run.segments.rows())
    if len(segments) > MOST_INTERVALS:
        segments = sorted(segments, key=lambda row: row[2] - row[3])[:MOST_INTERVALS]
    zero, classes = run.accepted_ns, {visit.visit: visit.class_type for visit in run.visits()}
    figure = go.Figure()
    for stage in dict.fromkeys(row[0] for row in segments):
        mine = [row for row in segments if row[0] == stage]
        figure.add_bar(
            name=html.escape(stage),
            orientation="h",
            y=[html.escape(stage)] * len(mine),
            base=[(start - zero) / 1e9 for _, _, start, *_ in mine],
            x=[(end - start) / 1e9 for _, _, start, end, *_ in mine],
            text=[html.escape(_label(row, classes)) for row in mine],
            textposition="none",
            hovertemplate="%{text}<br>from %{base:.4f} s, %{x:.4f} s<extra>%{y}</extra>",
            marker_color=COLOURS.get(stage, UNKNOWN),
        )
    height = 120 + 28 * len({row[0] for row in segments})
    figure.update_layout(
        barmode="overlay", showlegend=False, height=height, xaxis_title="seconds since accepted"
    )
    figure.update_yaxes(autorange="reversed")
    return figure


def _label(segment: tuple[Any, ...], classes: dict[int, str | None]) -> str:
    """The class of the node that a segment belongs to, else its part."""
    return str(classes.get(segment[4]) or segment[1] or "")


def _failures(runs: Sequence[Run]) -> str:
    ended = [run for run in runs if run.outcome not in (None, "cancelled") and not run.warmup]
    counted = [run for run in ended if run.cause != STOPPED]
    bad = [run for run in counted if counts_as_failure(run.outcome, run.cause)]
    low, high = wilson(len(bad), len(counted))
    if low is None or high is None:
        return "<h2>Failures</h2><p>No run has ended.</p>"
    rate = f"{len(bad)} of {len(counted)} failed: {len(bad) / len(counted):.1%} ({low:.1%}–{high:.1%})"
    groups: Counter[tuple[str, str, str]] = Counter()
    for run in bad:
        error = run.error
        place = (run.cause, error.stage if error else None, error.node_class if error else None)
        groups[tuple(str(one or "-") for one in place)] += 1  # type: ignore[index]
    lines = "".join(
        f"<tr>{''.join(f'<td>{html.escape(one)}</td>' for one in place)}<td class=n>{count}</td></tr>"
        for place, count in groups.most_common()
    )
    head = "<tr><th>cause<th>stage<th>node class<th>runs</tr>"
    return f"<h2>Failures</h2><p>{rate}</p>" + (f"<table>{head}{lines}</table>" if lines else "")


def first_and_second(runs: Sequence[Run]) -> tuple[Run, Run] | None:
    """The first good run and the next of its process and timing mode, warm-ups apart; None without two."""
    good = [run for run in runs if run.outcome in COMPLETE and not run.warmup]
    for place, run in enumerate(good):
        for other in good[place + 1 :]:
            if other.process.file == run.process.file and other.timing == run.timing:
                return run, other
    return None


def _part_rows(one: StageDelta) -> str:
    """A line a part of a stage, in small."""
    return "".join(
        f"<tr class=dim><td>&emsp;{html.escape(name)}</td><td></td><td></td>"
        f"<td class=n>{human(ns)}</td><td></td></tr>"
        for name, ns in one.parts.items()
    )


def _comparison(go: Any, found: Comparison) -> str:
    figure = go.Figure()
    moved = [one for one in found.stages if one.delta_ns]
    figure.add_bar(
        orientation="h",
        y=[one.stage for one in moved],
        x=[one.delta_ns / 1e9 for one in moved],
        marker_color=[COLOURS.get(one.stage, UNKNOWN) for one in moved],
    )
    figure.update_layout(height=120 + 28 * len(moved), xaxis_title="seconds, second minus first")
    lines = "".join(
        f"<tr><td>{html.escape(one.stage)}</td><td class=n>{human(one.a_ns)}</td>"
        f"<td class=n>{human(one.b_ns)}</td><td class=n>{human(one.delta_ns)}</td>"
        f"<td class=n>{percent(one.share)}</td></tr>{_part_rows(one)}"
        for one in found.stages
    )
    facts = "named {} of the first, {} of the second".format(
        *(share_named(found.named_share[side]) for side in ("a", "b"))
    )
    steps = [found.steps[side] for side in ("a", "b")]
    if any(steps):
        facts += "; sampler: " + " → ".join(sampler_steps(one) if one else "no steps" for one in steps)
    warnings = "".join(f"<p class=bad>{html.escape(warning)}</p>" for warning in found.warnings)
    said = f"<p>{html.escape(found.verdict)}</p>{warnings}<p>{html.escape(facts)}</p>"
    return (
        f"<h2>First against second</h2>{said}"
        f"{_figure(figure, 'difference')}<table><tr><th>stage<th>first<th>second<th>delta<th>share</tr>"
        f"{lines}</table>"
    )
