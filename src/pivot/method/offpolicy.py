"""The two ablations that train on the experience itself: Off-PG and Off-SFT."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pivot.method.aggregation import token_mean
from pivot.method.entropy import nll_penalty
from pivot.method.numerics import on_valid, valid_logprobs
from pivot.method.shapes import check_floating, check_mask


def shaped_ratio_terms(
    logprobs_BT: Tensor,
    recorded_logprobs_BT: Tensor,
    advantage_BT: Tensor,
    mask_BT: Tensor,
    *,
    shaping: float = 0.1,
) -> Tensor:
    """-A_t * w_t / (w_t + shaping) with w = pi / pi_recorded, token by token and unclipped (Off-PG).

    w / (w + shaping) is sigmoid(log w - log shaping), which is how it is computed: no overflow.

    Args:
        logprobs_BT: [B, T], under the weights that are trained; carries the gradient.
        recorded_logprobs_BT: [B, T], under the weights that once sampled the experience.
        advantage_BT: [B, T].
        mask_BT: [B, T].
        shaping: above 0.

    Returns:
        [B, T], 0 where masked.
    """
    check_floating("logprobs_BT", logprobs_BT, ("B", "T"))
    check_floating("recorded_logprobs_BT", recorded_logprobs_BT, logprobs_BT.shape)
    check_floating("advantage_BT", advantage_BT, logprobs_BT.shape)
    check_mask("mask_BT", mask_BT, logprobs_BT.shape)
    if shaping <= 0:
        raise ValueError(f"shaping must be above 0, got {shaping!r}")
    valid_BT = mask_BT.bool()
    recorded_BT = valid_logprobs(recorded_logprobs_BT.detach(), valid_BT)
    log_weight_BT = valid_logprobs(logprobs_BT, valid_BT) - recorded_BT
    shaped_BT = torch.sigmoid(log_weight_BT - math.log(shaping))
    return -on_valid(advantage_BT.detach(), valid_BT) * shaped_BT


def shaped_ratio_loss(
    logprobs_BT: Tensor,
    recorded_logprobs_BT: Tensor,
    advantage_BT: Tensor,
    mask_BT: Tensor,
    *,
    shaping: float = 0.1,
    num_tokens: float | Tensor | None = None,
) -> Tensor:
    """The sum of `shaped_ratio_terms` over valid tokens / `num_tokens`, a scalar."""
    terms_BT = shaped_ratio_terms(logprobs_BT, recorded_logprobs_BT, advantage_BT, mask_BT, shaping=shaping)
    return token_mean(terms_BT, mask_BT, num_tokens=num_tokens)


def sft_loss(logprobs_AT: Tensor, mask_AT: Tensor, *, num_tokens: float | Tensor | None = None) -> Tensor:
    """Token mean of -log pi(y_exp,t) over the anchors' own tokens (Off-SFT), a scalar."""
    check_floating("logprobs_AT", logprobs_AT, ("A", "T"))
    check_mask("mask_AT", mask_AT, logprobs_AT.shape)
    return nll_penalty(logprobs_AT, mask_AT, num_tokens=num_tokens)
