"""Which prompts make a set of a given success rate, from how often a checkpoint solved each.

Success rates of prompts are taken to follow a beta distribution, fitted to all counts, so that a prompt solved k of n
times has the expected rate (a + k) / (a + b + n): a low k is partly bad luck. A set of a target rate takes a prompt
with probability proportional to exp(-tilt x expected rate), at most 1, so that it keeps prompts of all difficulties in
the proportions of its rate. How rare a set really is, a second sampling says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

ROUNDS = (4, 4, 8, 16, 32)
"""Responses that are sampled at a time; prompts of which more than one in sixteen is solved are dropped in between."""
RARE = 1 / 16
STEEPEST = 400.0


@dataclass(frozen=True)
class Counted:
    """A prompt was solved so many times."""

    correct: int
    sampled: int

    @property
    def is_rare(self) -> bool:
        """Whether it is worth sampling on: only rare prompts need to be known well."""
        return self.correct <= self.sampled * RARE


def fit_beta(counts: Sequence[Counted]) -> tuple[float, float]:
    """The likeliest (a, b) on a grid; when sampling stopped does not matter for it."""
    histogram: dict[tuple[int, int], int] = {}
    for one in counts:
        key = (one.correct, one.sampled - one.correct)
        histogram[key] = histogram.get(key, 0) + 1
    grid = [math.exp(exponent) for exponent in np.linspace(-3.0, 4.0, 57)]
    return max(((a, b) for a in grid for b in grid), key=lambda pair: _log_likelihood(*pair, histogram))


def _log_likelihood(a: float, b: float, histogram: Mapping[tuple[int, int], int]) -> float:
    """Of a beta-binomial distribution, up to the binomial coefficients."""
    whole = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return sum(
        number
        * (whole + math.lgamma(a + right) + math.lgamma(b + wrong) - math.lgamma(a + b + right + wrong))
        for (right, wrong), number in histogram.items()
    )


def expected_rates(counts: Sequence[Counted]) -> np.ndarray:
    """[N], the expected success rate of each prompt."""
    a, b = fit_beta(counts)
    return np.array([(a + one.correct) / (a + b + one.sampled) for one in counts])


def choose(rates_N: np.ndarray, target: float, size: int, generator: np.random.Generator) -> list[int]:
    """`size` indices whose mean expected rate is as close to `target` as the prompts allow, in their order."""
    if not 0 < size <= len(rates_N):
        raise ValueError(f"size must be in [1, {len(rates_N)}], the number of prompts, got {size}")
    low, high = -STEEPEST, STEEPEST
    for _ in range(60):
        tilt = (low + high) / 2
        chances_N = _chances(rates_N, tilt, size)
        low, high = (tilt, high) if chances_N @ rates_N / size > target else (low, tilt)
    # Systematic sampling: exactly `size` prompts, each with its own probability.
    order_N = generator.permutation(len(rates_N))
    ends_N = np.cumsum(_chances(rates_N, (low + high) / 2, size)[order_N])
    marks = generator.random() + np.arange(size)
    return sorted(
        order_N[np.searchsorted(ends_N, np.minimum(marks, ends_N[-1] - 1e-9), side="right")].tolist()
    )


def _chances(rates_N: np.ndarray, tilt: float, size: int) -> np.ndarray:
    """min(1, c exp(-tilt rate)) with the c that makes them add up to `size`."""
    exponents_N = -tilt * rates_N
    weights_N = np.exp(exponents_N - exponents_N.max())
    order_N = np.argsort(-weights_N, kind="stable")
    falling_N = weights_N[order_N]
    rest_N = falling_N[::-1].cumsum()[::-1]
    for sure in range(size):  # so many prompts are taken for certain
        scale = (size - sure) / rest_N[sure]
        if scale * falling_N[sure] <= 1:
            chances_N = np.empty(len(rates_N))
            chances_N[order_N] = np.minimum(1.0, scale * falling_N)
            return chances_N
    chances_N = np.zeros(len(rates_N))
    chances_N[order_N[:size]] = 1.0
    return chances_N


def informative_share(counts: Sequence[int], num_samples: int, group: int) -> float:
    """The share of groups, drawn from each prompt's own samples, that would have right and wrong responses."""
    flat = [
        (math.comb(k, group) + math.comb(num_samples - k, group)) / math.comb(num_samples, group)
        for k in counts
    ]
    return 1 - float(np.mean(flat))
