"""Charts as files for a paper: the same ones as on the page, as SVG and PDF."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from pivot.report.charts import Chart, HeatMap, IntervalChart, LineChart, StackChart

COLOURS = ("#1f66ad", "#d4621f", "#188566", "#7d52b0", "#b38715", "#64707d", "#b03d74", "#2f93ba")
"""The page's series colours in its light theme."""
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a939f",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e6ea",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "pdf.fonttype": 42,
    "svg.hashsalt": "pivot",
    "savefig.bbox": "tight",
}
SIZE = (4.2, 2.7)


def save_figures(charts: Iterable[Chart], folder: Path) -> list[Path]:
    """`NAME.svg` and `NAME.pdf` of every chart; the same numbers give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with matplotlib.rc_context(STYLE):
        for chart in charts:
            figure = Figure(figsize=_size(chart))
            axes = figure.add_subplot()
            axes.set_title(chart.title)
            plot(chart, axes)
            paths += save(figure, folder / chart.name)
    return paths


def save(figure: Figure, stem: Path) -> list[Path]:
    """Both formats, without the date of writing."""
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("svg", "pdf")]
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], metadata={"CreationDate": None})
    return paths


@singledispatch
def plot(chart: Chart, axes: Axes) -> None:
    """Draw a chart into axes, one function for each of its kinds."""
    raise AssertionError(f"no figure for {type(chart).__name__}")


@plot.register
def _(chart: LineChart, axes: Axes) -> None:
    for curve in chart.curves:
        colour = COLOURS[curve.colour % len(COLOURS)]
        if curve.smoothed is not None and chart.faint:
            axes.plot(curve.steps, curve.values, color=colour, alpha=0.28, linewidth=0.8)
        if curve.spread is not None:
            low, high = curve.strong - curve.spread, curve.strong + curve.spread
            axes.fill_between(curve.steps, low, high, color=colour, alpha=0.16, linewidth=0)
        dot = "o" if chart.dots or len(curve.steps) == 1 else None
        axes.plot(
            curve.steps,
            curve.strong,
            color=colour,
            linewidth=1.7,
            label=curve.label,
            marker=dot,
            markersize=3.5,
        )
    for step, what in chart.marks:
        axes.axvline(step, color="#8a939f", linestyle=(0, (3, 3)), linewidth=0.8)
        place = (step, 1.0)
        axes.annotate(
            what,
            place,
            (3, -2),
            ("data", "axes fraction"),
            "offset points",
            va="top",
            fontsize=7,
            color="#64707d",
        )
    axes.set_xlabel(chart.x_label)
    if chart.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if chart.from_zero:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]) if axes.get_ylim()[0] < 0 else 0.0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=chart.whole))
    if len(chart.curves) > 1:
        axes.legend()


@plot.register
def _(chart: StackChart, axes: Axes) -> None:
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(chart.labels))]
    axes.stackplot(chart.steps, chart.layers, labels=chart.labels, colors=colours, alpha=0.85)
    axes.set_xlabel("step")
    axes.set_ylabel("seconds" if chart.unit == "s" else chart.unit)
    axes.margins(x=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), reverse=True)


@plot.register
def _(chart: HeatMap, axes: Axes) -> None:
    width = chart.steps[-1] - chart.steps[-2] if len(chart.steps) > 1 else 1
    box = (chart.steps[0], chart.steps[-1] + width, 0, chart.shares.shape[0])
    picture = axes.imshow(
        chart.shares, origin="lower", aspect="auto", extent=box, cmap="Blues", interpolation="nearest"
    )
    places = range(0, len(chart.edges), max(1, len(chart.edges) // 5))
    axes.set_yticks(list(places), [chart.edges[i] for i in places])
    axes.set_xlabel("step")
    axes.set_ylabel(chart.y_label)
    axes.grid(False)
    bar = axes.figure.colorbar(picture, ax=axes, format=PercentFormatter(1.0, decimals=0))
    bar.outline.set_visible(False)


@plot.register
def _(chart: IntervalChart, axes: Axes) -> None:
    shown: set[str] = set()
    heights, y = [], 0.0
    for _, estimates in chart.rows:
        heights.append(y + 0.3 * (len(estimates) - 1) / 2)
        for estimate in estimates:
            colour = COLOURS[chart.series.index(estimate.label) % len(COLOURS)]
            low = estimate.value if estimate.low is None else estimate.low
            high = estimate.value if estimate.high is None else estimate.high
            label = None if estimate.hollow or estimate.label in shown else estimate.label
            axes.plot([low, high], [y, y], color=colour, alpha=0.45, linewidth=2)
            face = "white" if estimate.hollow else colour
            axes.plot(estimate.value, y, "o", color=colour, markerfacecolor=face, markersize=5, label=label)
            shown.add(estimate.label)
            y += 0.3
        y += 0.4
    axes.set_yticks(heights, [label for label, _ in chart.rows])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("accuracy")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def _size(chart: Chart) -> tuple[float, float]:
    if isinstance(chart, IntervalChart):
        marks = sum(len(estimates) for _, estimates in chart.rows)
        return SIZE[0] + 1.4, 1.0 + 0.26 * marks + 0.1 * len(chart.rows)
    return SIZE
