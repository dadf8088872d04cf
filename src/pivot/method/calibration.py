"""The calibration loss of self-calibrated experience replay (Eq. 8-9), its named forms, and CalibRL's guide.

All forms are |A_i| f(-s_i Delta), token by token, over the same normaliser; they differ in the gap Delta and
in the margin function f.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from pivot.method.advantage import is_correct
from pivot.method.batch import Batch
from pivot.method.numerics import (
    LOGPROB_FLOOR,
    at_least_float32,
    at_least_one,
    on_valid,
    token_mean,
    valid_logprobs,
)
from pivot.method.part import ANY, Bounds, LossTerm, Totals
from pivot.method.shapes import check_floating, check_mask

ROUNDING = 1e-5
"""How far the log-probs of one token may lie apart in two passes over the same weights, in float32."""
Margin = Callable[[Tensor], Tensor]
"""f, element by element."""


def anchor_mean_gap(logprobs_BT: Tensor, anchor_logprob_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Delta_t = log pi(y_t) - sg[mean log pi(y_exp)]: its mean over t is the length-normalised gap."""
    return _token_logprobs(logprobs_BT, mask_BT) - _anchor_B1(anchor_logprob_B, logprobs_BT)


def position_gap(logprobs_BT: Tensor, anchor_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Delta_t = log pi(y_t) - sg[log pi(y_exp,t)], by token index; NaN past the anchor's end (CalibRL)."""
    check_floating("anchor_logprobs_BT", anchor_logprobs_BT, logprobs_BT.shape)
    anchor_BT = at_least_float32(anchor_logprobs_BT.detach()).clamp(min=LOGPROB_FLOOR)
    return _token_logprobs(logprobs_BT, mask_BT) - anchor_BT


def position_zero_gap(logprobs_BT: Tensor, anchor_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """`position_gap`, but log pi(y_t) - 0 past the anchor's end, as CalibRL's code has it; NaN without an anchor."""
    check_floating("anchor_logprobs_BT", anchor_logprobs_BT, logprobs_BT.shape)
    past_end_BT = anchor_logprobs_BT.isnan() & _has_anchor(anchor_logprobs_BT)
    return position_gap(logprobs_BT, anchor_logprobs_BT.masked_fill(past_end_BT, 0.0), mask_BT)


def sequence_mean_gap(logprobs_BT: Tensor, anchor_logprob_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Delta_i = mean log pi(y) - sg[mean log pi(y_exp)], the same for each token of a response."""
    length_B1 = mask_BT.bool().sum(dim=1, keepdim=True).clamp(min=1)
    mean_B1 = _token_logprobs(logprobs_BT, mask_BT).sum(dim=1, keepdim=True) / length_B1
    return (mean_B1 - _anchor_B1(anchor_logprob_B, logprobs_BT)).expand(logprobs_BT.shape)


def sequence_sum_gap(logprobs_BT: Tensor, anchor_logprob_B: Tensor, mask_BT: Tensor) -> Tensor:
    """Delta_i = log pi(y) - sg[log pi(y_exp)], the literal Eq. 8, from the anchor's *summed* log-probs."""
    total_B1 = _token_logprobs(logprobs_BT, mask_BT).sum(dim=1, keepdim=True)
    return (total_B1 - _anchor_B1(anchor_logprob_B, logprobs_BT)).expand(logprobs_BT.shape)


GAPS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "anchor_mean": anchor_mean_gap,
        "position": position_gap,
        "position_zero": position_zero_gap,
        "seq_mean": sequence_mean_gap,
        "seq_sum": sequence_sum_gap,
    }
)
"""The forms of the gap Delta: (logprobs_BT, the anchor's, mask_BT) -> [B, T], NaN without an anchor."""

BY_INDEX = frozenset({"position", "position_zero"})
"""The forms that take the anchor's log-probabilities token by token, [B, T]; the others one number, [B]."""


def leaky_margin(slope: float = 0.5) -> Margin:
    """f = leaky ReLU (CalibRL): x above 0, slope * x below.

    A response that begins like its demonstration has gaps of 0 there, up to the rounding of two forward passes, which
    must not decide between two slopes: gaps within `ROUNDING` of 0 count as 0.
    """
    return lambda values: torch.where(values > ROUNDING, values, slope * values)


def calibration_terms(
    gap_BT: Tensor, advantage_B: Tensor, correct_B: Tensor, mask_BT: Tensor, *, margin: Margin
) -> Tensor:
    """|A_i| f(-s_i Delta) with s = +1 for correct responses and -1 for wrong ones (Eq. 9).

    Args:
        gap_BT: [B, T], Delta; NaN where there is no anchor. Carries the gradient.
        advantage_B: [B], the accuracy group advantage, before modulation and without format.
        correct_B: [B], bool or float: the accuracy reward R.
        mask_BT: [B, T].
        margin: f.

    Returns:
        [B, T], 0 where masked and where there is no anchor, yet attached to the graph.
    """
    check_floating("advantage_B", advantage_B, gap_BT.shape[:1])
    check_mask("correct_B", correct_B, gap_BT.shape[:1])
    counted_BT = mask_BT.bool() & ~gap_BT.isnan()
    sign_B1 = torch.where(is_correct(correct_B), 1.0, -1.0)[:, None].to(gap_BT.dtype)
    weight_B1 = at_least_float32(advantage_B.detach()).abs()[:, None]
    terms_BT = weight_B1 * margin(-sign_B1 * gap_BT.masked_fill(~counted_BT, 0.0))
    return on_valid(terms_BT, counted_BT)


def calibration_loss(
    logprobs_BT: Tensor,
    anchor_logprob_B: Tensor,
    advantage_B: Tensor,
    correct_B: Tensor,
    mask_BT: Tensor,
    *,
    num_tokens: float | Tensor | None = None,
    form: str = "anchor_mean",
    margin: Margin = functional.softplus,
) -> Tensor:
    """L_exp = sum_t |A_i| softplus(-s_i Delta_t) / num_tokens (Eq. 8-9).

    Args:
        logprobs_BT: [B, T], under the weights that are trained; carries the gradient.
        anchor_logprob_B: [B], the anchor's mean token log-probability; NaN for rows without an anchor, which
            contribute 0. No gradient.
        advantage_B: [B], the accuracy group advantage, before modulation and without format.
        correct_B: [B], bool or float: the accuracy reward R.
        mask_BT: [B, T].
        num_tokens: tokens of the global minibatch's anchored rows; by default those of this batch.
        form: of the gap Delta, one of `GAPS`. The forms `BY_INDEX` take the anchor's log-probs by token index,
            [B, T], NaN past its end and for rows without an anchor.
        margin: f in place of softplus.
    """
    gap_BT = GAPS[form](logprobs_BT, anchor_logprob_B, mask_BT)
    terms_BT = calibration_terms(gap_BT, advantage_B, correct_B, mask_BT, margin=margin)
    return terms_BT.sum() / at_least_one(num_tokens, count_anchored_tokens(anchor_logprob_B, mask_BT))


def count_anchored_tokens(anchor_logprobs: Tensor, mask_BT: Tensor) -> Tensor:
    """Valid tokens of the rows that have an anchor: the calibration loss's normaliser.

    `anchor_logprobs` is [B], or [B, T] in the forms `BY_INDEX`; a row that is NaN throughout has no anchor.
    """
    return (mask_BT.bool() & _has_anchor(anchor_logprobs)).sum()


@dataclass(frozen=True)
class Calibration(LossTerm):
    """lambda_exp * L_exp: right responses rise above their anchor's confidence, wrong ones sink below it."""

    name = "calibration"
    bounds: ClassVar[Bounds] = {"anchor_coef": (0, ANY), "leaky_slope": (0, 1)}

    anchor_coef: float = 0.3
    """lambda_exp of Eq. 16, for calibration and Off-SFT. The paper prints no value; a validation split chose ours."""
    calibration: Literal["anchor_mean", "position", "position_zero", "seq_mean", "seq_sum"] = "anchor_mean"
    """Eq. 8 as a token-level gap; seq_sum is the literal equation, position_zero CalibRL's code. Not in the paper."""
    calibration_shape: Literal["softplus", "leaky_relu"] = "softplus"
    """The margin function of Eq. 9; leaky_relu is CalibRL's."""
    leaky_slope: float = 0.5
    """Slope of CalibRL's leaky_relu below 0."""
    calibration_tokens: Literal["replayed", "all"] = "replayed"
    """Tokens that normalise the calibration loss. Not in the paper."""

    @property
    def weight(self) -> float:
        return self.anchor_coef

    def needs(self) -> tuple[str, ...]:
        return ("anchor_logprobs_BT",) if self.calibration in BY_INDEX else ("anchor_logprob_B",)

    def count(self, batch: Batch) -> int:
        """Tokens of rows with an anchor."""
        anchors = self._anchors(batch)
        return 0 if anchors is None else int(count_anchored_tokens(anchors, batch.mask_BT))

    def __call__(self, batch: Batch, totals: Totals) -> Tensor:
        anchors, logprobs_BT = self._anchors(batch), batch.given("new_logprobs_BT")
        if anchors is None:
            # No replayed group here: a zero that stays attached to the graph.
            return 0.0 * token_mean(logprobs_BT, batch.mask_BT)
        over_all = self.calibration_tokens == "all"
        return calibration_loss(
            logprobs_BT,
            anchors,
            batch.given("group_advantage_B"),
            batch.correct_B,
            batch.mask_BT,
            num_tokens=totals.num_tokens if over_all else totals.counts[self.name],
            form=self.calibration,
            margin=functional.softplus
            if self.calibration_shape == "softplus"
            else leaky_margin(self.leaky_slope),
        )

    def _anchors(self, batch: Batch) -> Tensor | None:
        (name,) = self.needs()
        return getattr(batch, name)


def _has_anchor(anchor_logprobs: Tensor) -> Tensor:
    """[B, 1] bool, of [B] or [B, T]."""
    is_given = ~anchor_logprobs.isnan()
    return is_given[:, None] if is_given.dim() == 1 else is_given.any(dim=1, keepdim=True)


def _token_logprobs(logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    check_floating("logprobs_BT", logprobs_BT, ("B", "T"))
    check_mask("mask_BT", mask_BT, logprobs_BT.shape)
    return valid_logprobs(logprobs_BT, mask_BT.bool())


def _anchor_B1(anchor_logprob_B: Tensor, logprobs_BT: Tensor) -> Tensor:
    check_floating("anchor_logprob_B", anchor_logprob_B, logprobs_BT.shape[:1])
    return at_least_float32(anchor_logprob_B.detach())[:, None]
