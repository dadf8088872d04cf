"""Charts as files for a paper: the same charts as on the page, as SVG and PDF."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import PercentFormatter

from pivot.report.charts import Axis, Chart, HeatMap, IntervalChart, LineChart, StackChart
from pivot.terminal import printable

COLOURS = ("#1f66ad", "#d4621f", "#188566", "#7d52b0", "#b38715", "#64707d", "#b03d74", "#2f93ba")
"""The page's series colours in its light theme."""
FAINT, SOFT = "#8a939f", "#64707d"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
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
    """Both formats, without the date of writing; text is shown as it is, whatever a run is called."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)
        if (shown := printable(text.get_text())) != text.get_text():
            text.set_text(shown)
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("svg", "pdf")]
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], metadata={"CreationDate": None})
    return paths


@singledispatch
def plot(chart: Chart, axes: Axes) -> None:
    """Draw a chart into axes; one function per kind of chart."""
    raise AssertionError(f"no figure for {type(chart).__name__}")


@plot.register
def _(chart: LineChart, axes: Axes) -> None:
    for curve in chart.curves:
        colour = COLOURS[curve.colour % len(COLOURS)]
        if curve.smoothed is not None and chart.faint:
            axes.plot(curve.steps, curve.values, color=colour, alpha=0.28, linewidth=0.8)
        if curve.band is not None:
            axes.fill_between(curve.steps, *curve.band, color=colour, alpha=0.16, linewidth=0)
        look = {"color": colour, "linewidth": 1.7, "markersize": 3.5, "clip_on": False}
        dot = "o" if chart.has_dots(curve) else None
        axes.plot(curve.steps, curve.main, label=curve.label, marker=dot, **look)
    for step, label in chart.marks:
        axes.axvline(step, color=FAINT, linestyle=(0, (3, 3)), linewidth=0.8)
        places: tuple[Any, ...] = ((step, 1.0), (3, -2), ("data", "axes fraction"), "offset points")
        axes.annotate(label, *places, va="top", fontsize=7, color=SOFT)
    _set_axes(axes, *chart.axes)
    if len(chart.curves) > 1:
        axes.legend()


@plot.register
def _(chart: StackChart, axes: Axes) -> None:
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(chart.labels))]
    axes.stackplot(chart.steps, chart.layers, labels=chart.labels, colors=colours, alpha=0.85)
    _set_axes(axes, *chart.axes)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), reverse=True)


@plot.register
def _(chart: HeatMap, axes: Axes) -> None:
    x, y = chart.axes
    picture = axes.imshow(
        chart.shares,
        origin="lower",
        aspect="auto",
        extent=(x.low, x.high, y.low, y.high),
        cmap="Blues",
        interpolation="nearest",
    )
    _set_axes(axes, x, y)
    axes.grid(False)
    bar = axes.figure.colorbar(picture, ax=axes, format=PercentFormatter(1.0, decimals=0))
    bar.outline.set_visible(False)


@plot.register
def _(chart: IntervalChart, axes: Axes) -> None:
    colours, labelled = dict(chart.keys), set()
    heights, y = [], 0.0
    for _, estimates in chart.rows:
        heights.append(y + 0.3 * (len(estimates) - 1) / 2)
        for estimate in estimates:
            colour = COLOURS[colours[estimate.label] % len(COLOURS)]
            label = None if estimate.hollow or estimate.label in labelled else estimate.label
            axes.plot(estimate.ends, [y, y], color=colour, alpha=0.45, linewidth=2)
            face = "white" if estimate.hollow else colour
            axes.plot(estimate.value, y, "o", color=colour, markerfacecolor=face, markersize=5, label=label)
            labelled.add(estimate.label)
            y += 0.3
        y += 0.4
    _set_axis(axes, "x", chart.axes[0])
    axes.set_yticks(heights, [label for label, _ in chart.rows])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def _set_axes(axes: Axes, x: Axis, y: Axis) -> None:
    _set_axis(axes, "x", x)
    _set_axis(axes, "y", y)


def _set_axis(axes: Axes, which: str, axis: Axis) -> None:
    """The page's range, ticks and label."""
    ticks = axis.ticks()
    axes.set(
        **{
            f"{which}lim": (axis.low, axis.high),
            f"{which}ticks": [value for value, _ in ticks],
            f"{which}ticklabels": [text for _, text in ticks],
            f"{which}label": axis.label,
        }
    )


def _size(chart: Chart) -> tuple[float, float]:
    if isinstance(chart, IntervalChart):
        marks = sum(len(estimates) for _, estimates in chart.rows)
        return SIZE[0] + 1.4, 1.0 + 0.26 * marks + 0.1 * len(chart.rows)
    return SIZE
