"""The report's charts as HTML: plotly where it is installed, else plain SVG that says the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from stagexec.answers.words import human
from stagexec.bench.speech import where
from stagexec.bench.tables import Cell, Comparison

COLOURS = (
    "#7f8c8d", "#95a5a6", "#8e44ad", "#2980b9", "#e67e22", "#27ae60", "#16a085",
    "#c0392b", "#d35400", "#2c3e50", "#bdc3c7", "#f1c40f", "#34495e",
)  # fmt: skip
"""One a stage, in the order of the stages."""

VERDICT_COLOURS = {"faster": "#27ae60", "slower": "#c0392b"}
OTHER_COLOUR = "#7f8c8d"
TICKS = (
    1, 0.5, 2, 0.2, 5, 0.1, 10, 0.05, 20, 0.01, 100, 0.8, 1.25, 0.7, 1.5, 0.3, 3, 0.9, 1.1, 0.95, 1.05,
)  # fmt: skip
"""Ratios that may stand on the axis, the first ones first."""

WIDTH, ROW, LABEL = 900, 26, 260


def has_plotly() -> bool:
    """Whether the html extra is installed."""
    from importlib.util import find_spec

    return find_spec("plotly") is not None


def forest(found: Sequence[Comparison]) -> str:
    """Every ranked comparison's ratio with its interval on a line at 1, logarithmic."""
    drawn = [c for c in found if c.total is not None and c.ranked]
    if not drawn:
        return "<p>Nothing could be compared as a speed.</p>"
    return _forest_plotly(drawn) if has_plotly() else _forest_svg(drawn)


def stacks(cells: Sequence[Cell], colours: dict[str, str]) -> str:
    """Every cell's stages as one bar: median of each stage."""
    drawn = [c for c in cells if c.stages]
    if not drawn:
        return "<p>No run was counted.</p>"
    return _stacks_plotly(drawn, colours) if has_plotly() else _stacks_svg(drawn, colours)


def _bounds(found: Comparison) -> tuple[float, float, float]:
    assert found.total is not None
    ratio = found.total.ratio
    return ratio, found.total.low or ratio, found.total.high or ratio


def _label(one: Cell | Comparison) -> str:
    return f"{one.arm} · {where(one)}"


def _forest_svg(found: list[Comparison]) -> str:
    ends = [math.log(x) for c in found for x in _bounds(c) if x > 0]
    reach = max(0.05, *(abs(x) for x in ends)) * 1.1
    middle, half = LABEL + (WIDTH - LABEL) / 2, (WIDTH - LABEL) / 2 - 10
    height = ROW * (len(found) + 1)
    parts = [_open(height), f'<line x1="{middle}" y1="0" x2="{middle}" y2="{height - ROW}" stroke="#999"/>']
    for number, one in enumerate(found):
        y = ROW * number + ROW / 2
        centre, low, high = (middle + math.log(x) / reach * half for x in _bounds(one))
        colour = VERDICT_COLOURS.get(one.verdict, OTHER_COLOUR)
        ratio, lower, upper = _bounds(one)
        title = f"{one.verdict}: {ratio:.3f} ({lower:.3f} to {upper:.3f})"
        parts.append(f'<text x="0" y="{y + 4}">{escape(_label(one))}</text><g><title>{escape(title)}</title>')
        parts.append(
            f'<line x1="{low:.1f}" y1="{y}" x2="{high:.1f}" y2="{y}" stroke="{colour}" stroke-width="3"/>'
        )
        parts.append(f'<circle cx="{centre:.1f}" cy="{y}" r="5" fill="{colour}"/></g>')
    for value in (-reach, 0.0, reach):
        x = middle + value / reach * half
        anchor = "middle" if value == 0 else "start" if value < 0 else "end"
        parts.append(
            f'<text x="{x:.1f}" y="{height - 6}" text-anchor="{anchor}">{math.exp(value):.2f}</text>'
        )
    return "".join([*parts, "</svg>"])


