"""PGPO: token weights from how much the image changes a token (arXiv:2604.01840). Nothing here carries a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pivot.method.batch import Batch, Diagnostics
from pivot.method.numerics import SMALL, k3_divergence, min_max, on_valid
from pivot.method.part import ANY, Bounds
from pivot.method.shapes import check_floating, check_mask, check_range
from pivot.method.visual import VisualPart


@torch.no_grad()
def dependency_score(dependency_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """I_t: log(1 + S_t), min-max-normalised over its response (PGPO's Eq. 4 and 5), [B, T] in [0, 1]; 0 where masked.

    Args:
        dependency_BT: [B, T], S, the k3 of each sampled token with and without the image.
        mask_BT: [B, T].
    """
    check_floating("dependency_BT", dependency_BT, ("B", "T"))
    check_mask("mask_BT", mask_BT, dependency_BT.shape)
    valid_BT = mask_BT.bool()
    return min_max(on_valid(dependency_BT, valid_BT).log1p(), valid_BT)


@torch.no_grad()
def gated_weights(score_BT: Tensor, mask_BT: Tensor, *, threshold: float = 0.4, boost: float = 2.0) -> Tensor:
    """w_t = I_t / tau below the threshold, 1 + beta (I_t - tau) / (1 - tau) from it on, scaled to a mean of 1.

    PGPO's Eq. 6 and 7. Where every weight of a response is 0, its tokens depend alike on the image: all are 1.

    Args:
        score_BT: [B, T], I.
        mask_BT: [B, T].
        threshold: tau in [0, 1].
        boost: beta.

    Returns:
        [B, T], 0 where masked.
    """
    check_floating("score_BT", score_BT, ("B", "T"))
    check_mask("mask_BT", mask_BT, score_BT.shape)
    check_range("threshold", threshold, 0.0, 1.0)
    check_range("boost", boost, 0.0, float("inf"))
    valid_BT = mask_BT.bool()
    score_BT = on_valid(score_BT, valid_BT)
    damped_BT = score_BT / (threshold + SMALL)
    boosted_BT = 1 + boost * (score_BT - threshold) / (1 - threshold + SMALL)
    weight_BT = torch.where(score_BT < threshold, damped_BT, boosted_BT).masked_fill(~valid_BT, 0.0)
    total_B1 = weight_BT.sum(dim=1, keepdim=True)
    is_flat_B1 = total_B1 <= 0
    scaled_BT = weight_BT * (valid_BT.sum(dim=1, keepdim=True) / total_B1.masked_fill(is_flat_B1, 1.0))
    return torch.where(is_flat_B1, valid_BT.to(scaled_BT.dtype), scaled_BT)


@dataclass(frozen=True)
class PerceptionGrounding(VisualPart):
    """PGPO: tokens that depend on the image get more of their response's advantage, the others less; the sum stays."""

    bounds: ClassVar[Bounds] = {"pgpo_threshold": (0, 1), "pgpo_boost": (0, ANY)}
    hides_image: ClassVar[bool] = True

    pgpo_threshold: float = 0.4
    """tau: normalised dependency from which PGPO strengthens a token (its paper: 0.4)."""
    pgpo_boost: float = 2.0
    """beta: how much PGPO adds to the weight of the most dependent token (its paper: 2.0)."""

    def weights(self, batch: Batch) -> Tensor:
        """w, [B, T]; 1 on average over each response."""
        dependency_BT = k3_divergence(
            batch.clean_logprobs_BT, batch.given("corrupted_logprobs_BT"), batch.mask_BT, maximum=None
        )
        score_BT = dependency_score(dependency_BT, batch.mask_BT)
        return gated_weights(score_BT, batch.mask_BT, threshold=self.pgpo_threshold, boost=self.pgpo_boost)

    def __call__(self, batch: Batch, advantage_B: Tensor) -> tuple[Tensor, Tensor, Diagnostics]:
        return advantage_B[:, None] * self.weights(batch), batch.mask_BT.bool(), Diagnostics()
