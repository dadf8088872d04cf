"""What is replayed and when: the weighted draw and the gate that starts replay."""

from __future__ import annotations

from typing import Any

import numpy as np


def draw_without_replacement(
    weights_N: np.ndarray, num_draws: int, generator: np.random.Generator
) -> np.ndarray:
    """Indices drawn one after the other, each with probability proportional to its weight among those left.

    With E_i ~ Exp(1), E_i / w_i is the arrival time of i in a race of exponential clocks. The first arrival is i with
    probability w_i / sum(w). The clocks are memoryless, so the next arrival is drawn in the same way among the rest:
    the `num_draws` earliest arrivals, in order, are exactly the sequential draw. One pass over the rows.

    Args:
        weights_N: at least 0; a row of weight 0 is never drawn.
        num_draws: if fewer rows have a positive weight, all of them are drawn.

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


def bucket_weights(
    num_correct_N: np.ndarray, num_sampled_N: np.ndarray, eligible_N: np.ndarray, sigma: float
) -> np.ndarray:
    """ExGRPO's draw: a success rate k/G by its normal density around 1/2, then a row of that rate uniformly.

    w_i = exp(-(p_i - 1/2)^2 / (2 sigma^2)) / |{j eligible: p_j = p_i}|, [N]; 0 for rows that are not eligible.
    """
    rate_N = num_correct_N / np.maximum(num_sampled_N, 1)
    weights_N = np.zeros(len(rate_N))
    _, bucket, size = np.unique(rate_N[eligible_N], return_inverse=True, return_counts=True)
    # Relative to the likeliest bucket there is: densities far from 1/2 would all be 0.
    exponent = -(((rate_N[eligible_N] - 0.5) / sigma) ** 2) / 2
    weights_N[eligible_N] = np.exp(exponent - exponent.max(initial=-np.inf)) / size[bucket]
    return weights_N


class ReplayGate:
    """Opens once the policy solves enough prompts, or after the warm-up; then it stays open.

    Replay starts in the step after the one whose share of correct responses, over all rollouts before filtering,
    exceeds `threshold`, and at the latest after `max_warmup_steps` steps.

    Args:
        threshold: 0.45 in the paper.
        max_warmup_steps: the cap, which the paper does not mention. None: no cap. 0: open from the first step.
    """

    def __init__(self, threshold: float = 0.45, max_warmup_steps: int | None = None) -> None:
        if not 0.0 <= threshold <= 1.0:
            raise ValueError(f"threshold must be in [0, 1], got {threshold}")
        if max_warmup_steps is not None and max_warmup_steps < 0:
            raise ValueError(f"max_warmup_steps must be at least 0, got {max_warmup_steps}")
        self.threshold = threshold
        self.max_warmup_steps = max_warmup_steps
        self.opened_at: int | None = 0 if max_warmup_steps == 0 else None
        """The step after which replay is on; None while the gate is closed."""

    @property
    def is_open(self) -> bool:
        return self.opened_at is not None

    def observe(self, solved_ratio: float, step: int) -> bool:
        """Record the solved ratio of a finished step; returns whether the gate is open from now on."""
        if not 0.0 <= solved_ratio <= 1.0:
            raise ValueError(f"solved_ratio must be in [0, 1], got {solved_ratio}")
        warmed_up = self.max_warmup_steps is not None and step >= self.max_warmup_steps
        if self.opened_at is None and (solved_ratio > self.threshold or warmed_up):
            self.opened_at = step
        return self.is_open

    def state_dict(self) -> dict[str, Any]:
        """JSON values; threshold and warm-up are configuration, not state."""
        return {"opened_at": self.opened_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.opened_at = state["opened_at"]
