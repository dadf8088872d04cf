"""What a chart shows: curves, bars and marks with their axes. `svg` draws it for the page, `figures` for a paper.

Everything that both must agree on is decided here: the data (smoothed, thinned, averaged), the ranges of the axes,
their ticks, and how numbers are written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

MOST_POINTS = 400
"""Points of a curve on the page; more cannot be told apart at its width."""
FEWEST_TO_SMOOTH = 12


@dataclass(frozen=True)
class Series:
    """One metric over the steps that logged it."""

    steps: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last(self) -> float | None:
        return float(self.values[-1]) if len(self) else None


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

    def ticks(self) -> list[tuple[float, str]]:
        """(value, text) of at most six ticks."""
        if self.names:
            return [(i, self.names[i]) for i in range(0, len(self.names), max(1, (len(self.names) - 1) // 5))]
        values = ticks(self.low, self.high, whole=self.whole)
        return [(v, f"{100 * v:.4g}%" if self.percent else short(v) + self.unit) for v in values]


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
        return Axis(low, high, self.x_label, whole=self.whole), Axis(y_low, y_high, percent=self.percent)

    def has_dots(self, curve: Curve) -> bool:
        return self.dots or len(curve.steps) == 1

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
        return Axis(low, high, "step", whole=True), Axis(0.0, 1.06 * highest, unit=f" {self.unit}")

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
        return Axis(low, min(high * 1.12, 1.12), "accuracy", percent=True), Axis(0.0, 1.0)

    @property
    def keys(self) -> list[tuple[str, int]]:
        """The labels of all estimates, each once; an estimate has its label's colour."""
        labels = dict.fromkeys(estimate.label for _, estimates in self.rows for estimate in estimates)
        return [(label, i) for i, label in enumerate(labels)]


Chart = LineChart | StackChart | HeatMap | IntervalChart


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


def smooth(series: Series) -> np.ndarray | None:
    """Gaussian-weighted mean over neighbouring steps, with the weights renormalised at the ends.

    One sigma is 2.5% of the steps covered, at least 1.5 steps. None for a curve that is too short.
    """
    if len(series) < FEWEST_TO_SMOOTH:
        return None
    sigma = smoothing_width(series)
    smoothed = np.empty(len(series))
    left = np.searchsorted(series.steps, series.steps - 4 * sigma)
    right = np.searchsorted(series.steps, series.steps + 4 * sigma, side="right")
    for i, (start, stop) in enumerate(zip(left, right, strict=True)):
        distance = (series.steps[start:stop] - series.steps[i]) / sigma
        weights = np.exp(-0.5 * distance**2)
        smoothed[i] = weights @ series.values[start:stop] / weights.sum()
    return smoothed


def smoothing_width(series: Series) -> float:
    """One sigma of `smooth`, in steps."""
    return max(1.5, 0.025 * float(series.steps[-1] - series.steps[0]))


def thin(values: np.ndarray, most: int = MOST_POINTS) -> np.ndarray:
    """Indices of at most `most` points: both ends, and the lowest and highest of each bucket.

    Unlike a plain stride, this keeps spikes.
    """
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), (most - 2) // 2 + 1).astype(int)
    kept = {0, len(values) - 1}
    for start, stop in pairwise(edges):
        kept.add(start + int(np.argmin(values[start:stop])))
        kept.add(start + int(np.argmax(values[start:stop])))
    return np.array(sorted(kept))


def bin_means(steps: np.ndarray, columns: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Neighbouring steps averaged into at most `most` bins.

    Args: steps [n], columns [n, k]. Returns the first step of each bin and the means [bins, k].
    """
    edges = np.unique(np.linspace(0, len(steps), min(most, len(steps)) + 1).astype(int))[:-1]
    counts = np.diff(np.append(edges, len(steps)))
    return steps[edges], np.add.reduceat(columns, edges, axis=0) / counts[:, None]


def mean_over_runs(runs: list[Series]) -> tuple[Series, np.ndarray]:
    """Mean and standard deviation (n - 1; 0 for one run) over runs, at the steps that all of them logged."""
    shared = runs[0].steps
    for series in runs[1:]:
        shared = np.intersect1d(shared, series.steps)
    stacked = np.stack([s.values[np.searchsorted(s.steps, shared)] for s in runs])
    spread = stacked.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(len(shared))
    return Series(shared, stacked.mean(axis=0)), spread
