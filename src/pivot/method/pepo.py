"""PEPO: token weights from similarity to the image and entropy (arXiv:2603.22847). Nothing here carries a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pivot.method.batch import Batch, Diagnostics
from pivot.method.numerics import min_max, on_valid
from pivot.method.part import Bounds
from pivot.method.shapes import check_floating, check_mask, check_range
from pivot.method.visual import VisualPart


@torch.no_grad()
def perception_weights(
    similarity_BT: Tensor, entropy_BT: Tensor, mask_BT: Tensor, *, gate: float = 0.05
) -> Tensor:
    """w_t = n softmax_t((1 + alpha tanh g_t) VS_t) with g_t = VS'_t + H'_t - mean(VS' + H'); its mean is 1.

    VS' and H' are min-max-normalised over the n tokens of a response.

    Args:
        similarity_BT: [B, T], VS, the mean cosine of a token's and the image tokens' hidden states.
        entropy_BT: [B, T], H.
        mask_BT: [B, T].
        gate: alpha in [0, 1].

    Returns:
        [B, T], 0 where masked.
    """
    check_floating("similarity_BT", similarity_BT, ("B", "T"))
    check_floating("entropy_BT", entropy_BT, similarity_BT.shape)
    check_mask("mask_BT", mask_BT, similarity_BT.shape)
    check_range("gate", gate, 0.0, 1.0)
    valid_BT = mask_BT.bool()
    count_B1 = valid_BT.sum(dim=1, keepdim=True)
    similarity_BT = on_valid(similarity_BT, valid_BT)
    summed_BT = min_max(similarity_BT, valid_BT) + min_max(on_valid(entropy_BT, valid_BT), valid_BT)
    centred_BT = summed_BT - summed_BT.sum(dim=1, keepdim=True) / count_B1.clamp(min=1)
    scores_BT = (1 + gate * torch.tanh(centred_BT)) * similarity_BT
    shares_BT = scores_BT.masked_fill(~valid_BT, -torch.inf).softmax(dim=1)
    return (count_B1 * shares_BT).masked_fill(~valid_BT, 0.0)


@dataclass(frozen=True)
class PerceptionExploration(VisualPart):
    """PEPO: tokens whose hidden states resemble the image's get more of their response's advantage."""

    bounds: ClassVar[Bounds] = {"pepo_gate": (0, 1)}

    pepo_gate: float = 0.05
    """alpha: how far similarity and entropy together change PEPO's weight of a token (its paper: 0.05)."""
    pepo_schedule: Literal["linear", "constant"] = "linear"
    """PEPO's weights come in from 0 to 1 over the run as in its paper, or count in full from the start."""

    def needs(self) -> tuple[str, ...]:
        return ("similarity_BT",)

    def weights(self, batch: Batch) -> Tensor:
        """w, [B, T]; 1 on average over each response."""
        return perception_weights(
            batch.given("similarity_BT"), batch.entropy_BT, batch.mask_BT, gate=self.pepo_gate
        )

    def __call__(self, batch: Batch, advantage_B: Tensor) -> tuple[Tensor, Tensor, Diagnostics]:
        """A_t = ((1 - lambda) + lambda w_t) A."""
        share = batch.progress if self.pepo_schedule == "linear" else 1.0
        factor_BT = (1 - share) + share * self.weights(batch)
        return advantage_B[:, None] * factor_BT, batch.mask_BT.bool(), Diagnostics()
