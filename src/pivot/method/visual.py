"""Vision-guided advantage allocation (Eq. 10-15 and 25-27). Nothing here carries a gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pivot.method.advantage import add_visual_advantage, modulate_advantage
from pivot.method.batch import Batch, Diagnostics
from pivot.method.numerics import clamped_log_ratio, on_valid, rank_valid, valid_logprobs
from pivot.method.part import ANY, Bounds, Part
from pivot.method.shapes import check_floating, check_mask, check_range

MEAN_ENTROPY_FLOOR = 1e-8


@torch.no_grad()
def visual_support(
    clean_logprobs_BT: Tensor,
    corrupted_logprobs_BT: Tensor,
    mask_BT: Tensor,
    *,
    floor: float | None = -5.0,
) -> Tensor:
    """c_t = 1 - q(y_t) / p(y_t) (Eq. 10), as -expm1(log q - log p): equal images give exactly 0.

    Args:
        clean_logprobs_BT: [B, T], log p under the original image.
        corrupted_logprobs_BT: [B, T], log q under the corrupted one.
        mask_BT: [B, T].
        floor: lower bound of c, which has none by itself; None is the literal equation.

    Returns:
        [B, T], 0 where masked.
    """
    check_floating("clean_logprobs_BT", clean_logprobs_BT, ("B", "T"))
    check_floating("corrupted_logprobs_BT", corrupted_logprobs_BT, clean_logprobs_BT.shape)
    check_mask("mask_BT", mask_BT, clean_logprobs_BT.shape)
    valid_BT = mask_BT.bool()
    clean_BT = valid_logprobs(clean_logprobs_BT, valid_BT)
    support_BT = -torch.expm1(clamped_log_ratio(valid_logprobs(corrupted_logprobs_BT, valid_BT), clean_BT))
    return support_BT if floor is None else support_BT.clamp(min=floor)


@torch.no_grad()
def future_support(support_BT: Tensor, mask_BT: Tensor, *, window: int = 32, discount: float = 0.8) -> Tensor:
    """F_t = sum_k gamma^(k-t-1) c_k / sum_k gamma^(k-t-1), k = t+1 .. min(n, t+W) (Eq. 11).

    Valid tokens are ranked and holes in the mask skipped; F of the last valid token is 0. The cost is
    O(B T log W).

    Args:
        support_BT: [B, T], c.
        mask_BT: [B, T].
        window: W, how many later tokens count.
        discount: gamma in [0, 1].

    Returns:
        [B, T], 0 where masked.
    """
    check_floating("support_BT", support_BT, ("B", "T"))
    check_mask("mask_BT", mask_BT, support_BT.shape)
    check_range("window", window, 1, float("inf"))
    check_range("discount", discount, 0.0, 1.0)
    valid_BT = mask_BT.bool()
    support_BT = on_valid(support_BT, valid_BT)
    if support_BT.numel() == 0:
        return support_BT
    window = min(window, support_BT.shape[1])
    rank_BT, count_B1 = rank_valid(valid_BT)
    ranked_BT = torch.zeros_like(support_BT).scatter_add_(1, rank_BT, support_BT)
    numerator_BT = _discounted_window_sum(_shift(ranked_BT, 1), window, discount).gather(1, rank_BT)
    weights = discount ** torch.arange(window, device=support_BT.device, dtype=support_BT.dtype)
    later_BT = (count_B1 - 1 - rank_BT).clamp(0, window)
    denominator_BT = weights.cumsum(0)[(later_BT - 1).clamp(min=0)]
    return torch.where(valid_BT & (later_BT > 0), numerator_BT / denominator_BT, 0.0)


@torch.no_grad()
def entropy_gate(
    entropy_BT: Tensor, mask_BT: Tensor, *, mean_entropy: float | Tensor | None = None
) -> Tensor:
    """u_t = 1 - exp(-H_t / H-bar) (Eq. 12), [B, T]; 0 where masked.

    Args:
        entropy_BT: [B, T], full-vocabulary token entropies.
        mask_BT: [B, T].
        mean_entropy: H-bar over the step's whole batch; by default the mean over this mask. Floored at 1e-8.
    """
    check_floating("entropy_BT", entropy_BT, ("B", "T"))
    check_mask("mask_BT", mask_BT, entropy_BT.shape)
    valid_BT = mask_BT.bool()
    # Rounding can leave an entropy slightly below 0.
    entropy_BT = on_valid(entropy_BT, valid_BT).clamp(min=0)
    if mean_entropy is None:
        mean_entropy = entropy_BT.sum() / valid_BT.sum().clamp(min=1)
    mean_entropy = torch.as_tensor(mean_entropy, device=entropy_BT.device, dtype=entropy_BT.dtype)
    return -torch.expm1(-entropy_BT / mean_entropy.clamp(min=MEAN_ENTROPY_FLOOR))


@torch.no_grad()
def detrend(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Residual of least squares on the relative position, response by response (Eq. 25-27).

    r_t = rank(t) / max(n - 1, 1); the result is orthogonal to 1 and to r over the valid tokens. Two tokens or
    fewer leave no residual: exactly 0.

    Args:
        values_BT: [B, T], a = u * F.
        mask_BT: [B, T].

    Returns:
        [B, T], 0 where masked.
    """
    check_floating("values_BT", values_BT, ("B", "T"))
    check_mask("mask_BT", mask_BT, values_BT.shape)
    valid_BT = mask_BT.bool()
    values_BT = on_valid(values_BT, valid_BT)
    rank_BT, count_B1 = rank_valid(valid_BT)
    # The mean of 0/(n-1) .. (n-1)/(n-1) is one half.
    position_BT = rank_BT.to(values_BT.dtype) / (count_B1 - 1).clamp(min=1) - 0.5
    position_BT = position_BT.masked_fill(~valid_BT, 0.0)
    mean_B1 = values_BT.sum(dim=1, keepdim=True) / count_B1.clamp(min=1)
    centred_BT = (values_BT - mean_B1).masked_fill(~valid_BT, 0.0)
    covariance_B1 = (position_BT * centred_BT).sum(dim=1, keepdim=True)
    variance_B1 = position_BT.square().sum(dim=1, keepdim=True)
    residual_BT = centred_BT - covariance_B1 / variance_B1.clamp(min=1e-12) * position_BT
    return residual_BT.masked_fill(count_B1 <= 2, 0.0)


