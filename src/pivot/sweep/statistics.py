"""Paired differences with bootstrap intervals over seeds and prompts, and the verdict that an interval gives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

DRAWS = 4000
LEVEL = 0.95
SEED_QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Number of seeds -> the 97.5% quantile of Student's t with one degree of freedom less."""
NORMAL = 1.96
"""The quantile for infinitely many seeds."""


@dataclass(frozen=True)
class Difference:
    """Mean difference of two arms with its interval.

    Example:
        Difference(mean=0.021, low=0.004, high=0.038, seeds=5)
    """

    mean: float
    low: float
    high: float
    seeds: int

    def verdict(self, margin: float | None = None) -> str:
        """`holds` where the whole interval is above 0, `reversed` where it is below, else `no difference seen`.

        One seed has no interval, and one around 0 that reaches beyond `margin` leaves the question open: then it
        `cannot be told with N seeds`.
        """
        if self.seeds < 2:
            return "cannot be told with 1 seed"
        if self.low > 0:
            return "holds"
        if self.high < 0:
            return "reversed"
        if margin is not None and max(-self.low, self.high) > margin:
            return f"cannot be told with {self.seeds} seeds"
        return "no difference seen"


def paired_difference(first_SP: np.ndarray, second_SP: np.ndarray, *, seed: int = 0) -> Difference:
    """Mean of first - second, and its percentile interval when seeds and prompts are drawn with replacement.

    A pair has the same seed (so the same order of training prompts) and the same prompt. Drawing S seeds out of S
    understates the variance between seeds, so their deviations from the mean are widened by sqrt(S / (S - 1)), and
    by t / 1.96 because the variance itself is estimated: with one prompt the interval is about Student's. An arm
    with one row (the base model) is compared with every seed.

    Args:
        first_SP, second_SP: [seeds, prompts]; one column where a metric has no prompts.
    """
    delta_SP = np.atleast_2d(first_SP - second_SP)
    num_seeds, num_prompts = delta_SP.shape
    mean = float(delta_SP.mean())
    if num_seeds > 1:
        deviation_S1 = delta_SP.mean(axis=1, keepdims=True) - mean
        widening = np.sqrt(num_seeds / (num_seeds - 1)) * student_quantile(num_seeds) / NORMAL
        delta_SP = delta_SP + deviation_S1 * (widening - 1)
    seeds_DS, prompts_DP = _resampled(num_seeds, seed), _resampled(num_prompts, seed + 1)
    means_D = ((seeds_DS @ delta_SP) * prompts_DP).sum(axis=1)
    low, high = np.quantile(means_D, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(mean, float(low), float(high), num_seeds)


def student_quantile(num_seeds: int) -> float:
    """97.5% quantile of Student's t for so many seeds; beyond the table by its expansion around the normal's."""
    expansion = NORMAL + (NORMAL**3 + NORMAL) / (4 * (num_seeds - 1))
    return SEED_QUANTILES.get(num_seeds, expansion)


@cache
def _resampled(size: int, seed: int) -> np.ndarray:
    """Weights [draws, size] of a bootstrap: how often each item is drawn, over how many are drawn.

    From the bit generator's raw stream, which numpy promises never to change: a page comes out the same everywhere.
    """
    raw_DN = np.random.Philox(seed).random_raw(DRAWS * size).reshape(DRAWS, size)
    place_DN = (raw_DN % np.uint64(size)).astype(np.int64) + size * np.arange(DRAWS)[:, None]
    return np.bincount(place_DN.ravel(), minlength=DRAWS * size).reshape(DRAWS, size) / size


def show(value: float, form: str) -> str:
    """A number as text that does not depend on the last bits of a sum: shares of 8 samples often end in a 5."""
    return format(round(value, 9), form)
