"""Curves made fit to look at: smoothed, thinned, averaged into bins or over seeds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from pivot.report.run import Series

MOST_POINTS = 400
"""A page shows no more points of a curve: more cannot be told apart at its width."""
FEWEST_TO_SMOOTH = 12


def smooth(series: Series) -> np.ndarray | None:
    """Gaussian-weighted mean over neighbouring steps, the weights renormalised at the ends.

    The width (one sigma) is 2.5% of the steps covered, at least 1.5 steps. None for a curve too short for it.
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
    """Indices of at most `most` points, among them both ends and the lowest and highest of each bucket.

    Spikes survive, which plain striding would lose.
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
    """Neighbouring steps averaged so that at most `most` remain.

    Args: steps [n], columns [n, k]. Returns the first step of each bin and the means [bins, k].
    """
    edges = np.unique(np.linspace(0, len(steps), min(most, len(steps)) + 1).astype(int))[:-1]
    counts = np.diff(np.append(edges, len(steps)))
    return steps[edges], np.add.reduceat(columns, edges, axis=0) / counts[:, None]


def band(runs: list[Series]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and standard deviation (n - 1; 0 for one run) over runs, at the steps that all of them logged."""
    shared = runs[0].steps
    for series in runs[1:]:
        shared = np.intersect1d(shared, series.steps)
    stacked = np.stack([s.values[np.searchsorted(s.steps, shared)] for s in runs])
    spread = stacked.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(len(shared))
    return shared, stacked.mean(axis=0), spread
