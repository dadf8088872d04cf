"""How the next token is drawn from the model's logits.

A token is drawn by inverting the distribution's cumulative sum at one uniform number. The numbers of a response come
from its own counter-based stream, so a draw depends on (seed, step, prompt, sample) and on nothing else: not on the
batch it was decoded in, nor on who finished first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pivot.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """The sampler's settings.

    Example:
        Sampling(temperature=1.0, top_p=0.99, max_tokens=2048)
    """

    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    max_tokens: int = 2048
    min_tokens: int = 0
    """No end of turn before this many tokens (for benchmarks of equal length)."""

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0 or self.max_tokens < 1:
            raise UserError(
                f"{self} cannot be sampled with; expected temperature >= 0, 0 < top_p <= 1, top_k >= 0, max_tokens >= 1"
            )


def uniform_stream(key: int, length: int) -> np.ndarray:
    """`length` uniform numbers in [0, 1) that depend on the key alone."""
    return np.random.Generator(np.random.Philox(key=key)).random(length)


def draw_tokens(logits_NV: Tensor, uniform_N: Tensor, sampling: Sampling, banned: Tensor) -> Tensor:
    """One token a row from the (tempered, truncated) distribution, never a banned one."""
    logits_NV = logits_NV.index_fill(-1, banned, -torch.inf)
    if sampling.temperature == 0:
        return logits_NV.argmax(-1)
    if sampling.temperature != 1:
        logits_NV = logits_NV / sampling.temperature
    if sampling.top_k and sampling.top_k < logits_NV.shape[-1]:
        kth = logits_NV.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits_NV = logits_NV.masked_fill(logits_NV < kth, -torch.inf)
    probs_NV = logits_NV.softmax(-1)
    if sampling.top_p < 1:
        probs_NV = keep_nucleus(probs_NV, sampling.top_p)
    # Double precision: a single-precision sum over 150,000 entries would shift the draw by whole tokens.
    cumulative_NV = probs_NV.double().cumsum(-1)
    total_N = cumulative_NV[:, -1:]
    # Strictly below the total, so that the first entry above it exists and has a probability.
    point_N1 = torch.minimum(uniform_N[:, None] * total_N, total_N * (1 - 1e-12))
    drawn_N1 = torch.searchsorted(cumulative_NV, point_N1, right=True)
    # Logits that are not finite find no entry; the update that follows from them is skipped and named.
    return drawn_N1.clamp(max=logits_NV.shape[-1] - 1).squeeze(-1)


def keep_nucleus(probs_NV: Tensor, top_p: float) -> Tensor:
    """Zero outside the smallest set of likeliest tokens whose probability reaches `top_p`."""
    ordered_NV, order_NV = probs_NV.sort(-1, descending=True)
    before_NV = ordered_NV.cumsum(-1) - ordered_NV
    ordered_NV = ordered_NV.masked_fill(before_NV >= top_p, 0.0)
    return torch.zeros_like(probs_NV).scatter(-1, order_NV, ordered_NV)
