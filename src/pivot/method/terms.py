"""The other terms of a loss: the entropy penalty of all models, GRPO's KL, PAPO's terms, Off-PG and Off-SFT."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pivot.method.batch import Batch
from pivot.method.numerics import k3_divergence, on_valid, token_mean, valid_logprobs
from pivot.method.part import ANY, Bounds, LossTerm, Totals
from pivot.method.shapes import check_floating, check_mask


def nll_penalty(logprobs_BT: Tensor, mask_BT: Tensor, *, num_tokens: float | Tensor | None = None) -> Tensor:
    """Token mean of -log pi(y_t) on sampled tokens, as VPPO and PAPO compute it.

    Exactly on-policy the expectation of its gradient is zero: it estimates the entropy, but its gradient does
    not estimate the entropy's.
    """
    check_floating("logprobs_BT", logprobs_BT, ("B", "T"))
    check_mask("mask_BT", mask_BT, logprobs_BT.shape)
    return token_mean(-valid_logprobs(logprobs_BT, mask_BT.bool()), mask_BT, num_tokens=num_tokens)


@dataclass(frozen=True)
class EntropyPenalty(LossTerm):
    """The entropy penalty of all compared models."""

    name = "entropy"

    entropy_coef: float = 0.06
    """Weight of the entropy penalty of all models (Sec. 5.1)."""
    entropy_form: Literal["nll", "exact"] = "nll"
    """-log pi of sampled tokens as in VPPO's code, or the full-vocabulary entropy. Not in the paper."""

    @property
    def weight(self) -> float:
        return self.entropy_coef

    def needs(self) -> tuple[str, ...]:
        return ("new_entropy_BT",) if self.entropy_form == "exact" and self.entropy_coef != 0 else ()

    def __call__(self, batch: Batch, totals: Totals) -> Tensor:
        mask_BT = batch.on_policy_mask_BT
        if self.entropy_form == "exact":
            return token_mean(batch.given("new_entropy_BT"), mask_BT, num_tokens=totals.num_tokens)
        return nll_penalty(batch.given("new_logprobs_BT"), mask_BT, num_tokens=totals.num_tokens)


@dataclass(frozen=True)
class ReferenceKL(LossTerm):
    """GRPO's KL(policy || reference): k3 on sampled tokens, bounded at 10."""

    name = "kl"
    bounds: ClassVar[Bounds] = {"reference_kl_coef": (0, ANY)}

    reference_kl_coef: float = 0.01
    """Weight of the k3 divergence from the reference model (GRPO: 0.01)."""

    @property
    def weight(self) -> float:
        return self.reference_kl_coef

    def needs(self) -> tuple[str, ...]:
        return ("reference_logprobs_BT",) if self.reference_kl_coef > 0 else ()

    def __call__(self, batch: Batch, totals: Totals) -> Tensor:
        divergence_BT = k3_divergence(
            batch.given("new_logprobs_BT"), batch.given("reference_logprobs_BT"), batch.on_policy_mask_BT
        )
        return totals.mean(divergence_BT, batch.mask_BT)


@dataclass(frozen=True)
class Perception(LossTerm):
    """PAPO's perception term: the token mean of k3(log p, log q), which is *maximised*.

    With weight gamma this is a policy gradient with the token advantage gamma * c_t. log q is a constant.
    """

    name = "perception"
    bounds: ClassVar[Bounds] = {"perception_coef": (0, ANY), "perception_clip": (0, ANY)}

    perception_coef: float = 0.01
    """Weight of PAPO's perception term, a k3 divergence that is maximised (PAPO_D: 0.01)."""
    perception_clip: float = 10.0
    """Upper bound of the k3 of a token in PAPO and VPPO."""

    @property
    def weight(self) -> float:
        return -self.perception_coef

    def needs(self) -> tuple[str, ...]:
        return ("corrupted_logprobs_BT",)

    def __call__(self, batch: Batch, totals: Totals) -> Tensor:
        return token_mean(self.divergence(batch), batch.on_policy_mask_BT, num_tokens=totals.num_tokens)

    def divergence(self, batch: Batch) -> Tensor:
        """The k3 of each token, [B, T]."""
        return k3_divergence(
            batch.given("new_logprobs_BT"),
            batch.given("corrupted_logprobs_BT"),
            batch.on_policy_mask_BT,
            maximum=self.perception_clip,
        )


