"""Policy losses without a hard clip of the gradient: CISPO and SAPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pivot.method.numerics import on_valid
from pivot.method.part import ANY, Bounds
from pivot.method.policy_loss import PolicyTerms, Surrogate, prepared
from pivot.method.shapes import check_range


def capped_weight_terms(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantage_BT: Tensor,
    mask_BT: Tensor,
    *,
    floor: float = 0.0,
    cap: float = 5.0,
) -> PolicyTerms:
    """-sg[clip(rho_t, floor, cap)] A_t log pi(y_t), token by token (CISPO, arXiv 2506.13585).

    The weight is bounded and carries no gradient, so that no token loses its gradient to a clip.

    Args:
        logprobs_BT: [B, T], under the weights that are trained; carries the gradient.
        old_logprobs_BT: [B, T], under the weights that sampled.
        advantage_BT: [B, T].
        mask_BT: [B, T].
        floor: smallest importance weight.
        cap: largest importance weight.
    """
    check_range("floor", floor, 0.0, 1.0)
    check_range("cap", cap, 1.0, float("inf"))
    new_BT, ratio_BT, advantage_BT = prepared(logprobs_BT, old_logprobs_BT, advantage_BT, mask_BT)
    weight_BT = ratio_BT.detach().clamp(floor, cap)
    return PolicyTerms(-weight_BT * advantage_BT * new_BT, on_valid(ratio_BT.detach(), mask_BT.bool()))


def soft_gate_terms(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantage_BT: Tensor,
    mask_BT: Tensor,
    *,
    positive: float = 1.0,
    negative: float = 1.05,
) -> PolicyTerms:
    """-(4 / tau) sigmoid(tau (rho_t - 1)) A_t, token by token (SAPO, arXiv 2511.20347).

    tau is `positive` where A > 0, else `negative`. The gradient by log pi is -4 s (1 - s) rho A with s the sigmoid:
    -A on-policy, as for rho A, and fading smoothly away from rho = 1, the faster the larger tau.

    Args:
        logprobs_BT: [B, T], under the weights that are trained; carries the gradient.
        old_logprobs_BT: [B, T], under the weights that sampled.
        advantage_BT: [B, T].
        mask_BT: [B, T].
        positive: tau for positive advantages.
        negative: tau for the others.
    """
    if min(positive, negative) <= 0:
        raise ValueError(f"positive and negative must be above 0, got {positive!r} and {negative!r}")
    _, ratio_BT, advantage_BT = prepared(logprobs_BT, old_logprobs_BT, advantage_BT, mask_BT)
    tau_BT = torch.where(advantage_BT > 0, positive, negative).to(ratio_BT.dtype)
    gate_BT = 4 / tau_BT * torch.sigmoid(tau_BT * (ratio_BT - 1))
    return PolicyTerms(-gate_BT * advantage_BT, on_valid(ratio_BT.detach(), mask_BT.bool()))


@dataclass(frozen=True)
class CappedWeight(Surrogate):
    """CISPO: the importance weight is capped, not the update."""

    bounds: ClassVar[Bounds] = {**Surrogate.bounds, "weight_floor": (0, 1), "weight_cap": (1, ANY)}

    weight_floor: float = 0.0
    """Smallest importance weight of CISPO; its paper has none."""
    weight_cap: float = 5.0
    """Largest importance weight of CISPO; its paper prints no value, 5 is ScaleRL's."""

    def terms(
        self, logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantage_BT: Tensor, mask_BT: Tensor
    ) -> PolicyTerms:
        rows = (logprobs_BT, old_logprobs_BT, advantage_BT, mask_BT)
        return capped_weight_terms(*rows, floor=self.weight_floor, cap=self.weight_cap)


@dataclass(frozen=True)
class SoftGate(Surrogate):
    """SAPO: a sigmoid of the ratio in place of the clip."""

    bounds: ClassVar[Bounds] = {
        **Surrogate.bounds,
        "gate_positive": (1e-9, ANY),
        "gate_negative": (1e-9, ANY),
    }

    gate_positive: float = 1.0
    """tau of SAPO's gate where the advantage is positive."""
    gate_negative: float = 1.05
    """tau of SAPO's gate where it is not; larger, because such updates spread over the whole vocabulary."""

    def terms(
        self, logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantage_BT: Tensor, mask_BT: Tensor
    ) -> PolicyTerms:
        rows = (logprobs_BT, old_logprobs_BT, advantage_BT, mask_BT)
        return soft_gate_terms(*rows, positive=self.gate_positive, negative=self.gate_negative)
