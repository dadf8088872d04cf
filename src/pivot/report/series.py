"""A metric over the steps of a run: smoothed, thinned, averaged over steps or over runs."""

from __future__ import annotations

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
