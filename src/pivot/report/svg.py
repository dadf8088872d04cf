"""Charts as SVG for the page; the style sheet colours them, so that they fit the light and the dark theme.

`draw(chart)` returns the picture and the numbers behind it, which `page.js` shows under the pointer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch
from html import escape
from typing import Any

import numpy as np

from pivot.report.charts import (
    FILLED,
    MARKERS,
    Axis,
    Chart,
    Curve,
    HeatMap,
    IntervalChart,
    Label,
    LineChart,
    Shape,
    StackChart,
    plot_height,
    short,
)
from pivot.terminal import printable

WIDTH = 400
LEFT, RIGHT, TOP, BOTTOM = 42, 10, 10, 30
NUM_COLOURS = 8
LABEL_SHIFT = {"mark": (4.0, 9.0), "row": (0.0, 3.5), "value": (8.0, 3.5)}
"""Where a label is from its point: right and down."""


@dataclass(frozen=True)
class Drawing:
    svg: str
    readout: dict[str, Any]
    """What `page.js` needs to show the numbers under the pointer; empty if there is nothing to show."""


@dataclass(frozen=True)
class Frame:
    """The plot area: maps values to positions in the picture."""

    x_axis: Axis
    y_axis: Axis
    height: int

    def x(self, values: np.ndarray | float) -> np.ndarray:
        share = (np.asarray(values) - self.x_axis.low) / (self.x_axis.high - self.x_axis.low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, values: np.ndarray | float) -> np.ndarray:
        share = (np.asarray(values) - self.y_axis.low) / (self.y_axis.high - self.y_axis.low)
        return self.height - BOTTOM - share * (self.height - TOP - BOTTOM)

    def drawn(self, shape: Shape | Label) -> str:
        """A shape or label as SVG."""
        if isinstance(shape, Label):
            dx, dy = LABEL_SHIFT[shape.style]
            anchor, dx = ("end", -dx) if shape.before else ("start", dx)
            x, y = float(self.x(shape.x)) + dx, float(self.y(shape.y)) + dy
            return _text(x, y, shape.text, anchor=anchor, style=shape.style)
        places = list(zip(self.x(shape.xs), self.y(shape.ys), strict=True))
        look = shape.style if shape.colour is None else f"{shape.style} c{shape.colour % NUM_COLOURS}"
        if shape.style in MARKERS:
            radius = 3 if shape.style == "dot" else 4.5
            return "".join(
                f'<circle class="{look}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y in places
            )
        line = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places) + "Z" * (shape.style in FILLED)
        opacity = f' fill-opacity="{shape.opacity:.2f}"' if shape.style == "cell" else ""
        return f'<path class="{look}"{opacity} d="{line}"/>'

    def readout(self, **numbers: Any) -> dict[str, Any]:
        box = [LEFT, TOP, WIDTH - LEFT - RIGHT, self.height - TOP - BOTTOM]
        ranges = {"x": [self.x_axis.low, self.x_axis.high], "y": [self.y_axis.low, self.y_axis.high]}
        return {"box": box, **ranges, "size": [WIDTH, self.height], **numbers}

    def ticks_x(self) -> str:
        bottom, parts = self.height - BOTTOM, []
        for value, text in self.x_axis.ticks():
            x = float(self.x(value))
            if self.x_axis.grid:
                parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>')
            parts.append(_text(x, bottom + 14, text, anchor="middle"))
        parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/>')
        parts.append(_text((LEFT + WIDTH - RIGHT) / 2, bottom + 27, self.x_axis.label, anchor="middle"))
        return "".join(parts)

    def ticks_y(self) -> str:
        parts = []
        for value, text in self.y_axis.ticks():
            y = float(self.y(value))
            if self.y_axis.grid:
                parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            parts.append(_text(LEFT - 6, y + 3.5, text, anchor="end"))
        return "".join(parts)


def draw(chart: Chart) -> Drawing:
    """The picture of a chart."""
    frame = Frame(*chart.axes, round(TOP + BOTTOM + plot_height(chart)))
    if isinstance(chart, LineChart):
        chart = replace(chart, curves=tuple(curve.thinned() for curve in chart.curves))
    parts = [frame.ticks_y(), frame.ticks_x(), *map(frame.drawn, chart.shapes())]
    numbers = _numbers(chart)
    readout = frame.readout(**numbers) if numbers else {}
    return Drawing(_svg("".join(parts), _summary(chart), frame.height), readout)


@singledispatch
def _numbers(chart: Chart) -> dict[str, Any]:
    """The numbers of a chart's read-out; none for a chart that prints them itself."""
    assert isinstance(chart, IntervalChart)
    return {}


@_numbers.register
def _(chart: LineChart) -> dict[str, Any]:
    curves = [_curve_numbers(curve) for curve in chart.curves]
    return {"kind": "line", "percent": chart.percent, "xLabel": chart.x_label, "curves": curves}


@_numbers.register
def _(chart: StackChart) -> dict[str, Any]:
    layers = [{"label": n, "y": _rounded(v)} for n, v in zip(chart.labels, chart.layers, strict=True)]
    return {"kind": "stack", "unit": chart.unit, "steps": _rounded(chart.steps), "layers": layers}


@_numbers.register
def _(chart: HeatMap) -> dict[str, Any]:
    cells = [_rounded(column) for column in chart.shares.T]
    labels = {"edges": list(chart.edges), "yLabel": chart.y_label}
    return {"kind": "heat", "steps": _rounded(chart.steps), "cells": cells, **labels}


def _curve_numbers(curve: Curve) -> dict[str, Any]:
    numbers = {"label": curve.label, "x": _rounded(curve.steps), "y": _rounded(curve.values)}
    if curve.smoothed is not None:
        numbers["smooth"] = _rounded(curve.smoothed)
    if curve.band is not None and curve.spread is not None:
        numbers["spread"] = _rounded(curve.spread)
    return numbers | {"colour": curve.colour % NUM_COLOURS}


def _text(x: float, y: float, text: str, *, anchor: str = "start", style: str = "tick") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(printable(text))}</text>'


def _svg(inside: str, summary: str, height: int) -> str:
    label = escape(printable(summary))
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}" tabindex="0">{inside}</svg>'


def _summary(chart: Chart) -> str:
    """The chart in words, for screen readers."""
    if not isinstance(chart, LineChart):
        return chart.title
    parts = [
        f"{c.label} from {short(float(c.values[0]), chart.percent)} at {c.steps[0]:g} "
        f"to {short(float(c.values[-1]), chart.percent)} at {c.steps[-1]:g}"
        for c in chart.curves
    ]
    return f"{chart.title}: {'; '.join(parts)}"


def _rounded(values: np.ndarray) -> list[float]:
    """Five significant digits: all that the page can show."""
    return [float(f"{value:.5g}") for value in values]
