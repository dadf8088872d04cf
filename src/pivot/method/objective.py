"""The final loss (Eq. 16) of any method, for one micro-batch of a global minibatch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pivot.method.aggregation import sequence_mean, token_mean
from pivot.method.batch import Batch
from pivot.method.calibration import (
    BY_INDEX,
    GAPS,
    calibration_terms,
    count_anchored_tokens,
    leaky_margin,
    softplus_margin,
)
from pivot.method.entropy import exact_penalty, nll_penalty
from pivot.method.numerics import on_valid
from pivot.method.offpolicy import sft_loss, shaped_ratio_terms
from pivot.method.papo import double_entropy, perception_divergence
from pivot.method.policy import PolicyTerms, policy_terms, reference_kl
from pivot.method.shapes import check_mask
from pivot.method.switches import Method


@dataclass(frozen=True)
class ObjectiveTotals:
    """Normalisers of the *global* minibatch, over all its micro-batches and ranks; they add up."""

    num_tokens: float
    """Valid response tokens."""
    num_sequences: float
    """Responses with a valid token."""
    num_calibrated_tokens: float = 0
    """Valid tokens of rows that have an anchor."""
    num_anchor_tokens: float = 0
    """Tokens of the anchors that are supervised targets (Off-SFT)."""

    def __add__(self, other: ObjectiveTotals) -> ObjectiveTotals:
        return ObjectiveTotals(
            self.num_tokens + other.num_tokens,
            self.num_sequences + other.num_sequences,
            self.num_calibrated_tokens + other.num_calibrated_tokens,
            self.num_anchor_tokens + other.num_anchor_tokens,
        )


def count_totals(method: Method, batch: Batch) -> ObjectiveTotals:
    """The normalisers of these rows; sum them over the micro-batches of a minibatch."""
    responses = batch.responses()
    valid_BT = responses.mask_BT.bool()
    anchors = _anchors(method, responses)
    return ObjectiveTotals(
        num_tokens=int(valid_BT.sum()),
        num_sequences=int(valid_BT.any(dim=1).sum()),
        num_calibrated_tokens=0 if anchors is None else int(count_anchored_tokens(anchors, valid_BT)),
        num_anchor_tokens=0 if batch.target_B is None else int(batch.mask_BT[batch.target_B].bool().sum()),
    )


def objective(method: Method, batch: Batch, totals: ObjectiveTotals) -> tuple[Tensor, dict[str, Tensor]]:
    """L_RLVR + lambda_exp * L_exp (Eq. 16) and every other term the method turns on.

    Each term is this micro-batch's sum over the *global* minibatch's normaliser: losses, gradients and values
    of the micro-batches add up to those of the minibatch, however it is split.

    Returns:
        The loss, and detached scalars: the unweighted terms that are on (`policy`, `kl`, `entropy`,
        `perception`, `double_entropy`, `calibration`, `sft`, `off_policy`), all but `ratio_max` to be added
        up over micro-batches, and `ratio_sum`, `ratio_tokens`, `ratio_max`, `clip_low_tokens`,
        `clip_high_tokens`, `dual_clip_tokens`.
    """
    responses = batch.responses()
    logprobs_BT, policy_mask_BT = responses.given("new_logprobs_BT"), responses.given("policy_mask_BT")
    check_mask("mask_BT", responses.mask_BT, logprobs_BT.shape)
    check_mask("policy_mask_BT", policy_mask_BT, logprobs_BT.shape)
    terms = policy_terms(
        logprobs_BT,
        responses.old_logprobs_BT,
        responses.given("advantage_BT"),
        responses.on_policy_mask_BT,
        clip_low=method.clip_low,
        clip_high=method.clip_high,
        dual_clip=method.dual_clip,
    )
    loss = _aggregate(method, on_valid(terms.loss_BT, policy_mask_BT.bool()), responses, totals)
    values = {"policy": loss.detach(), **_policy_metrics(terms, responses)}
    for term in TERMS:
        coef = term.coef(method)
        if coef != 0:
            value = term.value(method, batch if term.name == "sft" else responses, totals)
            values[term.name] = value.detach()
            loss = loss + coef * value
    return loss, values


def _aggregate(method: Method, values_BT: Tensor, batch: Batch, totals: ObjectiveTotals) -> Tensor:
    """The method's mean over all valid tokens; tokens left out of `values_BT` hold 0 and still count."""
    if method.aggregation == "sequence":
        return sequence_mean(values_BT, batch.mask_BT, num_sequences=totals.num_sequences)
    return token_mean(values_BT, batch.mask_BT, num_tokens=totals.num_tokens)


