"""One token per sequence from logits: temperature, top-k, top-p, and one uniform number each.

A token is drawn by inverting the cumulative distribution at a uniform number. Each response has its own counter-based
stream of these numbers, so its draws depend on (key, prompt, sample) alone and not on the batch it is decoded in.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pivot.sampling.base import Sampling

NUCLEUS = 256
"""Likeliest tokens that top-p looks at first."""


def uniform_stream(key: int, length: int) -> np.ndarray:
    """`length` uniform numbers in [0, 1) that depend on the key alone."""
    return np.random.Generator(np.random.Philox(key=key)).random(length)


def draw_tokens(logits_NV: Tensor, uniform_N: Tensor, sampling: Sampling) -> Tensor:
    """One token per row from the (tempered, truncated) distribution; never one whose logit is minus infinity."""
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
    # Strictly below the total, so that the first entry above it exists and has a positive probability.
    point_N1 = torch.minimum(uniform_N[:, None] * total_N, total_N * (1 - 1e-12))
    drawn_N1 = torch.searchsorted(cumulative_NV, point_N1, right=True)
    # Non-finite logits find no entry; the update that follows from them is skipped and reported.
    return drawn_N1.clamp(max=logits_NV.shape[-1] - 1).squeeze(-1)


def keep_nucleus(probs_NV: Tensor, top_p: float) -> Tensor:
    """Zero outside the smallest set of likeliest tokens whose probability reaches `top_p`."""
    likeliest_NK, order_NK = _likeliest(probs_NV, top_p)
    before_NK = likeliest_NK.cumsum(-1) - likeliest_NK
    likeliest_NK = likeliest_NK.masked_fill(before_NK >= top_p, 0.0)
    return torch.zeros_like(probs_NV).scatter(-1, order_NK, likeliest_NK)


def _likeliest(probs_NV: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The likeliest tokens in order, at least as many as reach `top_p` in every row."""
    size = NUCLEUS
    # A GPU sorts quickly, and asking how far a row reaches would make the host wait.
    while probs_NV.device.type == "cpu" and size < probs_NV.shape[-1]:
        found = probs_NV.topk(size, dim=-1)
        if bool((found.values.sum(-1) >= top_p).all()):
            return found.values, found.indices
        size *= 8
    ordered = probs_NV.sort(-1, descending=True)
    return ordered.values, ordered.indices
