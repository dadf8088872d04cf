"""From token values to one number, over a *global* minibatch whatever the micro-batch split."""

from __future__ import annotations

from torch import Tensor

from pivot.method.numerics import on_valid
from pivot.method.shapes import check_floating, check_mask


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
    """The given normaliser or, without one, what was counted; never below 1, so that nothing gives 0."""
    if given is None:
        return counted.clamp(min=1)
    return given.clamp(min=1) if isinstance(given, Tensor) else max(given, 1)
