"""Which rows are drawn: weighted, without replacement."""

from __future__ import annotations

import numpy as np


def draw_without_replacement(
    weights_N: np.ndarray, num_draws: int, generator: np.random.Generator
) -> np.ndarray:
    """Indices drawn one after the other, each with probability proportional to its weight among those left.

    E_i / w_i with E_i ~ Exp(1) is the arrival time of i in a race of exponential clocks. The first to arrive
    is i with probability w_i / sum(w), and, clocks having no memory, the next is drawn just so among the
    rest: the `num_draws` earliest arrivals, in order, are the sequential draw itself and no approximation
    of it. One pass over the rows, whatever the number of draws.

    Args:
        weights_N: at least 0; a row of weight 0 is never drawn.
        num_draws: fewer rows than this with a positive weight: all of them are drawn.

    Returns:
        int64 indices into `weights_N`, in the order of the draw.
    """
    if num_draws < 0:
        raise ValueError(f"num_draws must be at least 0, got {num_draws}")
    eligible = np.flatnonzero(weights_N > 0.0)
    num_draws = min(num_draws, eligible.size)
    if num_draws == 0:
        return np.empty(0, dtype=np.int64)
    arrival = generator.standard_exponential(eligible.size) / weights_N[eligible]
    first = np.argpartition(arrival, num_draws - 1)[:num_draws]
    return eligible[first[np.argsort(arrival[first])]]
