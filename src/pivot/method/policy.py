"""The clipped policy objective (Eq. 3) and the k3 divergence that several methods share."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pivot.method.aggregation import token_mean
from pivot.method.numerics import clamped_log_ratio, on_valid, valid_logprobs
from pivot.method.shapes import check_floating, check_mask, check_range


class PolicyTerms(NamedTuple):
    """The policy loss token by token, and which clip cut its gradient. All [B, T], 0 where masked."""

    loss_BT: Tensor
    """-min(rho A, clip(rho) A), bounded by the dual clip; carries the gradient."""
    ratio_BT: Tensor
    """rho; no gradient."""
    clip_low_BT: Tensor
    """bool: A < 0 and rho < 1 - clip_low."""
    clip_high_BT: Tensor
    """bool: A > 0 and rho > 1 + clip_high."""
    dual_clip_BT: Tensor
    """bool: A < 0 and rho > dual_clip."""


def policy_terms(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantage_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = 3.0,
) -> PolicyTerms:
    """-min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t), token by token (Eq. 3).

    For A < 0 the loss grows with rho without bound; the dual clip stops it at -dual_clip * A.

    Args:
        logprobs_BT: [B, T], under the weights that are trained; carries the gradient.
        old_logprobs_BT: [B, T], under the weights that sampled.
        advantage_BT: [B, T].
        mask_BT: [B, T].
        clip_low: epsilon_l.
        clip_high: epsilon_h.
        dual_clip: above 1, or None for no dual clip.
    """
    check_floating("logprobs_BT", logprobs_BT, ("B", "T"))
    check_floating("old_logprobs_BT", old_logprobs_BT, logprobs_BT.shape)
    check_floating("advantage_BT", advantage_BT, logprobs_BT.shape)
    check_mask("mask_BT", mask_BT, logprobs_BT.shape)
    check_range("clip_low", clip_low, 0.0, 1.0)
    check_range("clip_high", clip_high, 0.0, float("inf"))
    if dual_clip is not None and dual_clip <= 1.0:
        raise ValueError(f"dual_clip must be above 1 or None, got {dual_clip!r}")
    valid_BT = mask_BT.bool()
    advantage_BT = on_valid(advantage_BT.detach(), valid_BT)
    old_BT = valid_logprobs(old_logprobs_BT.detach(), valid_BT)
    ratio_BT = clamped_log_ratio(valid_logprobs(logprobs_BT, valid_BT), old_BT).exp()
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    loss_BT = torch.maximum(-ratio_BT * advantage_BT, -clipped_BT * advantage_BT)
    is_bad_BT = advantage_BT < 0
    dual_clip_BT = torch.zeros_like(valid_BT)
    if dual_clip is not None:
        loss_BT = torch.where(is_bad_BT, torch.minimum(loss_BT, -dual_clip * advantage_BT), loss_BT)
        dual_clip_BT = is_bad_BT & (ratio_BT > dual_clip)
    return PolicyTerms(
        loss_BT=loss_BT,
        ratio_BT=on_valid(ratio_BT.detach(), valid_BT),
        clip_low_BT=is_bad_BT & (ratio_BT < 1 - clip_low),
        clip_high_BT=(advantage_BT > 0) & (ratio_BT > 1 + clip_high),
        dual_clip_BT=dual_clip_BT,
    )


def policy_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantage_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = 3.0,
    num_tokens: float | Tensor | None = None,
) -> Tensor:
    """DAPO's loss (Eq. 3): the sum of `policy_terms` over valid tokens / `num_tokens`, a scalar.

    `num_tokens` is the number of valid tokens in the global minibatch; by default those in the mask.
    """
    terms = policy_terms(
        logprobs_BT,
        old_logprobs_BT,
        advantage_BT,
        mask_BT,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
    return token_mean(terms.loss_BT, mask_BT, num_tokens=num_tokens)


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


def reference_kl(logprobs_BT: Tensor, reference_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """GRPO's KL(policy || reference), token by token: k3, bounded at 10. [B, T], 0 where masked."""
    check_floating("reference_logprobs_BT", reference_logprobs_BT, logprobs_BT.shape)
    return k3_divergence(logprobs_BT, reference_logprobs_BT, mask_BT)