def _stacks_svg(cells: list[Cell], colours: dict[str, str]) -> str:
    longest = max(sum(s.p50 for s in cell.stages.values()) for cell in cells) or 1.0
    height = ROW * len(cells)
    parts = [_open(height)]
    for number, cell in enumerate(cells):
        y, x = ROW * number, float(LABEL)
        parts.append(f'<text x="0" y="{y + ROW / 2 + 4}">{escape(_label(cell))}</text>')
        for stage, summary in cell.stages.items():
            width = summary.p50 / longest * (WIDTH - LABEL - 80)
            title = escape(f"{stage}: {human(round(summary.p50))}")
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}" '
                f'fill="{colours[stage]}"><title>{title}</title></rect>'
            )
            x += width
        total = human(round(cell.total.p50)) if cell.total else ""
        parts.append(f'<text x="{x + 6:.1f}" y="{y + ROW / 2 + 4}">{escape(total)}</text>')
    return "".join([*parts, "</svg>", legend(colours)])


def _open(height: float) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" font-size="13" fill="currentColor">'


def legend(colours: dict[str, str]) -> str:
    """The stages' colours, as text."""
    items = [f'<span><i style="background:{c}"></i>{escape(name)}</span>' for name, c in colours.items()]
    return f'<p class="legend">{" ".join(items)}</p>'


def _forest_plotly(found: list[Comparison]) -> str:
    import plotly.graph_objects as go

    bounds = [_bounds(c) for c in found]
    figure = go.Figure(
        go.Scatter(
            x=[b[0] for b in bounds],
            y=[_label(c) for c in found],
            mode="markers",
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [b[2] - b[0] for b in bounds],
                "arrayminus": [b[0] - b[1] for b in bounds],
            },
            marker={"color": [VERDICT_COLOURS.get(c.verdict, OTHER_COLOUR) for c in found], "size": 10},
            text=[c.verdict for c in found],
        )
    )
    figure.add_vline(x=1, line_dash="dot", line_color=OTHER_COLOUR)
    ends = [1.0, *(end for b in bounds for end in b if end > 0)]
    shown = ticks(min(ends), max(ends))
    figure.update_xaxes(
        type="log", title="arm ÷ reference, total time (left of 1 is faster)", tickvals=shown,
        ticktext=[f"{tick:g}" for tick in shown],
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed")
    return _plotly(figure, 90 + 32 * len(found))


def ticks(low: float, high: float) -> list[float]:
    """Ratios to write on a logarithmic axis from `low` to `high`, far enough apart to be read."""
    least = max(math.log(high / low), 0.05) / 12
    found: list[float] = []
    for tick in TICKS:
        if low * 0.95 <= tick <= high * 1.05 and all(abs(math.log(tick / one)) >= least for one in found):
            found.append(tick)
    return sorted(found)


def _stacks_plotly(cells: list[Cell], colours: dict[str, str]) -> str:
    import plotly.graph_objects as go

    figure = go.Figure()
    labels = [_label(cell) for cell in cells]
    for stage, colour in colours.items():
        values = [cell.stages[stage].p50 / 1e6 if stage in cell.stages else 0.0 for cell in cells]
        figure.add_bar(y=labels, x=values, name=stage, orientation="h", marker_color=colour)
    figure.update_layout(barmode="stack", legend={"traceorder": "normal"})
    figure.update_xaxes(title="milliseconds, median of each stage")
    figure.update_yaxes(autorange="reversed")
    return _plotly(figure, 140 + 32 * len(cells))


def _plotly(figure: object, height: int) -> str:
    """A figure without its library: the page carries that once."""
    look = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": OTHER_COLOUR},
    }
    grid = {"gridcolor": "rgba(128,128,128,.3)", "zeroline": False}  # on light pages and on dark ones
    figure.update_xaxes(**grid)  # type: ignore[attr-defined]
    figure.update_yaxes(**grid)  # type: ignore[attr-defined]
    figure.update_layout(height=height, margin={"l": 10, "r": 10, "t": 20, "b": 40}, **look)  # type: ignore[attr-defined]
    bare = {"displayModeBar": False}  # it would cover the legend
    drawn: str = figure.to_html(full_html=False, include_plotlyjs=False, config=bare)  # type: ignore[attr-defined]
    return drawn


def library() -> str:
    """plotly's own script, inline, where it is installed; else nothing."""
    if not has_plotly():
        return ""
    from plotly.offline import get_plotlyjs

    return f"<script>{get_plotlyjs()}</script>"