@torch.no_grad()
def token_utility(
    support_BT: Tensor,
    entropy_BT: Tensor,
    mask_BT: Tensor,
    *,
    window: int = 32,
    discount: float = 0.8,
    future_coef: float = 0.5,
    mean_entropy: float | Tensor | None = None,
) -> Tensor:
    """U_t = c_t + lambda * Detrending(u_t F_t) (Eq. 11-13).

    Args:
        support_BT: [B, T], c.
        entropy_BT: [B, T], H.
        mask_BT: [B, T].
        window: W of F.
        discount: gamma of F.
        future_coef: lambda.
        mean_entropy: H-bar of the step's whole batch; by default the mean over this mask.

    Returns:
        [B, T], 0 where masked.
    """
    check_floating("support_BT", support_BT, entropy_BT.shape)
    valid_BT = mask_BT.bool()
    gate_BT = entropy_gate(entropy_BT, mask_BT, mean_entropy=mean_entropy)
    future_BT = future_support(support_BT, mask_BT, window=window, discount=discount)
    return on_valid(support_BT, valid_BT) + future_coef * detrend(gate_BT * future_BT, mask_BT)


@dataclass(frozen=True)
class ImageCorruption(Part):
    """How the corrupted image of Eq. 4 and 10 is made."""

    bounds: ClassVar[Bounds] = {"corrupt_probability": (0, 1)}

    corrupt_raw_image: bool = False
    """Corrupt the original image, as PAPO does, instead of the ViT's own patches (App. D.1)."""
    corrupt_probability: float = 0.6
    """Share of patches that the `patch` intervention sets to black (App. C.2; VPPO's code: 0.5)."""


@dataclass(frozen=True)
class VisualPart(Part):
    """What an image changes about the advantages."""

    hides_image: ClassVar[bool] = False
    """Whether `corrupted` means that nothing attends to the image's tokens, instead of a corrupted image."""

    def needs(self) -> tuple[str, ...]:
        return ("corrupted_logprobs_BT",)

    def __call__(self, batch: Batch, advantage_B: Tensor) -> tuple[Tensor, Tensor, Diagnostics]:
        """From the advantage of each response to `advantage_BT`, `policy_mask_BT` and their diagnostics."""
        raise NotImplementedError


