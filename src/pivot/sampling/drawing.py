"""One token per sequence from logits: temperature, top-k, top-p, and one uniform number each.

A token is drawn by inverting the cumulative distribution at a uniform number. Each response has its own counter-based
stream of these numbers, so its draws depend on (key, prompt, sample) alone and not on the batch it is decoded in.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pivot.sampling.base import Sampling

LIKELIEST = 256
"""Tokens that top-p looks at first; a trained model rarely needs more."""
LOW_BITS = 15
"""Of a probability's 32; those above are counted first."""
HIGHEST = 0x3F800000 >> LOW_BITS
"""The high bits of 1.0."""


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
    """Zero outside the smallest set of likeliest tokens whose probability reaches `top_p`.

    Tokens as likely as the last of them stay too. Sums are in double precision, so that a row's set does not depend on
    the rows beside it.
    """
    return probs_NV.masked_fill(probs_NV < _least_probability(probs_NV, top_p), 0.0)


def _least_probability(probs_NV: Tensor, top_p: float) -> Tensor:
    """The least in the set: by a sort on a GPU, which is quick there; elsewhere among a few tokens, or by counting."""
    if probs_NV.device.type != "cpu" or probs_NV.shape[-1] <= LIKELIEST:
        return _last_needed(probs_NV.sort(-1, descending=True).values, top_p)
    likeliest_NK = probs_NV.topk(LIKELIEST, dim=-1).values
    if bool((likeliest_NK.double().cumsum(-1)[:, -1] >= top_p).all()):
        return _last_needed(likeliest_NK, top_p)
    return _least_by_counting(probs_NV, top_p)


def _last_needed(ordered_NK: Tensor, top_p: float) -> Tensor:
    """The first of the descending probabilities with which their sum reaches `top_p`; the last if none does."""
    num_short_N1 = (ordered_NK.double().cumsum(-1) < top_p).sum(-1, keepdim=True)
    return ordered_NK.gather(-1, num_short_N1.clamp(max=ordered_NK.shape[-1] - 1))


def _least_by_counting(probs_NV: Tensor, top_p: float) -> Tensor:
    """The same for any number of tokens, without a sort: positive floats are ordered as their bits are.

    First the high bits of the least probability, then the low ones: the largest with which all that are as likely or
    likelier reach `top_p`.
    """
    bits_NV = probs_NV.view(torch.int32)
    high_NV = (bits_NV >> LOW_BITS).clamp(0, HIGHEST).long()  # clamped for what is not finite
    mass_NC = probs_NV.new_zeros(len(probs_NV), HIGHEST + 1, dtype=torch.float64)
    likelier_NC = _reversed_sums(mass_NC.scatter_add_(-1, high_NV, probs_NV.double()))
    high_N1 = _last_reaching(likelier_NC, top_p)
    beyond_N1 = F.pad(likelier_NC, (0, 1)).gather(-1, high_N1 + 1)

    row_M, token_M = (high_NV == high_N1).nonzero(as_tuple=True)
    low_M = (bits_NV[row_M, token_M] & (2**LOW_BITS - 1)).long()
    mass_NC = probs_NV.new_zeros(len(probs_NV), 2**LOW_BITS, dtype=torch.float64)
    mass_NC.index_put_((row_M, low_M), probs_NV[row_M, token_M].double(), accumulate=True)
    low_N1 = _last_reaching(_reversed_sums(mass_NC) + beyond_N1, top_p)
    return (high_N1 << LOW_BITS | low_N1).int().view(torch.float32)


def _reversed_sums(x_NC: Tensor) -> Tensor:
    """Of each column and all that follow it."""
    return x_NC.flip(-1).cumsum(-1).flip(-1)


def _last_reaching(sums_NC: Tensor, top_p: float) -> Tensor:
    """The last column of falling sums that reaches `top_p`; 0 if none does."""
    return ((sums_NC >= top_p).sum(-1, keepdim=True) - 1).clamp(min=0)
