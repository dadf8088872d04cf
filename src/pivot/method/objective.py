"""The final loss (Eq. 16) of any method, for one micro-batch of a global minibatch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pivot.method.aggregation import sequence_mean, token_mean
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
class ObjectiveInputs:
    """The rows of a micro-batch; only `logprobs_BT`, `entropy_BT` and `sft_logprobs_AT` carry gradients."""

    logprobs_BT: Tensor
    """Under the weights that are trained."""
    old_logprobs_BT: Tensor
    """Under the weights at the start of the step; for off-policy rows the recorded ones."""
    advantage_BT: Tensor
    mask_BT: Tensor
    policy_mask_BT: Tensor
    """Tokens in the policy loss: VPPO's choice, or the mask."""
    group_advantage_B: Tensor
    """A_i of the accuracy reward."""
    correct_B: Tensor
    entropy_BT: Tensor | None = None
    """Full-vocabulary entropy, for the `exact` penalty."""
    corrupted_logprobs_BT: Tensor | None = None
    """log q at the start of the step, for PAPO."""
    reference_logprobs_BT: Tensor | None = None
    anchor_logprob_B: Tensor | None = None
    """The anchor's mean token log-probability (`seq_sum`: their sum); NaN for rows without an anchor."""
    anchor_logprobs_BT: Tensor | None = None
    """`position`, `position_zero`: the anchor's token log-probabilities by index, NaN past its end."""
    off_policy_B: Tensor | None = None
    """bool: rows that are experiences in a slot of their group (Off-PG)."""
    sft_logprobs_AT: Tensor | None = None
    """The anchors' own token log-probabilities, with gradient (Off-SFT)."""
    sft_mask_AT: Tensor | None = None

    @property
    def on_policy_mask_BT(self) -> Tensor:
        """Valid tokens that the policy itself sampled in this step."""
        if self.off_policy_B is None:
            return self.mask_BT.bool()
        return self.mask_BT.bool() & ~self.off_policy_B.bool()[:, None]

    def anchor_for(self, form: str) -> Tensor | None:
        """The anchor's log-probabilities that a form of the gap asks for."""
        return self.anchor_logprobs_BT if form in BY_INDEX else self.anchor_logprob_B


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


def count_totals(method: Method, inputs: ObjectiveInputs) -> ObjectiveTotals:
    """The normalisers of these rows; sum them over the micro-batches of a minibatch."""
    valid_BT = inputs.mask_BT.bool()
    anchors = inputs.anchor_for(method.calibration)
    return ObjectiveTotals(
        num_tokens=int(valid_BT.sum()),
        num_sequences=int(valid_BT.any(dim=1).sum()),
        num_calibrated_tokens=0 if anchors is None else int(count_anchored_tokens(anchors, valid_BT)),
        num_anchor_tokens=0 if inputs.sft_mask_AT is None else int(inputs.sft_mask_AT.bool().sum()),
    )


def objective(
    method: Method, inputs: ObjectiveInputs, totals: ObjectiveTotals
) -> tuple[Tensor, dict[str, Tensor]]:
    """L_RLVR + lambda_exp * L_exp (Eq. 16) and every other term the method turns on.

    Each term is this micro-batch's sum over the *global* minibatch's normaliser: losses, gradients and values
    of the micro-batches add up to those of the minibatch, however it is split.

    Returns:
        The loss, and detached scalars: the unweighted terms that are on (`policy`, `kl`, `entropy`,
        `perception`, `double_entropy`, `calibration`, `sft`, `off_policy`), all but `ratio_max` to be added
        up over micro-batches, and `ratio_sum`, `ratio_tokens`, `ratio_max`, `clip_low_tokens`,
        `clip_high_tokens`, `dual_clip_tokens`.
    """
    check_mask("mask_BT", inputs.mask_BT, inputs.logprobs_BT.shape)
    check_mask("policy_mask_BT", inputs.policy_mask_BT, inputs.logprobs_BT.shape)
    terms = policy_terms(
        inputs.logprobs_BT,
        inputs.old_logprobs_BT,
        inputs.advantage_BT,
        inputs.on_policy_mask_BT,
        clip_low=method.clip_low,
        clip_high=method.clip_high,
        dual_clip=method.dual_clip,
    )
    loss = _aggregate(method, on_valid(terms.loss_BT, inputs.policy_mask_BT.bool()), inputs, totals)
    values = {"policy": loss.detach(), **_policy_metrics(terms, inputs)}
    for term in TERMS:
        coef = term.coef(method)
        if coef != 0:
            value = term.value(method, inputs, totals)
            values[term.name] = value.detach()
            loss = loss + coef * value
    return loss, values


def _aggregate(method: Method, values_BT: Tensor, inputs: ObjectiveInputs, totals: ObjectiveTotals) -> Tensor:
    """The method's mean over all valid tokens; tokens left out of `values_BT` hold 0 and still count."""
    if method.aggregation == "sequence":
        return sequence_mean(values_BT, inputs.mask_BT, num_sequences=totals.num_sequences)
    return token_mean(values_BT, inputs.mask_BT, num_tokens=totals.num_tokens)


