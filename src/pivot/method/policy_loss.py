"""The clipped policy loss of DAPO and GRPO (Eq. 3), and what it shares with the other surrogates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from pivot.method.batch import Batch
from pivot.method.numerics import clamped_log_ratio, on_valid, token_mean, valid_logprobs
from pivot.method.part import ANY, Bounds, Part, Totals
from pivot.method.shapes import check_floating, check_mask, check_range


class PolicyTerms(NamedTuple):
    """The policy loss token by token, and which clip cut its gradient. All [B, T], 0 where masked."""

    loss_BT: Tensor
    """-min(rho A, clip(rho) A), bounded by the dual clip; carries the gradient."""
    ratio_BT: Tensor
    """rho; no gradient."""
    clip_low_BT: Tensor | None = None
    """bool: A < 0 and rho < 1 - clip_low; None for a loss without this clip."""
    clip_high_BT: Tensor | None = None
    """bool: A > 0 and rho > 1 + clip_high."""
    dual_clip_BT: Tensor | None = None
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
    check_range("clip_low", clip_low, 0.0, 1.0)
    check_range("clip_high", clip_high, 0.0, float("inf"))
    _check_dual_clip(dual_clip)
    valid_BT = mask_BT.bool()
    _, ratio_BT, advantage_BT = prepared(logprobs_BT, old_logprobs_BT, advantage_BT, mask_BT)
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


def prepared(
    logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantage_BT: Tensor, mask_BT: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """log pi, rho and A, checked and finite; A is 0 where masked."""
    check_floating("logprobs_BT", logprobs_BT, ("B", "T"))
    check_floating("old_logprobs_BT", old_logprobs_BT, logprobs_BT.shape)
    check_floating("advantage_BT", advantage_BT, logprobs_BT.shape)
    check_mask("mask_BT", mask_BT, logprobs_BT.shape)
    valid_BT = mask_BT.bool()
    new_BT = valid_logprobs(logprobs_BT, valid_BT)
    old_BT = valid_logprobs(old_logprobs_BT.detach(), valid_BT)
    return new_BT, clamped_log_ratio(new_BT, old_BT).exp(), on_valid(advantage_BT.detach(), valid_BT)


def _check_dual_clip(dual_clip: float | None) -> None:
    if dual_clip is not None and dual_clip <= 1.0:
        raise ValueError(f"dual_clip must be above 1 or null, got {dual_clip!r}")


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


def sequence_ratio_logprobs(logprobs_BT: Tensor, old_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Log-probs whose ratio to the old ones is GSPO's: one value per response, the gradient of each token.

    s_i = exp(mean_t (log pi - log pi_old)), the length-normalised ratio of response i. Token t gets
    log pi_old + log sg[s_i] + log pi - sg[log pi]: its ratio is s_i and the ratio's gradient s_i grad log pi. With
    equal advantages in a response and the mean over sequences this is GSPO; with different ones it is GSPO-token.

    Returns:
        [B, T], 0 where masked.
    """
    check_floating("logprobs_BT", logprobs_BT, ("B", "T"))
    check_floating("old_logprobs_BT", old_logprobs_BT, logprobs_BT.shape)
    check_mask("mask_BT", mask_BT, logprobs_BT.shape)
    valid_BT = mask_BT.bool()
    new_BT = valid_logprobs(logprobs_BT, valid_BT)
    old_BT = valid_logprobs(old_logprobs_BT.detach(), valid_BT)
    length_B1 = valid_BT.sum(dim=1, keepdim=True).clamp(min=1)
    log_ratio_B1 = (new_BT.detach() - old_BT).sum(dim=1, keepdim=True) / length_B1
    return on_valid(old_BT + log_ratio_B1 + (new_BT - new_BT.detach()), valid_BT)


@dataclass(frozen=True, kw_only=True)
class Surrogate(Part):
    """A policy loss L_RLVR: the loss of each token, and how its mean is taken.

    Subclasses override `terms`.
    """

    bounds: ClassVar[Bounds] = {"constant_tokens": (1, ANY)}

    ratio: Literal["token", "sequence"] = "token"
    """Importance ratio of each token (Eq. 3), or of the whole response, length-normalised (GSPO)."""
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """Mean over all tokens (Eq. 3); over each response, then over responses (GRPO); or sum / constant (Dr.GRPO)."""
    constant_tokens: int | None = None
    """Tokens per response that `aggregation=constant` divides by; null: `rollout.max_tokens`."""

    def terms(
        self, logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantage_BT: Tensor, mask_BT: Tensor
    ) -> PolicyTerms:
        """The loss of each token; arguments as in `policy_terms`."""
        raise NotImplementedError

    def __call__(self, batch: Batch, totals: Totals) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a micro-batch, and detached sums and counts for the metrics."""
        logprobs_BT, policy_mask_BT = batch.given("new_logprobs_BT"), batch.given("policy_mask_BT").bool()
        check_mask("mask_BT", batch.mask_BT, logprobs_BT.shape)
        check_mask("policy_mask_BT", policy_mask_BT, logprobs_BT.shape)
        mask_BT, old_BT = batch.on_policy_mask_BT, batch.old_logprobs_BT
        if self.ratio == "sequence":
            logprobs_BT = sequence_ratio_logprobs(logprobs_BT, old_BT, mask_BT)
        terms = self.terms(logprobs_BT, old_BT, batch.given("advantage_BT"), mask_BT)
        weight_BT = batch.importance_weight_BT
        loss_BT = terms.loss_BT if weight_BT is None else weight_BT.detach() * terms.loss_BT
        loss = totals.mean(on_valid(loss_BT, policy_mask_BT), batch.mask_BT)
        ratio_BT = terms.ratio_BT
        clips = {
            "clip_low": terms.clip_low_BT,
            "clip_high": terms.clip_high_BT,
            "dual_clip": terms.dual_clip_BT,
        }
        none_BT = torch.zeros_like(policy_mask_BT)
        return loss, {
            "policy": loss.detach(),
            "ratio_sum": ratio_BT.sum(),
            "ratio_tokens": batch.on_policy_mask_BT.sum(),
            "ratio_max": ratio_BT.max() if ratio_BT.numel() else ratio_BT.new_zeros(()),
            **{
                f"{name}_tokens": ((none_BT if clip_BT is None else clip_BT) & policy_mask_BT).sum()
                for name, clip_BT in clips.items()
            },
        }


@dataclass(frozen=True)
class PolicyLoss(Surrogate):
    """The clipped policy loss (Eq. 3). GSPO is `ratio=sequence` with narrow clips.

    Subclasses with a loss of their own override `terms`.
    """

    bounds: ClassVar[Bounds] = {**Surrogate.bounds, "clip_low": (0, 1), "clip_high": (0, ANY)}

    clip_low: float = 0.2
    """epsilon_l of Eq. 3: the ratio is clipped at 1 - clip_low; the value is DAPO's, not in the paper."""
    clip_high: float = 0.28
    """epsilon_h of Eq. 3: the ratio is clipped at 1 + clip_high; the value is DAPO's, not in the paper."""
    dual_clip: float | None = 3.0
    """Bound on a negative sample's loss, in units of -A; null for none. Not in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_dual_clip(self.dual_clip)

    def terms(
        self, logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantage_BT: Tensor, mask_BT: Tensor
    ) -> PolicyTerms:
        return policy_terms(
            logprobs_BT,
            old_logprobs_BT,
            advantage_BT,
            mask_BT,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            dual_clip=self.dual_clip,
        )
