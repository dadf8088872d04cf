"""Charts as SVG for the page: coloured by the page's style sheet, so that light and dark both look right.

`draw(chart)` gives the picture and the numbers behind it, which `page.js` shows under the pointer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from html import escape
from typing import Any

import numpy as np

from pivot.report.charts import (
    Chart,
    Curve,
    HeatMap,
    IntervalChart,
    LineChart,
    StackChart,
    extent,
    short,
    ticks,
)
from pivot.report.curves import thin

WIDTH = 400
HEIGHT = 224
LEFT, RIGHT, TOP, BOTTOM = 42, 10, 10, 30
NUM_COLOURS = 8


@dataclass(frozen=True)
class Drawing:
    svg: str
    readout: dict[str, Any]
    """What `page.js` needs to name the numbers under the pointer; empty where there is nothing to name."""


@dataclass(frozen=True)
class Frame:
    """The plot's box: from values to places in the picture."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    height: int = HEIGHT

    def x(self, values: np.ndarray) -> np.ndarray:
        low, high = self.x_range
        return LEFT + (np.asarray(values) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, values: np.ndarray) -> np.ndarray:
        low, high = self.y_range
        return self.height - BOTTOM - (np.asarray(values) - low) / (high - low) * (self.height - TOP - BOTTOM)

    def path(self, steps: np.ndarray, values: np.ndarray) -> str:
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(self.x(steps), self.y(values), strict=True))

    def readout(self) -> dict[str, Any]:
        box = [LEFT, TOP, WIDTH - LEFT - RIGHT, self.height - TOP - BOTTOM]
        return {"box": box, "x": list(self.x_range), "y": list(self.y_range), "size": [WIDTH, self.height]}


@singledispatch
def draw(chart: Chart) -> Drawing:
    """The picture of a chart, one function for each of its kinds."""
    raise AssertionError(f"no drawing for {type(chart).__name__}")