@dataclass(frozen=True)
class VisualAllocation(VisualPart):
    """VAA: tokens that the image supports get more of their response's advantage, the others less."""

    bounds: ClassVar[Bounds] = {
        "beta": (0, ANY),
        "support_floor": (-ANY, 0),
        "future_window": (1, ANY),
        "future_discount": (0, 1),
        "future_coef": (-ANY, ANY),
    }

    utility: Literal["local", "future"] = "future"
    """U = c (the ablation VAA_local), or Eq. 13."""
    beta: float = 0.1
    """Strength of the advantage modulation (Eq. 14). The paper prints no value; a validation split chose ours."""
    support_floor: float | None = -5.0
    """Lower bound of c (Eq. 10) before it is used; null is the literal equation. Not in the paper."""
    future_window: int = 32
    """W of Eq. 11 (App. C.2)."""
    future_discount: float = 0.8
    """gamma of Eq. 11 (App. C.2)."""
    future_coef: float = 0.5
    """lambda of Eq. 13 (App. C.2)."""

    def __call__(self, batch: Batch, advantage_B: Tensor) -> tuple[Tensor, Tensor, Diagnostics]:
        literal_BT = self.support(batch)  # Eq. 10: c
        support_BT = literal_BT if self.support_floor is None else literal_BT.clamp(min=self.support_floor)
        utility_BT = support_BT
        if self.utility == "future":
            utility_BT = token_utility(  # Eq. 11-13: F, u, U
                support_BT,
                batch.entropy_BT,
                batch.mask_BT,
                window=self.future_window,
                discount=self.future_discount,
                future_coef=self.future_coef,
            )
        advantage_BT, diagnostics = self.modulate(batch, advantage_B, support_BT, utility_BT)  # Eq. 14, 15
        num_clipped = (literal_BT < support_BT).sum()
        diagnostics = replace(
            diagnostics,
            support_BT=support_BT,
            utility_BT=utility_BT,
            support_clipped_share=num_clipped / batch.mask_BT.bool().sum().clamp(min=1),
            **self._future_parts(batch, support_BT),
        )
        return advantage_BT, batch.mask_BT.bool(), diagnostics

    def support(self, batch: Batch) -> Tensor:
        """c, without its floor."""
        corrupted_BT = batch.given("corrupted_logprobs_BT")
        return visual_support(batch.clean_logprobs_BT, corrupted_BT, batch.mask_BT, floor=None)

    def modulate(
        self, batch: Batch, advantage_B: Tensor, support_BT: Tensor, utility_BT: Tensor
    ) -> tuple[Tensor, Diagnostics]:
        """Eq. 14 and 15, and what they did."""
        rows = (advantage_B, utility_BT, batch.correct_B, batch.mask_BT)
        advantage_BT = modulate_advantage(*rows, beta=self.beta)
        unprotected_BT = add_visual_advantage(advantage_B, utility_BT, batch.mask_BT, beta=self.beta)
        return advantage_BT, Diagnostics(protected_BT=advantage_BT != unprotected_BT)

    def _future_parts(self, batch: Batch, support_BT: Tensor) -> dict[str, Tensor]:
        """F and u once more, for the records."""
        if self.utility == "local":
            return {}
        window, discount = self.future_window, self.future_discount
        return {
            "future_BT": future_support(support_BT, batch.mask_BT, window=window, discount=discount),
            "gate_BT": entropy_gate(batch.entropy_BT, batch.mask_BT),
        }


def _discounted_window_sum(values_BT: Tensor, window: int, discount: float) -> Tensor:
    """S_t = sum_{j < window} gamma^j x_{t+j}, by doubling.

    The sum over 2m tokens is the sum over m tokens plus gamma^m times the same sum m tokens later; the binary
    digits of `window` say which of these blocks to add up.
    """
    total_BT = torch.zeros_like(values_BT)
    block_BT, width, covered = values_BT, 1, 0
    while covered < window:
        if window & width:
            total_BT = total_BT + discount**covered * _shift(block_BT, covered)
            covered += width
        block_BT = block_BT + discount**width * _shift(block_BT, width)
        width *= 2
    return total_BT


def _shift(values_BT: Tensor, steps: int) -> Tensor:
    """x_{t+steps}, 0 past the end."""
    steps = min(steps, values_BT.shape[1])
    return torch.nn.functional.pad(values_BT[:, steps:], (0, steps))