@torch.no_grad()
def _policy_metrics(terms: PolicyTerms, batch: Batch) -> dict[str, Tensor]:
    kept_BT = batch.given("policy_mask_BT").bool()
    return {
        "ratio_sum": terms.ratio_BT.sum(),
        "ratio_tokens": batch.on_policy_mask_BT.sum(),
        "ratio_max": terms.ratio_BT.max() if terms.ratio_BT.numel() else terms.ratio_BT.new_zeros(()),
        "clip_low_tokens": (terms.clip_low_BT & kept_BT).sum(),
        "clip_high_tokens": (terms.clip_high_BT & kept_BT).sum(),
        "dual_clip_tokens": (terms.dual_clip_BT & kept_BT).sum(),
    }


def _kl(method: Method, batch: Batch, totals: ObjectiveTotals) -> Tensor:
    divergence_BT = reference_kl(
        batch.given("new_logprobs_BT"), batch.given("reference_logprobs_BT"), batch.on_policy_mask_BT
    )
    return _aggregate(method, divergence_BT, batch, totals)


def _entropy(method: Method, batch: Batch, totals: ObjectiveTotals) -> Tensor:
    mask_BT = batch.on_policy_mask_BT
    if method.entropy_form == "exact":
        return exact_penalty(batch.given("new_entropy_BT"), mask_BT, num_tokens=totals.num_tokens)
    return nll_penalty(batch.given("new_logprobs_BT"), mask_BT, num_tokens=totals.num_tokens)


def _perception(method: Method, batch: Batch, totals: ObjectiveTotals) -> Tensor:
    return perception_divergence(
        batch.given("new_logprobs_BT"),
        batch.given("corrupted_logprobs_BT"),
        batch.on_policy_mask_BT,
        maximum=method.perception_clip,
        num_tokens=totals.num_tokens,
    )


def _double_entropy(method: Method, batch: Batch, totals: ObjectiveTotals) -> Tensor:
    return double_entropy(
        batch.given("new_logprobs_BT"),
        batch.given("corrupted_logprobs_BT"),
        batch.on_policy_mask_BT,
        clean_share=method.clean_entropy_coef / _double_entropy_coef(method),
        num_tokens=totals.num_tokens,
    )


def _double_entropy_coef(method: Method) -> float:
    return method.clean_entropy_coef + method.corrupted_entropy_coef


def _calibration(method: Method, batch: Batch, totals: ObjectiveTotals) -> Tensor:
    anchors, logprobs_BT = _anchors(method, batch), batch.given("new_logprobs_BT")
    if anchors is None:
        # No replayed group here: a zero that stays attached to the graph.
        return 0.0 * token_mean(logprobs_BT, batch.mask_BT)
    gap_BT = GAPS[method.calibration](logprobs_BT, anchors, batch.mask_BT)
    margin = softplus_margin() if method.calibration_shape == "softplus" else leaky_margin(method.leaky_slope)
    terms_BT = calibration_terms(
        gap_BT, batch.given("group_advantage_B"), batch.correct_B, batch.mask_BT, margin=margin
    )
    over_all = method.calibration_tokens == "all"
    return terms_BT.sum() / max(totals.num_tokens if over_all else totals.num_calibrated_tokens, 1)


def _anchors(method: Method, batch: Batch) -> Tensor | None:
    """The anchors' log-probs that the form of the gap asks for."""
    return batch.anchor_logprobs_BT if method.calibration in BY_INDEX else batch.anchor_logprob_B


def _off_policy(method: Method, batch: Batch, totals: ObjectiveTotals) -> Tensor:
    terms_BT = shaped_ratio_terms(
        batch.given("new_logprobs_BT"),
        batch.old_logprobs_BT,
        batch.given("advantage_BT"),
        batch.mask_BT.bool() & ~batch.on_policy_mask_BT,
        shaping=method.off_policy_shaping,
    )
    return _aggregate(method, terms_BT, batch, totals)


def _sft(method: Method, batch: Batch, totals: ObjectiveTotals) -> Tensor:
    logprobs_BT = batch.given("new_logprobs_BT")
    if batch.target_B is None:
        return 0.0 * token_mean(logprobs_BT, batch.mask_BT)
    rows = batch.target_B
    return sft_loss(logprobs_BT[rows], batch.mask_BT[rows], num_tokens=totals.num_anchor_tokens)


class _Term(NamedTuple):
    """A summand of the loss: its name, its weight in a method (0 is off and costs nothing), its value."""

    name: str
    coef: Callable[[Method], float]
    value: Callable[[Method, Batch, ObjectiveTotals], Tensor]


TERMS = (
    _Term("kl", lambda method: method.reference_kl_coef, _kl),
    _Term("entropy", lambda method: method.entropy_coef, _entropy),
    _Term("perception", lambda method: -method.perception_coef, _perception),
    _Term("double_entropy", _double_entropy_coef, _double_entropy),
    _Term(
        "calibration", lambda method: method.anchor_coef * (method.anchor_use == "calibrate"), _calibration
    ),
    _Term("off_policy", lambda method: float(method.anchor_use == "off_policy"), _off_policy),
    _Term("sft", lambda method: method.anchor_coef * (method.anchor_use == "sft"), _sft),
)
"""Everything a method can add to the policy loss."""