@draw.register
def _(chart: LineChart) -> Drawing:
    frame = Frame(chart.span or _x_range([curve.steps for curve in chart.curves]), _y_range(chart))
    parts = [_y_axis(frame, chart.percent), _x_axis(frame, chart.x_label, whole=chart.whole)]
    for step, what in chart.marks:
        x = float(frame.x(np.array(step)))
        anchor = "end" if x > 0.7 * WIDTH else "start"
        shift = -4 if anchor == "end" else 4
        parts.append(f'<path class="mark" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        place = f'x="{x + shift:.1f}" y="{TOP + 9}" text-anchor="{anchor}"'
        parts.append(f'<text class="mark" {place}>{escape(what)}</text>')
    parts += [_curve(frame, curve, chart) for curve in chart.curves]
    readout = frame.readout() | {"kind": "line", "percent": chart.percent, "xLabel": chart.x_label}
    readout["curves"] = [_curve_numbers(curve) for curve in chart.curves]
    return Drawing(_svg("".join(parts), _summary(chart), len(chart.curves) > 0), readout)


@draw.register
def _(chart: StackChart) -> Drawing:
    tops = np.cumsum(chart.layers, axis=0)
    frame = Frame(_x_range([chart.steps]), (0.0, 1.06 * float(tops.max() or 1.0)))
    parts = [_y_axis(frame, unit=chart.unit), _x_axis(frame, "step")]
    below = np.zeros_like(chart.steps)
    for i, top in enumerate(tops):
        line = frame.path(chart.steps, top) + "L" + frame.path(chart.steps[::-1], below[::-1])[1:] + "Z"
        parts.append(f'<path class="layer c{i % NUM_COLOURS}" d="{line}"/>')
        below = top
    layers = [{"label": n, "y": _rounded(v)} for n, v in zip(chart.labels, chart.layers, strict=True)]
    readout = frame.readout() | {
        "kind": "stack",
        "unit": chart.unit,
        "steps": _rounded(chart.steps),
        "layers": layers,
    }
    return Drawing(_svg("".join(parts), chart.title), readout)


@draw.register
def _(chart: HeatMap) -> Drawing:
    rows, columns = chart.shares.shape
    last = chart.steps[-1] + (chart.steps[-1] - chart.steps[-2] if columns > 1 else 1)
    frame = Frame((float(chart.steps[0]), float(last)), (0.0, float(rows)))
    x, y = frame.x(np.append(chart.steps, last)), frame.y(np.arange(rows + 1))
    strongest = float(chart.shares.max()) or 1.0
    parts = [_x_axis(frame, "step")]
    for row, column in zip(*np.nonzero(chart.shares > 0.004 * strongest), strict=True):
        # A square root lets the rare bins be seen beside the crowded ones.
        strength = (float(chart.shares[row, column]) / strongest) ** 0.5
        place = f'x="{x[column]:.2f}" y="{y[row + 1]:.1f}" width="{x[column + 1] - x[column]:.2f}"'
        parts.append(f'<rect {place} height="{y[row] - y[row + 1]:.1f}" fill-opacity="{strength:.2f}"/>')
    for row in range(0, rows + 1, max(1, rows // 5)):
        place = f'x="{LEFT - 6}" y="{y[row] + 3.5:.1f}" text-anchor="end"'
        parts.append(f'<text class="tick" {place}>{chart.edges[row]}</text>')
    cells = [_rounded(column) for column in chart.shares.T]
    readout = frame.readout() | {"kind": "heat", "steps": _rounded(chart.steps), "cells": cells}
    readout |= {"edges": list(chart.edges), "yLabel": chart.y_label}
    return Drawing(_svg(f'<g class="heat">{"".join(parts)}</g>', chart.title), readout)


@draw.register
def _(chart: IntervalChart) -> Drawing:
    most = max(len(estimates) for _, estimates in chart.rows)
    row_height = 26 + 15 * most
    height = TOP + BOTTOM + row_height * len(chart.rows)
    numbers = [n for _, es in chart.rows for e in es for n in (e.value, e.low, e.high) if n is not None]
    low, high = extent(np.array(numbers), from_zero=True)
    frame = Frame((low, min(high * 1.12, 1.12)), (0.0, 1.0), height)
    parts = [_x_axis(frame, "accuracy", percent=True)]
    for i, (label, estimates) in enumerate(chart.rows):
        top = TOP + i * row_height
        parts.append(f'<text class="row" x="{LEFT}" y="{top + 14}">{escape(label)}</text>')
        for j, estimate in enumerate(estimates):
            y = top + 27 + 15 * j
            x = frame.x(
                np.array([estimate.value, estimate.low or estimate.value, estimate.high or estimate.value])
            )
            colour = f"c{chart.series.index(estimate.label) % NUM_COLOURS}"
            style = f"estimate hollow {colour}" if estimate.hollow else f"estimate {colour}"
            parts.append(f'<g class="{style}"><path d="M{x[1]:.1f} {y}H{x[2]:.1f}"/>')
            parts.append(f'<circle cx="{x[0]:.1f}" cy="{y}" r="4.5"/>')
            parts.append(
                f'<text x="{x[2] + 8:.1f}" y="{y + 3.5}">{short(estimate.value, percent=True)}</text></g>'
            )
    return Drawing(_svg("".join(parts), chart.title, height=height), {})


def _curve(frame: Frame, curve: Curve, chart: LineChart) -> str:
    colour = f"c{curve.colour % NUM_COLOURS}"
    strong = curve.strong
    kept = thin(curve.values)
    steps, values, parts = curve.steps[kept], curve.values[kept], []
    if curve.spread is not None and np.any(curve.spread > 0):
        high, low = (strong + curve.spread)[kept], (strong - curve.spread)[kept]
        area = frame.path(steps, high) + "L" + frame.path(steps[::-1], low[::-1])[1:] + "Z"
        parts.append(f'<path class="band" d="{area}"/>')
    if curve.smoothed is not None and chart.faint:
        parts.append(f'<path class="raw" d="{frame.path(steps, values)}"/>')
    parts.append(f'<path class="line" d="{frame.path(steps, strong[kept])}"/>')
    if chart.dots or len(steps) == 1:
        places = zip(frame.x(steps), frame.y(values), strict=True)
        parts += [f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places]
    return f'<g class="{colour}">{"".join(parts)}</g>'


def _curve_numbers(curve: Curve) -> dict[str, Any]:
    kept = thin(curve.values)
    numbers = {"label": curve.label, "x": _rounded(curve.steps[kept]), "y": _rounded(curve.values[kept])}
    if curve.smoothed is not None:
        numbers["smooth"] = _rounded(curve.smoothed[kept])
    if curve.spread is not None and np.any(curve.spread > 0):
        numbers["spread"] = _rounded(curve.spread[kept])
    return numbers | {"colour": curve.colour % NUM_COLOURS}


def _y_axis(frame: Frame, percent: bool = False, unit: str = "") -> str:
    parts = []
    for value in ticks(*frame.y_range):
        y = float(frame.y(np.array(value)))
        text = f"{100 * value:.4g}%" if percent else short(value) + unit
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{text}</text>')
    return "".join(parts)


def _x_axis(frame: Frame, label: str, *, whole: bool = True, percent: bool = False) -> str:
    bottom, parts = frame.height - BOTTOM, []
    for value in ticks(*frame.x_range, whole=whole and not percent):
        x = float(frame.x(np.array(value)))
        if percent:
            parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>')
        text = f"{100 * value:.4g}%" if percent else short(value)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{text}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/>')
    parts.append(
        f'<text class="tick" x="{middle}" y="{bottom + 27}" text-anchor="middle">{escape(label)}</text>'
    )
    return "".join(parts)


def _svg(inside: str, summary: str, readable: bool = True, height: int = HEIGHT) -> str:
    focus = ' tabindex="0"' if readable else ""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(summary)}"{focus}>{inside}</svg>'
    )


def _summary(chart: LineChart) -> str:
    said = [
        f"{c.label} from {short(float(c.values[0]), chart.percent)} at {c.steps[0]:g} "
        f"to {short(float(c.values[-1]), chart.percent)} at {c.steps[-1]:g}"
        for c in chart.curves
    ]
    return f"{chart.title}: {'; '.join(said)}"


def _x_range(steps: list[np.ndarray]) -> tuple[float, float]:
    low, high = min(float(s[0]) for s in steps), max(float(s[-1]) for s in steps)
    return (low, high) if high > low else (low - 1, high + 1)


def _y_range(chart: LineChart) -> tuple[float, float]:
    heights = [curve.values if chart.faint else curve.strong for curve in chart.curves]
    heights += [c.strong + sign * c.spread for c in chart.curves if c.spread is not None for sign in (-1, 1)]
    return extent(np.concatenate(heights), chart.from_zero)


def _rounded(values: np.ndarray) -> list[float]:
    """Five significant digits: what the page can show, and no more bytes."""
    return [float(f"{value:.5g}") for value in values]