@dataclass(frozen=True)
class DoubleEntropy(LossTerm):
    """PAPO's double entropy: the weighted mean of -log p and -log q. log q is a constant without gradient."""

    name = "double_entropy"
    bounds: ClassVar[Bounds] = {"clean_entropy_coef": (0, ANY), "corrupted_entropy_coef": (0, ANY)}

    clean_entropy_coef: float = 0.03
    """Weight of the clean half of PAPO's double entropy (0.03)."""
    corrupted_entropy_coef: float = 0.03
    """Weight of the corrupted half of PAPO's double entropy (0.03); a constant without gradient."""

    @property
    def weight(self) -> float:
        return self.clean_entropy_coef + self.corrupted_entropy_coef

    def needs(self) -> tuple[str, ...]:
        return ("corrupted_logprobs_BT",)

    def __call__(self, batch: Batch, totals: Totals) -> Tensor:
        clean_BT, corrupted_BT = batch.given("new_logprobs_BT"), batch.given("corrupted_logprobs_BT").detach()
        mask_BT, num_tokens = batch.on_policy_mask_BT, totals.num_tokens
        clean_share = self.clean_entropy_coef / self.weight
        clean = nll_penalty(clean_BT, mask_BT, num_tokens=num_tokens)
        corrupted = nll_penalty(corrupted_BT, mask_BT, num_tokens=num_tokens)
        return clean_share * clean + (1 - clean_share) * corrupted


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


@dataclass(frozen=True)
class OffPolicy(LossTerm):
    """Off-PG: the experience takes a slot of its group and is trained on by policy gradient."""

    name = "off_policy"
    bounds: ClassVar[Bounds] = {"off_policy_shaping": (1e-9, ANY)}

    off_policy_shaping: float = 0.1
    """gamma of Off-PG's shaped ratio w / (w + gamma). Not in the paper."""

    @property
    def weight(self) -> float:
        return 1.0

    def needs(self) -> tuple[str, ...]:
        return ("off_policy_B",)

    def __call__(self, batch: Batch, totals: Totals) -> Tensor:
        terms_BT = shaped_ratio_terms(
            batch.given("new_logprobs_BT"),
            batch.old_logprobs_BT,
            batch.given("advantage_BT"),
            batch.mask_BT.bool() & ~batch.on_policy_mask_BT,
            shaping=self.off_policy_shaping,
        )
        return totals.mean(terms_BT, batch.mask_BT)


@dataclass(frozen=True)
class SupervisedTarget(LossTerm):
    """Off-SFT: the token mean of -log pi over the anchors' own tokens."""

    name = "sft"
    bounds: ClassVar[Bounds] = {"anchor_coef": (0, ANY)}

    anchor_coef: float = 0.3
    """lambda_exp of Eq. 16, for calibration and Off-SFT. The paper prints no value; a validation split chose ours."""

    @property
    def weight(self) -> float:
        return self.anchor_coef

    def needs(self) -> tuple[str, ...]:
        return ("target_B",)

    def count(self, batch: Batch) -> int:
        """The anchors' tokens."""
        return 0 if batch.target_B is None else int(batch.mask_BT[batch.target_B].bool().sum())

    def __call__(self, batch: Batch, totals: Totals) -> Tensor:
        logprobs_BT, rows = batch.given("new_logprobs_BT"), batch.target_B
        if rows is None:
            # No anchor here: a zero that stays attached to the graph.
            return 0.0 * token_mean(logprobs_BT, batch.mask_BT)
        return nll_penalty(logprobs_BT[rows], batch.mask_BT[rows], num_tokens=totals.counts[self.name])
