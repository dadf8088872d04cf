"""What a chart shows, as shapes and labels between two axes. `svg` draws these for the page, `figures` for a paper.

Neither knows the kinds of charts: a new kind is a class here, with its `axes`, its `keys` and its `shapes`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pivot.report.series import thin

PLOT_HEIGHT = 184
LINE_HEIGHT = 15
"""Of a row of an interval chart; both in the page's units, 400 of which are the width of a chart."""


@dataclass(frozen=True)
class Axis:
    """The range of an axis and how its numbers are written."""

    low: float
    high: float
    label: str = ""
    whole: bool = False
    """Only whole numbers, for counts such as steps."""
    percent: bool = False
    unit: str = ""
    names: tuple[str, ...] = ()
    """Names of the positions 0, 1, 2, ..., instead of numbers."""
    grid: bool = False
    """Lines across the chart at its ticks."""
    hidden: bool = False

    def ticks(self) -> list[tuple[float, str]]:
        """(value, text) of at most six ticks."""
        if self.hidden:
            return []
        if self.names:
            return [(i, self.names[i]) for i in range(0, len(self.names), max(1, (len(self.names) - 1) // 5))]
        values = ticks(self.low, self.high, whole=self.whole)
        return [(v, f"{100 * v:.4g}%" if self.percent else short(v) + self.unit) for v in values]


Style = Literal["line", "raw", "band", "layer", "cell", "interval", "mark", "dot", "ring", "point"]
FILLED: tuple[Style, ...] = ("band", "layer", "cell")
MARKERS: tuple[Style, ...] = ("dot", "ring", "point")


@dataclass(frozen=True)
class Shape:
    """A line through points, the area within them, or a marker at each, in the units of the axes."""

    style: Style
    xs: np.ndarray
    ys: np.ndarray
    colour: int | None = None
    """Index of a series colour; None: grey."""
    opacity: float = 1.0
    """Of a cell."""


@dataclass(frozen=True)
class Label:
    """Text beside a point of the chart."""

    x: float
    y: float
    text: str
    style: Literal["mark", "row", "value"]
    before: bool = False
    """Ends at the point instead of beginning there."""


def _area(xs: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([xs, xs[::-1]]), np.concatenate([high, low[::-1]])


@dataclass(frozen=True)
class Curve:
    """One curve of a line chart.

    Example:
        Curve("training", steps=[1, 2, 3], values=[0.2, 0.3, 0.3], smoothed=[0.22, 0.27, 0.3])
    """

    label: str
    steps: np.ndarray
    values: np.ndarray
    smoothed: np.ndarray | None = None
    """Drawn as the main line if given; the values are then drawn faintly behind it."""
    spread: np.ndarray | None = None
    """Half the height of a band around the main line."""
    colour: int = 0

    @property
    def main(self) -> np.ndarray:
        """The values of the main line."""
        return self.values if self.smoothed is None else self.smoothed

    @property
    def band(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Lower and upper edge of the band; None if it has no height."""
        if self.spread is None or not np.any(self.spread > 0):
            return None
        return self.main - self.spread, self.main + self.spread

    def thinned(self) -> Curve:
        """With as many points as the page can show; its lowest and highest values stay."""
        kept = thin(self.values)
        smoothed, spread = (None if v is None else v[kept] for v in (self.smoothed, self.spread))
        return replace(
            self, steps=self.steps[kept], values=self.values[kept], smoothed=smoothed, spread=spread
        )


@dataclass(frozen=True)
class LineChart:
    name: str
    """The name of its file in `figures/`."""
    title: str
    note: str
    curves: tuple[Curve, ...]
    x_label: str = "step"
    percent: bool = False
    from_zero: bool = False
    marks: tuple[tuple[float, str], ...] = ()
    """Vertical lines: (step, label)."""
    faint: bool = True
    """Draw the logged values behind a smoothed line."""
    dots: bool = False
    """Draw a dot at every point, for few values that were each measured on their own."""
    span: tuple[float, float] | None = None
    """The range of the x axis; None: that of the curves."""
    whole: bool = True
    """x is a count."""

    @property
    def axes(self) -> tuple[Axis, Axis]:
        heights = [curve.values if self.faint else curve.main for curve in self.curves]
        heights += [edge for curve in self.curves for edge in curve.band or ()]
        low, high = self.span or _x_range(*(curve.steps for curve in self.curves))
        y_low, y_high = extent(np.concatenate(heights), self.from_zero)
        y = Axis(y_low, y_high, percent=self.percent, grid=True)
        return Axis(low, high, self.x_label, whole=self.whole), y

    def shapes(self) -> Iterator[Shape | Label]:
        x, y = self.axes
        for step, label in self.marks:
            yield Shape("mark", np.array([step, step]), np.array([y.low, y.high]))
            yield Label(step, y.high, label, "mark", before=step > x.low + 0.7 * (x.high - x.low))
        for curve in self.curves:
            if curve.band is not None:
                yield Shape("band", *_area(curve.steps, *curve.band), curve.colour)
            if curve.smoothed is not None and self.faint:
                yield Shape("raw", curve.steps, curve.values, curve.colour)
            yield Shape("line", curve.steps, curve.main, curve.colour)
            if self.dots or len(curve.steps) == 1:
                yield Shape("dot", curve.steps, curve.main, curve.colour)

    @property
    def keys(self) -> list[tuple[str, int]]:
        """(label, colour) of the legend."""
        return [(curve.label, curve.colour) for curve in self.curves]


@dataclass(frozen=True)
class StackChart:
    """Parts of a whole over the steps: layers [k, n] with one label each."""

    name: str
    title: str
    note: str
    steps: np.ndarray
    labels: tuple[str, ...]
    layers: np.ndarray
    unit: str = "s"

    @property
    def axes(self) -> tuple[Axis, Axis]:
        low, high = _x_range(self.steps)
        highest = float(self.layers.sum(axis=0).max() or 1.0)
        y = Axis(0.0, 1.06 * highest, unit=f" {self.unit}", grid=True)
        return Axis(low, high, "step", whole=True), y

    def shapes(self) -> Iterator[Shape | Label]:
        below = np.zeros_like(self.steps)
        for i, top in enumerate(np.cumsum(self.layers, axis=0)):
            yield Shape("layer", *_area(self.steps, below, top), i)
            below = top

    @property
    def keys(self) -> list[tuple[str, int]]:
        return [(label, i) for i, label in enumerate(self.labels)]


@dataclass(frozen=True)
class HeatMap:
    """Shares [rows, n] over the steps; `edges` names the edges of the rows from bottom to top."""

    name: str
    title: str
    note: str
    steps: np.ndarray
    shares: np.ndarray
    edges: tuple[str, ...]
    y_label: str

    @property
    def axes(self) -> tuple[Axis, Axis]:
        width = self.steps[-1] - self.steps[-2] if len(self.steps) > 1 else 1
        x = Axis(float(self.steps[0]), float(self.steps[-1] + width), "step", whole=True)
        return x, Axis(0.0, float(len(self.shares)), self.y_label, names=self.edges)

    @property
    def strongest(self) -> float:
        return float(self.shares.max()) or 1.0

    def shapes(self) -> Iterator[Shape | Label]:
        """A cell per share; the square root keeps small shares visible beside large ones."""
        edges = np.append(self.steps, self.axes[0].high)
        for row, column in zip(*np.nonzero(self.shares > 0.004 * self.strongest), strict=True):
            strength = (float(self.shares[row, column]) / self.strongest) ** 0.5
            xs = edges[[column, column + 1, column + 1, column]]
            yield Shape("cell", xs, row + np.array([0, 0, 1, 1]), 0, strength)

    @property
    def keys(self) -> list[tuple[str, int]]:
        return []


@dataclass(frozen=True)
class Estimate:
    """A measured share with its confidence interval, if known."""

    label: str
    value: float
    interval: tuple[float, float] | None = None
    hollow: bool = False
    """Drawn as a ring: measured without the image."""

    @property
    def ends(self) -> tuple[float, float]:
        return self.interval or (self.value, self.value)


@dataclass(frozen=True)
class IntervalChart:
    """Estimates side by side: one row per benchmark, one mark per evaluation of it."""

    name: str
    title: str
    note: str
    rows: tuple[tuple[str, tuple[Estimate, ...]], ...]

    @property
    def axes(self) -> tuple[Axis, Axis]:
        numbers = [n for _, estimates in self.rows for e in estimates for n in (e.value, *e.ends)]
        low, high = extent(np.array(numbers), from_zero=True)
        x = Axis(low, min(high * 1.12, 1.12), "accuracy", percent=True, grid=True)
        return x, Axis(self.lines, 0.0, hidden=True)

    @property
    def lines(self) -> float:
        """The height in lines: the name of each row, one line per estimate, and a gap."""
        return sum(1.75 + len(estimates) for _, estimates in self.rows)

    def shapes(self) -> Iterator[Shape | Label]:
        colours, y = dict(self.keys), 0.8
        for name, estimates in self.rows:
            yield Label(self.axes[0].low, y, name, "row")
            for estimate in estimates:
                y += 1
                colour = colours[estimate.label]
                yield Shape("interval", np.array(estimate.ends), np.array([y, y]), colour)
                style: Style = "ring" if estimate.hollow else "point"
                yield Shape(style, np.array([estimate.value]), np.array([y]), colour)
                yield Label(estimate.ends[1], y, short(estimate.value, percent=True), "value")
            y += 1.75

    @property
    def keys(self) -> list[tuple[str, int]]:
        """The labels of all estimates, each once; an estimate has its label's colour."""
        labels = dict.fromkeys(estimate.label for _, estimates in self.rows for estimate in estimates)
        return [(label, i) for i, label in enumerate(labels)]


Chart = LineChart | StackChart | HeatMap | IntervalChart


def plot_height(chart: Chart) -> float:
    """The height between the axes, in the page's units."""
    return LINE_HEIGHT * chart.lines if isinstance(chart, IntervalChart) else PLOT_HEIGHT


def _x_range(*steps: np.ndarray) -> tuple[float, float]:
    low, high = min(float(s[0]) for s in steps), max(float(s[-1]) for s in steps)
    return (low, high) if high > low else (low - 1, high + 1)


def ticks(low: float, high: float, most: int = 5, whole: bool = False) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten) within [low, high], at most `most` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    for factor in (1, 2, 2.5, 5, 10, 20):
        step = factor * power
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= most and (not whole or step == int(step)):
            break
    return [round(i * step, 12) for i in range(first, last + 1)]


def extent(values: np.ndarray, from_zero: bool = False) -> tuple[float, float]:
    """The range of an axis: a margin of 6% around the values, never of zero height."""
    low, high = float(np.min(values)), float(np.max(values))
    if from_zero:
        low = min(low, 0.0)
    margin = 0.06 * (high - low) or 0.06 * abs(high) or 0.5
    return (low if from_zero and low == 0 else low - margin), high + margin


def short(value: float, percent: bool = False) -> str:
    """A number for people: 3 significant digits, thousands as k, millions as M, shares in percent."""
    if percent:
        text = f"{100 * value:.1f}%"
    elif abs(value) >= 1e6:
        text = f"{value / 1e6:.3g}M"
    elif abs(value) >= 1e4:
        text = f"{value / 1e3:.3g}k"
    elif abs(value) >= 100:
        text = f"{value:.0f}"
    else:
        text = f"{value:.3g}"
    return text.replace("-", "−")
