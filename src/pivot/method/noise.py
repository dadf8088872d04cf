"""NoisyRollout: part of each group is sampled under a distorted image; the loss sees the clean one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from pivot.method.part import ANY, Bounds, Part


def noise_level(
    step: int, steps: int, *, start: float = 500.0, steepness: float = 30.0, midpoint: float = 2 / 3
) -> float:
    """alpha_t = alpha_0 (1 - sigmoid(lambda (t - gamma) / t_max)), the strength of the noise in a step.

    Args:
        step: t, from 1.
        steps: t_max.
        start: alpha_0, a step of the forward diffusion in [0, 1000].
        steepness: lambda.
        midpoint: gamma / t_max, where half of the noise is left.
    """
    return start / (1 + math.exp(min(steepness * (step / steps - midpoint), 700.0)))


@dataclass(frozen=True)
class NoisyRollouts(Part):
    """NoisyRollout (arXiv 2504.13055): a share of each group is sampled under a noisy image.

    The image becomes sqrt(abar) x + sqrt(1 - abar) eps at step alpha_t of a forward diffusion (`noise_level`). Rewards
    of all responses share one baseline; ratios, entropies and all else are computed under the clean image.
    """

    bounds: ClassVar[Bounds] = {
        "noise_share": (0, 1),
        "noise_start": (0, 1000),
        "noise_steepness": (0, ANY),
        "noise_midpoint": (0, 1),
    }

    noise_share: float = 0.5
    """Share of each group that is sampled under a noisy image (NoisyRollout: a half); 0: none."""
    noise_start: float = 500.0
    """alpha_0: diffusion step of the noise at the beginning, of 1000 (NoisyRollout: 500)."""
    noise_steepness: float = 30.0
    """lambda: how suddenly the noise fades (NoisyRollout: 30)."""
    noise_midpoint: float = 2 / 3
    """gamma / t_max: the share of training after which half of the noise is left (NoisyRollout: 40 of 60 steps)."""

    def num_noisy(self, group_size: int) -> int:
        """How many of G responses are sampled under the noisy image."""
        return round(self.noise_share * group_size)

    def level(self, step: int, steps: int) -> float:
        """alpha_t."""
        return noise_level(
            step,
            steps,
            start=self.noise_start,
            steepness=self.noise_steepness,
            midpoint=self.noise_midpoint,
        )
