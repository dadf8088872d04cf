"""Arithmetic on padded rows that stays finite: masks, log-ratios, means over a global minibatch, the k3 divergence."""

from __future__ import annotations

import torch
from torch import Tensor

from pivot.method.shapes import check_floating, check_mask

LOGPROB_FLOOR = -1e4
"""Log-probabilities below it, -inf included, count as this: probability 0 then gives finite losses."""

SMALL = 1e-8
"""Added to denominators that can be 0."""

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to +-20 before `exp`, as EasyR1, VPPO and PAPO do."""


def at_least_float32(values: Tensor) -> Tensor:
    """bfloat16 and float16 become float32; float32 and float64 stay."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def on_valid(values_BT: Tensor, valid_BT: Tensor) -> Tensor:
    """The values in float32 or better, 0 where invalid, even for NaN."""
    return at_least_float32(values_BT).masked_fill(~valid_BT, 0.0)


def valid_logprobs(logprobs_BT: Tensor, valid_BT: Tensor) -> Tensor:
    """`on_valid`, floored at LOGPROB_FLOOR."""
    return on_valid(logprobs_BT, valid_BT).clamp(min=LOGPROB_FLOOR)


def clamped_log_ratio(numerator_BT: Tensor, denominator_BT: Tensor) -> Tensor:
    """log(numerator / denominator) from two log-probabilities, clamped to +-LOG_RATIO_LIMIT."""
    return (numerator_BT - denominator_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def rank_valid(valid_BT: Tensor) -> tuple[Tensor, Tensor]:
    """rank_E(t) of Eq. 25, [B, T], arbitrary where masked, and the number n of valid tokens, [B, 1]."""
    rank_BT = valid_BT.cumsum(dim=1) - 1
    return rank_BT.clamp(min=0), valid_BT.sum(dim=1, keepdim=True)


def min_max(values_BT: Tensor, valid_BT: Tensor) -> Tensor:
    """(x - min) / (max - min) over the valid tokens of each response, [B, T] in [0, 1]; 0 where masked or all alike."""
    if values_BT.shape[1] == 0:
        return values_BT
    low_B1 = values_BT.masked_fill(~valid_BT, torch.inf).amin(dim=1, keepdim=True)
    high_B1 = values_BT.masked_fill(~valid_BT, -torch.inf).amax(dim=1, keepdim=True)
    return ((values_BT - low_B1) / (high_B1 - low_B1 + SMALL)).masked_fill(~valid_BT, 0.0)


def token_mean(values_BT: Tensor, mask_BT: Tensor, *, num_tokens: float | Tensor | None = None) -> Tensor:
    """Sum over valid tokens / number of tokens (Eq. 3's normaliser).

    Args:
        values_BT: [B, T]; carries the gradient.
        mask_BT: [B, T]; values where it is 0 don't count, even NaN.
        num_tokens: tokens of the global minibatch; by default those in the mask. At least 1.
    """
    check_floating("values_BT", values_BT, ("B", "T"))
    check_mask("mask_BT", mask_BT, values_BT.shape)
    valid_BT = mask_BT.bool()
    return on_valid(values_BT, valid_BT).sum() / at_least_one(num_tokens, valid_BT.sum())


def sequence_mean(
    values_BT: Tensor, mask_BT: Tensor, *, num_sequences: float | Tensor | None = None
) -> Tensor:
    """Mean over each response's tokens, then over responses (GRPO's normaliser).

    Args:
        values_BT: [B, T]; carries the gradient.
        mask_BT: [B, T]; values where it is 0 don't count, even NaN.
        num_sequences: responses of the global minibatch; by default those with a valid token. At least 1.
    """
    check_floating("values_BT", values_BT, ("B", "T"))
    check_mask("mask_BT", mask_BT, values_BT.shape)
    valid_BT = mask_BT.bool()
    length_B = valid_BT.sum(dim=1)
    mean_B = on_valid(values_BT, valid_BT).sum(dim=1) / length_B.clamp(min=1)
    return mean_B.sum() / at_least_one(num_sequences, (length_B > 0).sum())


def at_least_one(given: float | Tensor | None, counted: Tensor) -> float | Tensor:
    """The given normaliser, else the counted one; never below 1, so that an empty batch gives 0."""
    if given is None:
        return counted.clamp(min=1)
    return given.clamp(min=1) if isinstance(given, Tensor) else max(given, 1)


def k3_divergence(
    logprobs_BT: Tensor, other_logprobs_BT: Tensor, mask_BT: Tensor, *, maximum: float | None = 10.0
) -> Tensor:
    """k3 = e^d - d - 1 with d = log q - log p, an estimate of KL(p||q) on tokens sampled from p.

    Its derivative by log p is 1 - q/p = c_t (Eq. 10).

    Args:
        logprobs_BT: [B, T], log p; carries the gradient.
        other_logprobs_BT: [B, T], log q; no gradient.
        mask_BT: [B, T].
        maximum: upper bound of each token's value, past which it has no gradient; None for no bound.

    Returns:
        [B, T], 0 where masked.
    """
    check_floating("logprobs_BT", logprobs_BT, ("B", "T"))
    check_floating("other_logprobs_BT", other_logprobs_BT, logprobs_BT.shape)
    check_mask("mask_BT", mask_BT, logprobs_BT.shape)
    valid_BT = mask_BT.bool()
    other_BT = valid_logprobs(other_logprobs_BT.detach(), valid_BT)
    log_ratio_BT = clamped_log_ratio(other_BT, valid_logprobs(logprobs_BT, valid_BT))
    divergence_BT = torch.expm1(log_ratio_BT) - log_ratio_BT
    return divergence_BT if maximum is None else divergence_BT.clamp(max=maximum)
