"""What a chart shows, apart from how it is drawn: `svg` draws it for the page, `figures` for a paper."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Curve:
    """One line of a chart.

    Example:
        Curve("training", steps=[1, 2, 3], values=[0.2, 0.3, 0.3], smoothed=[0.22, 0.27, 0.3])
    """

    label: str
    steps: np.ndarray
    values: np.ndarray
    smoothed: np.ndarray | None = None
    """Drawn strongly where it exists; the values are then drawn faintly behind it."""
    spread: np.ndarray | None = None
    """Half the height of a band around the strong line."""
    colour: int = 0

    @property
    def strong(self) -> np.ndarray:
        """What the eye should follow."""
        return self.values if self.smoothed is None else self.smoothed


@dataclass(frozen=True)
class LineChart:
    name: str
    """Of its file in `figures/`."""
    title: str
    note: str
    curves: tuple[Curve, ...]
    x_label: str = "step"
    percent: bool = False
    from_zero: bool = False
    marks: tuple[tuple[float, str], ...] = ()
    """Vertical lines: (step, what happened)."""
    faint: bool = True
    """Values are drawn behind their smoothed line."""
    dots: bool = False
    """Every point carries a dot: few points, each measured on its own."""
    span: tuple[float, float] | None = None
    """The x axis, where it should not end with the curves."""
    whole: bool = True
    """x is a count."""


@dataclass(frozen=True)
class StackChart:
    """Parts of a whole over the steps: layers [k, n] with a label each."""

    name: str
    title: str
    note: str
    steps: np.ndarray
    labels: tuple[str, ...]
    layers: np.ndarray
    unit: str = "s"


@dataclass(frozen=True)
class HeatMap:
    """Shares [rows, n] over the steps; the row edges are named from bottom to top."""

    name: str
    title: str
    note: str
    steps: np.ndarray
    shares: np.ndarray
    edges: tuple[str, ...]
    y_label: str


@dataclass(frozen=True)
class Estimate:
    """A measured share with its confidence interval, where there is one."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    hollow: bool = False
    """Drawn as a ring: measured without the image."""


@dataclass(frozen=True)
class IntervalChart:
    """Estimates side by side: one row a benchmark, one mark an evaluation of it."""

    name: str
    title: str
    note: str
    rows: tuple[tuple[str, tuple[Estimate, ...]], ...]

    @property
    def series(self) -> list[str]:
        """The labels of all estimates, each once; an estimate's colour is its label's place here."""
        return list(dict.fromkeys(estimate.label for _, estimates in self.rows for estimate in estimates))


Chart = LineChart | StackChart | HeatMap | IntervalChart


def ticks(low: float, high: float, most: int = 5, whole: bool = False) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten) within [low, high], at most `most` of them.

    `whole`: only whole numbers, for counts such as steps.
    """
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
    """The axis for some values: a margin of 6% around them, never of zero height."""
    low, high = float(np.min(values)), float(np.max(values))
    if from_zero:
        low = min(low, 0.0)
    margin = 0.06 * (high - low) or 0.06 * abs(high) or 0.5
    return (low if from_zero and low == 0 else low - margin), high + margin


def short(value: float, percent: bool = False) -> str:
    """A number as people read it: 3 significant digits, thousands as k, shares in per cent."""
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
