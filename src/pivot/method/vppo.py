"""VPPO's token mask and advantage shaping. Nothing here carries a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pivot.method.batch import Batch, Diagnostics
from pivot.method.numerics import k3_divergence, on_valid
from pivot.method.part import ANY, Bounds
from pivot.method.shapes import check_floating, check_index, check_mask, check_range
from pivot.method.visual import VisualPart


@torch.no_grad()
def top_token_mask(dependency_BT: Tensor, mask_BT: Tensor, *, share: float = 0.4) -> Tensor:
    """The ceil(share * n) tokens of each response with the highest dependency, [B, T] bool.

    Ties go to the earlier token.

    Args:
        dependency_BT: [B, T], k3 of each sampled token.
        mask_BT: [B, T].
        share: in [0, 1].
    """
    check_floating("dependency_BT", dependency_BT, ("B", "T"))
    check_mask("mask_BT", mask_BT, dependency_BT.shape)
    check_range("share", share, 0.0, 1.0)
    valid_BT = mask_BT.bool()
    ranked_BT = on_valid(dependency_BT, valid_BT).masked_fill(~valid_BT, -torch.inf)
    order_BT = ranked_BT.argsort(dim=1, descending=True, stable=True)
    place_BT = order_BT.argsort(dim=1)
    # 0.07 * 100 is 7.000...1 in floating point.
    num_kept_B1 = torch.ceil(valid_BT.sum(dim=1, keepdim=True).double() * share - 1e-9)
    return valid_BT & (place_BT < num_kept_B1)


@torch.no_grad()
def shaping_factor(
    dependency_BT: Tensor, mask_BT: Tensor, *, floor: float = 0.9, minibatch_B: Tensor | None = None
) -> Tensor:
    """floor + n_i * (1 - floor) / mean n: the weight of each response's advantage, 1 on average.

    n_i is the response's mean dependency, min-max-normalised over its *global* minibatch, so the split into
    micro-batches and ranks changes nothing. Where all responses depend alike, every factor is 1.

    Args:
        dependency_BT: [B, T], k3 of each sampled token.
        mask_BT: [B, T].
        floor: the smallest factor.
        minibatch_B: [B], which minibatch each row belongs to; by default all rows are one minibatch.

    Returns:
        [B]; 1 for empty responses, which count nowhere.
    """
    check_floating("dependency_BT", dependency_BT, ("B", "T"))
    check_mask("mask_BT", mask_BT, dependency_BT.shape)
    check_range("floor", floor, 0.0, 1.0)
    valid_BT = mask_BT.bool()
    length_B = valid_BT.sum(dim=1)
    if minibatch_B is None:
        minibatch_B = torch.zeros_like(length_B)
    check_index("minibatch_B", minibatch_B, length_B.shape)
    mean_B = on_valid(dependency_BT, valid_BT).sum(dim=1) / length_B.clamp(min=1)
    factor_B = torch.ones_like(mean_B)
    counted_B = length_B > 0
    factor_B[counted_B] = _relative_to_minibatch(mean_B[counted_B], minibatch_B[counted_B].long(), floor)
    return factor_B


@dataclass(frozen=True)
class TokenSelection(VisualPart):
    """VPPO: the loss of the most image-dependent tokens alone, advantages shaped by each response's dependency."""

    bounds: ClassVar[Bounds] = {
        "token_keep_share": (0, 1),
        "shaping_floor": (0, 1),
        "perception_clip": (0, ANY),
    }

    token_keep_share: float = 0.4
    """Share of each response's tokens that stay in the policy loss, by visual dependency (VPPO: 0.4)."""
    shaping_floor: float | None = 0.9
    """Smallest factor of VPPO's advantage shaping (0.9); null for no shaping."""
    perception_clip: float = 10.0
    """Upper bound of the k3 of a token in PAPO and VPPO."""

    def dependency(self, batch: Batch) -> Tensor:
        """The k3 of each token, [B, T]."""
        corrupted_BT = batch.given("corrupted_logprobs_BT")
        return k3_divergence(
            batch.clean_logprobs_BT, corrupted_BT, batch.mask_BT, maximum=self.perception_clip
        )

    def __call__(self, batch: Batch, advantage_B: Tensor) -> tuple[Tensor, Tensor, Diagnostics]:
        valid_BT, dependency_BT = batch.mask_BT.bool(), self.dependency(batch)
        advantage_BT = advantage_B[:, None].expand(valid_BT.shape)
        if self.shaping_floor is not None:
            factor_B = shaping_factor(
                dependency_BT, valid_BT, floor=self.shaping_floor, minibatch_B=batch.minibatch_B
            )
            advantage_BT = advantage_BT * factor_B[:, None]
        kept_BT = top_token_mask(dependency_BT, valid_BT, share=self.token_keep_share)
        return advantage_BT, kept_BT, Diagnostics()


def _relative_to_minibatch(mean_B: Tensor, minibatch_B: Tensor, floor: float) -> Tensor:
    if mean_B.numel() == 0:
        return mean_B
    empty_M = mean_B.new_zeros(int(minibatch_B.max()) + 1)
    low_B = empty_M.scatter_reduce(0, minibatch_B, mean_B, "amin", include_self=False)[minibatch_B]
    high_B = empty_M.scatter_reduce(0, minibatch_B, mean_B, "amax", include_self=False)[minibatch_B]
    is_flat_B = high_B <= low_B
    normalised_B = (mean_B - low_B) / (high_B - low_B).masked_fill(is_flat_B, 1.0)
    average_B = empty_M.scatter_reduce(0, minibatch_B, normalised_B, "mean", include_self=False)[minibatch_B]
    shaped_B = floor + normalised_B * ((1 - floor) / average_B.masked_fill(is_flat_B, 1.0))
    return shaped_B.masked_fill(is_flat_B, 1.0)
