"""Advantages: within a group (Eq. 2), modulated by visual utility (Eq. 14) and protected (Eq. 15)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pivot.method.numerics import at_least_float32, on_valid
from pivot.method.part import ANY, Bounds, Part
from pivot.method.shapes import check_floating, check_mask, check_range


@torch.no_grad()
def group_advantage(rewards_PG: Tensor, *, epsilon: float = 1e-6, normalise_std: bool = True) -> Tensor:
    """A_i = (R_i - mean R) / (std R + epsilon) within each prompt's group (Eq. 2).

    The standard deviation is the unbiased one (G - 1). A group of equal rewards, and so a group of one, gets
    exactly 0. The same function normalises the format reward on its own, as GDPO does. No gradient.

    Args:
        rewards_PG: [P, G].
        epsilon: added to the standard deviation.
        normalise_std: false leaves the division out, A_i = R_i - mean R, as CalibRL's code does.

    Returns:
        [P, G].
    """
    check_floating("rewards_PG", rewards_PG, ("P", "G"))
    rewards_PG = at_least_float32(rewards_PG)
    if rewards_PG.numel() == 0 or rewards_PG.shape[1] == 1:
        return torch.zeros_like(rewards_PG)
    centred_PG = rewards_PG - rewards_PG.mean(dim=1, keepdim=True)
    is_equal_P1 = rewards_PG.amax(dim=1, keepdim=True) == rewards_PG.amin(dim=1, keepdim=True)
    scale_P1 = rewards_PG.std(dim=1, keepdim=True) + epsilon if normalise_std else 1.0
    return (centred_PG / scale_P1).masked_fill(is_equal_P1, 0.0)


@torch.no_grad()
def normalised_advantage(
    rewards_PG: Tensor,
    *,
    baseline: str = "group",
    std_over: str | None = "group",
    epsilon: float = 1e-6,
) -> Tensor:
    """A_i = (R_i - b_i) / (std + epsilon), the rules of RLOO, REINFORCE++ and its variant with a group baseline.

    b_i is the mean of the group, of the group's other responses (RLOO), or of the whole batch (REINFORCE++); std is
    that of R within the group, that of R - b over the whole batch, or left out. Both are unbiased (n - 1), and a group
    or batch of equal values gets exactly 0. No gradient.

    Args:
        rewards_PG: [P, G], all groups of a step.
        baseline: `group`, `leave_one_out` or `batch`.
        std_over: `group`, `batch` or None.
        epsilon: added to the standard deviation.

    Returns:
        [P, G].
    """
    check_floating("rewards_PG", rewards_PG, ("P", "G"))
    rewards_PG = at_least_float32(rewards_PG)
    size = rewards_PG.shape[1]
    if rewards_PG.numel() == 0:
        return torch.zeros_like(rewards_PG)
    whole, group = (0, 1), (1,)
    over = whole if baseline == "batch" else group
    centred_PG = rewards_PG - rewards_PG.mean(dim=over, keepdim=True)
    is_equal = rewards_PG.amax(dim=over, keepdim=True) == rewards_PG.amin(dim=over, keepdim=True)
    centred_PG = centred_PG.masked_fill(is_equal, 0.0)
    if baseline == "leave_one_out":
        centred_PG = centred_PG * (size / max(size - 1, 1))
    if std_over is None:
        return centred_PG
    values_PG, over = (rewards_PG, group) if std_over == "group" else (centred_PG, whole)
    if values_PG.numel() == 1 or (over == group and size == 1):
        return torch.zeros_like(centred_PG)
    return centred_PG / (values_PG.std(dim=over, keepdim=True) + epsilon)


@torch.no_grad()
def add_visual_advantage(advantage_B: Tensor, utility_BT: Tensor, mask_BT: Tensor, *, beta: float) -> Tensor:
    """A'_t = A + beta * |A| * U_t (Eq. 14), [B, T]; 0 where masked. No gradient."""
    check_floating("utility_BT", utility_BT, ("B", "T"))
    check_floating("advantage_B", advantage_B, utility_BT.shape[:1])
    check_mask("mask_BT", mask_BT, utility_BT.shape)
    check_range("beta", beta, 0.0, float("inf"))
    valid_BT = mask_BT.bool()
    advantage_B1 = at_least_float32(advantage_B)[:, None]
    return on_valid(advantage_B1 + beta * advantage_B1.abs() * on_valid(utility_BT, valid_BT), valid_BT)


@torch.no_grad()
def protect_sign(advantage_BT: Tensor, correct_B: Tensor) -> Tensor:
    """max(A', 0) for correct responses, min(A', 0) for wrong ones (Eq. 15), [B, T]. No gradient.

    Args:
        advantage_BT: [B, T], the modulated advantage A'.
        correct_B: [B], bool or float: the accuracy reward R.
    """
    check_floating("advantage_BT", advantage_BT, ("B", "T"))
    check_mask("correct_B", correct_B, advantage_BT.shape[:1])
    return torch.where(is_correct(correct_B)[:, None], advantage_BT.clamp(min=0), advantage_BT.clamp(max=0))


def modulate_advantage(
    advantage_B: Tensor, utility_BT: Tensor, correct_B: Tensor, mask_BT: Tensor, *, beta: float
) -> Tensor:
    """The final token advantage of the accuracy reward: Eq. 14, then Eq. 15.

    Args:
        advantage_B: [B], the group advantage A.
        utility_BT: [B, T], U.
        correct_B: [B], bool or float: the accuracy reward R.
        mask_BT: [B, T].
        beta: the scaling factor; 0 leaves A as it is.

    Returns:
        [B, T], 0 where masked; no gradient.
    """
    return protect_sign(add_visual_advantage(advantage_B, utility_BT, mask_BT, beta=beta), correct_B)


def is_correct(correct_B: Tensor) -> Tensor:
    """A reward above one half counts as correct, [B] bool."""
    return correct_B if correct_B.dtype == torch.bool else correct_B > 0.5


@dataclass(frozen=True)
class GroupAdvantage(Part):
    """How rewards become advantages.

    Subclasses with an advantage of their own override `__call__`.
    """

    bounds: ClassVar[Bounds] = {"format_coef": (0, ANY)}

    normalise_std: bool = True
    """Divide accuracy and format advantages by their group's standard deviation (Eq. 2); CalibRL's script: false."""
    format_coef: float = 0.1
    """Weight of the group-decoupled format advantage (App. C.2)."""
    format_position: Literal["after", "before"] = "after"
    """Add the format advantage after or before modulation and sign protection. Not in the paper."""
    baseline: Literal["group", "leave_one_out", "batch"] = "group"
    """Mean that is subtracted: the group's (Eq. 2), that of its other responses (RLOO), the batch's (REINFORCE++)."""
    std_over: Literal["group", "batch"] = "group"
    """Standard deviation that is divided by: the group's (Eq. 2) or the batch's (REINFORCE++)."""

    def __call__(self, rewards_PG: Tensor) -> Tensor:
        """[P, G] advantages of accuracy rewards or of format rewards."""
        if self.baseline == "group" and self.std_over == "group":
            return group_advantage(rewards_PG, normalise_std=self.normalise_std)
        std_over = self.std_over if self.normalise_std else None
        return normalised_advantage(rewards_PG, baseline=self.baseline, std_over=std_over)
