"""Charts as files for a paper: the same charts as on the page, as SVG and PDF."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap, PowerNorm, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import PercentFormatter

from pivot.report.charts import FILLED, Axis, Chart, HeatMap, Label, LineChart, Style, plot_height
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
WIDTH, EDGES, UNITS_PER_INCH = 4.2, 0.6, 88
"""Inches: the width of a figure, and what its height has besides the chart, whose height is in the page's units."""
LOOKS: dict[Style, dict[str, Any]] = {
    "line": {"linewidth": 1.7, "clip_on": False},
    "raw": {"linewidth": 0.8, "alpha": 0.28},
    "interval": {"linewidth": 2, "alpha": 0.45},
    "mark": {"linewidth": 0.8, "linestyle": (0, (3, 3))},
    "dot": {"linestyle": "", "marker": "o", "markersize": 3.5, "clip_on": False},
    "ring": {"linestyle": "", "marker": "o", "markersize": 5, "markerfacecolor": "white"},
    "point": {"linestyle": "", "marker": "o", "markersize": 5},
}
OPACITY: dict[Style, float] = {"band": 0.16, "layer": 0.85}
SHADES = LinearSegmentedColormap.from_list("shares", ["#ffffff", COLOURS[0]])


def save_figures(charts: Iterable[Chart], folder: Path) -> list[Path]:
    """`NAME.svg` and `NAME.pdf` of every chart; the same numbers give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with matplotlib.rc_context(STYLE):
        for chart in charts:
            figure = Figure(figsize=(WIDTH, EDGES + plot_height(chart) / UNITS_PER_INCH))
            axes = figure.add_subplot()
            axes.set_title(chart.title)
            plot(chart, axes)
            paths += save(figure, folder / chart.name)
    return paths


def save(figure: Figure, stem: Path) -> list[Path]:
    """Both formats, without the date of writing; text is shown literally, including the names of runs."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)
        if (shown := printable(text.get_text())) != text.get_text():
            text.set_text(shown)
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("svg", "pdf")]
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], metadata={"CreationDate": None})
    return paths


def plot(chart: Chart, axes: Axes) -> None:
    """Draw the shapes of a chart into axes, with the page's ranges, ticks, labels and legend."""
    x, y = chart.axes
    _set_axis(axes, "x", x)
    _set_axis(axes, "y", y)
    areas: list[np.ndarray] = []
    fills: list[tuple[float, float, float, float]] = []
    for shape in chart.shapes():
        if isinstance(shape, Label):
            _write(axes, shape)
            continue
        colour = FAINT if shape.colour is None else COLOURS[shape.colour % len(COLOURS)]
        if shape.style in FILLED:
            areas.append(np.column_stack([shape.xs, shape.ys]))
            fills.append(to_rgba(colour, shape.opacity * OPACITY.get(shape.style, 1.0)))
        else:
            axes.plot(shape.xs, shape.ys, color=colour, **LOOKS[shape.style])
    # At once: a heat map has thousands of cells.
    axes.add_collection(PolyCollection(areas, facecolors=fills, linewidths=0), autolim=False)
    if isinstance(chart, HeatMap):
        scale = ScalarMappable(PowerNorm(0.5, 0, chart.strongest), SHADES)
        bar = axes.figure.colorbar(scale, ax=axes, format=PercentFormatter(1.0, decimals=0))
        bar.outline.set_visible(False)
    if len(chart.keys) > 1:
        add_legend(chart, axes)


def add_legend(chart: Chart, axes: Axes) -> None:
    """The labels of a chart: within a line chart, beside any other."""
    keys = [Line2D([], [], color=COLOURS[c % len(COLOURS)], linewidth=3, label=n) for n, c in chart.keys]
    beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
    axes.legend(handles=keys, **({} if isinstance(chart, LineChart) else beside))


def _write(axes: Axes, label: Label) -> None:
    look: dict[str, Any] = {
        "mark": {"xytext": (3, -2), "va": "top", "fontsize": 7, "color": SOFT},
        "row": {"xytext": (0, 0), "va": "center", "fontsize": 8, "fontweight": "bold"},
        "value": {"xytext": (5, 0), "va": "center", "fontsize": 7},
    }[label.style]
    if label.before:
        look |= {"ha": "right", "xytext": (-look["xytext"][0], look["xytext"][1])}
    axes.annotate(label.text, (label.x, label.y), textcoords="offset points", **look)


def _set_axis(axes: Axes, which: Literal["x", "y"], axis: Axis) -> None:
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
    axes.grid(axis=which, visible=axis.grid)
