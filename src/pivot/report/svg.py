"""Charts as SVG for the page; the style sheet colours them, so that they fit the light and the dark theme.

`draw(chart)` returns the picture and the numbers behind it, which `page.js` shows under the pointer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from html import escape
from typing import Any

import numpy as np

from pivot.report.charts import Axis, Chart, Curve, HeatMap, IntervalChart, LineChart, StackChart, short, thin
from pivot.terminal import printable

WIDTH = 400
HEIGHT = 224
LEFT, RIGHT, TOP, BOTTOM = 42, 10, 10, 30
NUM_COLOURS = 8


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
    height: int = HEIGHT

    def x(self, values: np.ndarray | float) -> np.ndarray:
        share = (np.asarray(values) - self.x_axis.low) / (self.x_axis.high - self.x_axis.low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, values: np.ndarray | float) -> np.ndarray:
        share = (np.asarray(values) - self.y_axis.low) / (self.y_axis.high - self.y_axis.low)
        return self.height - BOTTOM - share * (self.height - TOP - BOTTOM)

    def path(self, steps: np.ndarray, values: np.ndarray) -> str:
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(self.x(steps), self.y(values), strict=True))

    def area(self, steps: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
        return self.path(steps, high) + "L" + self.path(steps[::-1], low[::-1])[1:] + "Z"

    def readout(self, kind: str, **numbers: Any) -> dict[str, Any]:
        box = [LEFT, TOP, WIDTH - LEFT - RIGHT, self.height - TOP - BOTTOM]
        ranges = {"x": [self.x_axis.low, self.x_axis.high], "y": [self.y_axis.low, self.y_axis.high]}
        return {"kind": kind, "box": box, **ranges, "size": [WIDTH, self.height], **numbers}

    def x_ticks(self, *, grid: bool = False) -> str:
        bottom, parts = self.height - BOTTOM, []
        for value, text in self.x_axis.ticks():
            x = float(self.x(value))
            if grid:
                parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>')
            parts.append(_text(x, bottom + 14, text, anchor="middle"))
        parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/>')
        parts.append(_text((LEFT + WIDTH - RIGHT) / 2, bottom + 27, self.x_axis.label, anchor="middle"))
        return "".join(parts)

    def y_ticks(self, *, grid: bool = True) -> str:
        parts = []
        for value, text in self.y_axis.ticks():
            y = float(self.y(value))
            if grid:
                parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            parts.append(_text(LEFT - 6, y + 3.5, text, anchor="end"))
        return "".join(parts)


@singledispatch
def draw(chart: Chart) -> Drawing:
    """The picture of a chart; one function per kind of chart."""
    raise AssertionError(f"no drawing for {type(chart).__name__}")


@draw.register
def _(chart: LineChart) -> Drawing:
    frame = Frame(*chart.axes)
    parts = [frame.y_ticks(), frame.x_ticks()]
    for step, label in chart.marks:
        x = float(frame.x(step))
        anchor, shift = ("end", -4) if x > 0.7 * WIDTH else ("start", 4)
        parts.append(f'<path class="mark" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(_text(x + shift, TOP + 9, label, anchor=anchor, style="mark"))
    parts += [_curve(frame, curve, chart) for curve in chart.curves]
    curves = [_curve_numbers(curve) for curve in chart.curves]
    readout = frame.readout("line", percent=chart.percent, xLabel=chart.x_label, curves=curves)
    return Drawing(_svg("".join(parts), _summary(chart), len(chart.curves) > 0), readout)


@draw.register
def _(chart: StackChart) -> Drawing:
    frame = Frame(*chart.axes)
    parts = [frame.y_ticks(), frame.x_ticks()]
    below = np.zeros_like(chart.steps)
    for i, top in enumerate(np.cumsum(chart.layers, axis=0)):
        parts.append(f'<path class="layer c{i % NUM_COLOURS}" d="{frame.area(chart.steps, below, top)}"/>')
        below = top
    layers = [{"label": n, "y": _rounded(v)} for n, v in zip(chart.labels, chart.layers, strict=True)]
    readout = frame.readout("stack", unit=chart.unit, steps=_rounded(chart.steps), layers=layers)
    return Drawing(_svg("".join(parts), chart.title), readout)


@draw.register
def _(chart: HeatMap) -> Drawing:
    frame = Frame(*chart.axes)
    rows = len(chart.shares)
    x, y = frame.x(np.append(chart.steps, frame.x_axis.high)), frame.y(np.arange(rows + 1))
    strongest = float(chart.shares.max()) or 1.0
    parts = [frame.x_ticks()]
    for row, column in zip(*np.nonzero(chart.shares > 0.004 * strongest), strict=True):
        # The square root keeps small shares visible beside large ones.
        strength = (float(chart.shares[row, column]) / strongest) ** 0.5
        place = f'x="{x[column]:.2f}" y="{y[row + 1]:.1f}" width="{x[column + 1] - x[column]:.2f}"'
        parts.append(f'<rect {place} height="{y[row] - y[row + 1]:.1f}" fill-opacity="{strength:.2f}"/>')
    parts.append(frame.y_ticks(grid=False))
    cells = [_rounded(column) for column in chart.shares.T]
    labels = {"edges": list(chart.edges), "yLabel": chart.y_label}
    readout = frame.readout("heat", steps=_rounded(chart.steps), cells=cells, **labels)
    return Drawing(_svg(f'<g class="heat">{"".join(parts)}</g>', chart.title), readout)


@draw.register
def _(chart: IntervalChart) -> Drawing:
    row_height = 26 + 15 * max(len(estimates) for _, estimates in chart.rows)
    height = TOP + BOTTOM + row_height * len(chart.rows)
    frame, colours = Frame(*chart.axes, height), dict(chart.keys)
    parts = [frame.x_ticks(grid=True)]
    for i, (label, estimates) in enumerate(chart.rows):
        top = TOP + i * row_height
        parts.append(_text(LEFT, top + 14, label, style="row"))
        for j, estimate in enumerate(estimates):
            y = top + 27 + 15 * j
            x, low, high = frame.x(np.array([estimate.value, *estimate.ends]))
            colour = f"c{colours[estimate.label] % NUM_COLOURS}"
            style = f"estimate hollow {colour}" if estimate.hollow else f"estimate {colour}"
            parts.append(f'<g class="{style}"><path d="M{low:.1f} {y}H{high:.1f}"/>')
            parts.append(f'<circle cx="{x:.1f}" cy="{y}" r="4.5"/>')
            parts.append(
                f'<text x="{high + 8:.1f}" y="{y + 3.5}">{short(estimate.value, percent=True)}</text></g>'
            )
    return Drawing(_svg("".join(parts), chart.title, height=height), {})


def _curve(frame: Frame, curve: Curve, chart: LineChart) -> str:
    kept, parts = thin(curve.values), []
    steps, values = curve.steps[kept], curve.values[kept]
    if curve.band is not None:
        low, high = curve.band
        parts.append(f'<path class="band" d="{frame.area(steps, low[kept], high[kept])}"/>')
    if curve.smoothed is not None and chart.faint:
        parts.append(f'<path class="raw" d="{frame.path(steps, values)}"/>')
    parts.append(f'<path class="line" d="{frame.path(steps, curve.main[kept])}"/>')
    if chart.has_dots(curve):
        places = zip(frame.x(steps), frame.y(values), strict=True)
        parts += [f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places]
    return f'<g class="c{curve.colour % NUM_COLOURS}">{"".join(parts)}</g>'


def _curve_numbers(curve: Curve) -> dict[str, Any]:
    kept = thin(curve.values)
    numbers = {"label": curve.label, "x": _rounded(curve.steps[kept]), "y": _rounded(curve.values[kept])}
    if curve.smoothed is not None:
        numbers["smooth"] = _rounded(curve.smoothed[kept])
    if curve.band is not None and curve.spread is not None:
        numbers["spread"] = _rounded(curve.spread[kept])
    return numbers | {"colour": curve.colour % NUM_COLOURS}


def _text(x: float, y: float, text: str, *, anchor: str = "start", style: str = "tick") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(printable(text))}</text>'


def _svg(inside: str, summary: str, readable: bool = True, height: int = HEIGHT) -> str:
    focus = ' tabindex="0"' if readable else ""
    label = escape(printable(summary))
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}"{focus}>{inside}</svg>'


def _summary(chart: LineChart) -> str:
    """The chart in words, for screen readers."""
    parts = [
        f"{c.label} from {short(float(c.values[0]), chart.percent)} at {c.steps[0]:g} "
        f"to {short(float(c.values[-1]), chart.percent)} at {c.steps[-1]:g}"
        for c in chart.curves
    ]
    return f"{chart.title}: {'; '.join(parts)}"


def _rounded(values: np.ndarray) -> list[float]:
    """Five significant digits: all that the page can show."""
    return [float(f"{value:.5g}") for value in values]