@torch.no_grad()
def _policy_metrics(terms: PolicyTerms, inputs: ObjectiveInputs) -> dict[str, Tensor]:
    kept_BT = inputs.policy_mask_BT.bool()
    return {
        "ratio_sum": terms.ratio_BT.sum(),
        "ratio_tokens": inputs.on_policy_mask_BT.sum(),
        "ratio_max": terms.ratio_BT.max() if terms.ratio_BT.numel() else terms.ratio_BT.new_zeros(()),
        "clip_low_tokens": (terms.clip_low_BT & kept_BT).sum(),
        "clip_high_tokens": (terms.clip_high_BT & kept_BT).sum(),
        "dual_clip_tokens": (terms.dual_clip_BT & kept_BT).sum(),
    }


def _kl(method: Method, inputs: ObjectiveInputs, totals: ObjectiveTotals) -> Tensor:
    reference_BT = _given("reference_logprobs_BT", inputs.reference_logprobs_BT)
    divergence_BT = reference_kl(inputs.logprobs_BT, reference_BT, inputs.on_policy_mask_BT)
    return _aggregate(method, divergence_BT, inputs, totals)


def _entropy(method: Method, inputs: ObjectiveInputs, totals: ObjectiveTotals) -> Tensor:
    mask_BT = inputs.on_policy_mask_BT
    if method.entropy_form == "exact":
        entropy_BT = _given("entropy_BT", inputs.entropy_BT)
        return exact_penalty(entropy_BT, mask_BT, num_tokens=totals.num_tokens)
    return nll_penalty(inputs.logprobs_BT, mask_BT, num_tokens=totals.num_tokens)


def _perception(method: Method, inputs: ObjectiveInputs, totals: ObjectiveTotals) -> Tensor:
    return perception_divergence(
        inputs.logprobs_BT,
        _given("corrupted_logprobs_BT", inputs.corrupted_logprobs_BT),
        inputs.on_policy_mask_BT,
        maximum=method.perception_clip,
        num_tokens=totals.num_tokens,
    )


def _double_entropy(method: Method, inputs: ObjectiveInputs, totals: ObjectiveTotals) -> Tensor:
    return double_entropy(
        inputs.logprobs_BT,
        _given("corrupted_logprobs_BT", inputs.corrupted_logprobs_BT),
        inputs.on_policy_mask_BT,
        clean_share=method.clean_entropy_coef / _double_entropy_coef(method),
        num_tokens=totals.num_tokens,
    )


def _double_entropy_coef(method: Method) -> float:
    return method.clean_entropy_coef + method.corrupted_entropy_coef


def _calibration(method: Method, inputs: ObjectiveInputs, totals: ObjectiveTotals) -> Tensor:
    anchors = inputs.anchor_for(method.calibration)
    if anchors is None:
        # No replayed group here: a zero that stays attached to the graph.
        return 0.0 * token_mean(inputs.logprobs_BT, inputs.mask_BT)
    gap_BT = GAPS[method.calibration](inputs.logprobs_BT, anchors, inputs.mask_BT)
    margin = softplus_margin() if method.calibration_shape == "softplus" else leaky_margin(method.leaky_slope)
    terms_BT = calibration_terms(
        gap_BT, inputs.group_advantage_B, inputs.correct_B, inputs.mask_BT, margin=margin
    )
    over_all = method.calibration_tokens == "all"
    return terms_BT.sum() / max(totals.num_tokens if over_all else totals.num_calibrated_tokens, 1)


def _off_policy(method: Method, inputs: ObjectiveInputs, totals: ObjectiveTotals) -> Tensor:
    terms_BT = shaped_ratio_terms(
        inputs.logprobs_BT,
        inputs.old_logprobs_BT,
        inputs.advantage_BT,
        inputs.mask_BT.bool() & ~inputs.on_policy_mask_BT,
        shaping=method.off_policy_shaping,
    )
    return _aggregate(method, terms_BT, inputs, totals)


def _sft(method: Method, inputs: ObjectiveInputs, totals: ObjectiveTotals) -> Tensor:
    if inputs.sft_logprobs_AT is None:
        return 0.0 * token_mean(inputs.logprobs_BT, inputs.mask_BT)
    mask_AT = _given("sft_mask_AT", inputs.sft_mask_AT)
    return sft_loss(inputs.sft_logprobs_AT, mask_AT, num_tokens=totals.num_anchor_tokens)


def _given(name: str, value: Tensor | None) -> Tensor:
    if value is None:
        raise ValueError(f"{name} must be a tensor for this method, got None")
    return value


class _Term(NamedTuple):
    """A summand of the loss: its name, its weight in a method (0 is off and costs nothing), its value."""

    name: str
    coef: Callable[[Method], float]
    value: Callable[[Method, ObjectiveInputs, ObjectiveTotals], Tensor]


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
