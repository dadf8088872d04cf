"""The difference between the program that sampled and the policy that trains.

Both compute the log-probs of the same tokens from the same weights, with other kernels and in another order. What
differs is the mismatch; truncated importance sampling weighs the loss by it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pivot.method.numerics import clamped_log_ratio, k3_divergence, valid_logprobs
from pivot.method.shapes import check_floating, check_mask, check_range


class Mismatch(NamedTuple):
    """How far a sampler's log-probs are from the trainer's; scalars."""

    divergence: Tensor
    """Mean k3 estimate of KL(sampler || trainer); 0 without tokens."""
    max_ratio: Tensor
    """The largest p_trainer / p_sampler or its inverse; 1 without tokens."""


def sampler_mismatch(logprobs_BT: Tensor, sampler_logprobs_BT: Tensor, mask_BT: Tensor) -> Mismatch:
    """Mean of e^d - d - 1 and max of e^|d| over valid tokens, d = log p_trainer - log p_sampler; no gradient.

    Args:
        logprobs_BT: [B, T], the trainer's.
        sampler_logprobs_BT: [B, T].
        mask_BT: [B, T].
    """
    divergence_BT = k3_divergence(sampler_logprobs_BT.detach(), logprobs_BT.detach(), mask_BT, maximum=None)
    log_ratio_BT = _log_ratio(logprobs_BT, sampler_logprobs_BT, mask_BT)
    num_tokens = mask_BT.sum().clamp(min=1)
    largest = log_ratio_BT.abs().max() if log_ratio_BT.numel() else log_ratio_BT.new_zeros(())
    return Mismatch(divergence_BT.sum() / num_tokens, largest.exp())


def truncated_importance(
    logprobs_BT: Tensor, sampler_logprobs_BT: Tensor, mask_BT: Tensor, *, cap: float
) -> Tensor:
    """min(p_trainer / p_sampler, cap), the weight of each token's policy loss (TIS); no gradient.

    Args:
        logprobs_BT: [B, T], the trainer's at the weights that sampled.
        sampler_logprobs_BT: [B, T].
        mask_BT: [B, T]; tokens outside it weigh 1.
        cap: at least 1.
    """
    check_range("cap", cap, 1.0, float("inf"))
    return _log_ratio(logprobs_BT, sampler_logprobs_BT, mask_BT).exp().clamp(max=cap)


def _log_ratio(logprobs_BT: Tensor, sampler_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    check_floating("logprobs_BT", logprobs_BT, ("B", "T"))
    check_floating("sampler_logprobs_BT", sampler_logprobs_BT, logprobs_BT.shape)
    check_mask("mask_BT", mask_BT, logprobs_BT.shape)
    valid_BT = mask_BT.bool()
    with torch.no_grad():
        return clamped_log_ratio(
            valid_logprobs(logprobs_BT, valid_BT), valid_logprobs(sampler_logprobs_BT, valid_BT)
        )
