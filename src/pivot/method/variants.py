"""Our variants of PIVOT: other forms of c and of Eq. 14. None is in the paper. Nothing carries a gradient.

Eq. 14 softens the penalty of a wrong response's token that the image supports, and c has no lower bound. Both are
harmless where errors come from language priors, whose tokens have c < 0, but hurt where the model misreads the image.
Also, c is a quotient: for an unlikely token it can be far from 0 by chance, and such tokens have the largest gradients.

What Eq. 14 adds has the sign of U, whether the response is right or wrong. For a token that decides nothing the
expected push on its logit is therefore not 0 but beta E|A| (p - q), the gradient of KL(q||p). It drives the policy away
from what it writes without the image, including its command of language, and grows with the distance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from pivot.method.advantage import add_visual_advantage, protect_sign
from pivot.method.batch import Batch, Diagnostics
from pivot.method.numerics import on_valid, valid_logprobs
from pivot.method.part import ANY, Bounds
from pivot.method.shapes import check_floating, check_mask
from pivot.method.visual import VisualAllocation

if TYPE_CHECKING:
    from pivot.method.method import Method


@torch.no_grad()
def absolute_support(clean_logprobs_BT: Tensor, corrupted_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """p(y_t) - q(y_t) in place of Eq. 10's (p - q) / p: within [-1, 1], small for unlikely tokens, [B, T].

    Args:
        clean_logprobs_BT: [B, T], log p under the original image.
        corrupted_logprobs_BT: [B, T], log q under the corrupted one.
        mask_BT: [B, T].
    """
    check_floating("clean_logprobs_BT", clean_logprobs_BT, ("B", "T"))
    check_floating("corrupted_logprobs_BT", corrupted_logprobs_BT, clean_logprobs_BT.shape)
    check_mask("mask_BT", mask_BT, clean_logprobs_BT.shape)
    valid_BT = mask_BT.bool()
    clean_BT, corrupted_BT = (valid_logprobs(x, valid_BT) for x in (clean_logprobs_BT, corrupted_logprobs_BT))
    return clean_BT.exp() - corrupted_BT.exp()


@torch.no_grad()
def restrain_utility(
    utility_BT: Tensor, correct_B: Tensor, *, bound: float | None = None, soften_wrong: bool = True
) -> Tensor:
    """clip(U, -bound, bound), and min(U, 0) in wrong responses unless `soften_wrong`, [B, T].

    The defaults give U back unchanged: the paper's Eq. 14.

    Args:
        utility_BT: [B, T], U.
        correct_B: [B], bool: the accuracy reward.
        bound: largest |U|; None for none.
        soften_wrong: whether U > 0 may soften a wrong response's penalty.
    """
    check_floating("utility_BT", utility_BT, ("B", "T"))
    check_mask("correct_B", correct_B, utility_BT.shape[:1])
    if bound is not None:
        utility_BT = utility_BT.clamp(-bound, bound)
    if soften_wrong:
        return utility_BT
    return torch.where(correct_B.bool()[:, None], utility_BT, utility_BT.clamp(max=0))


@torch.no_grad()
def weigh_advantage(advantage_B: Tensor, utility_BT: Tensor, mask_BT: Tensor, *, beta: float) -> Tensor:
    """A'_t = A + beta * A * |U_t|, in place of Eq. 14's |A| * U_t, [B, T]; 0 where masked.

    Tokens that the image affects weigh more, in the direction of their reward: signs never change, and where right and
    wrong responses have the same tokens the expected push is 0.
    """
    return add_visual_advantage(
        advantage_B, advantage_B.sign()[:, None] * utility_BT.abs(), mask_BT, beta=beta
    )


@torch.no_grad()
def support_separation(support_BT: Tensor, correct_PG: Tensor, mask_BT: Tensor) -> Tensor:
    """How well c tells right from wrong: P(c right > c wrong) - P(c right < c wrong), a scalar in [-1, 1].

    Over all pairs of a right and a wrong response of one prompt, by the mean c of each; 0 without any pair.
    Rows are prompt-major.

    Args:
        support_BT: [B, T], c.
        correct_PG: [P, G], bool, B = P * G.
        mask_BT: [B, T].
    """
    check_floating("support_BT", support_BT, ("B", "T"))
    check_mask("mask_BT", mask_BT, support_BT.shape)
    check_mask("correct_PG", correct_PG, ("P", "G"))
    valid_BT = mask_BT.bool()
    mean_B = on_valid(support_BT, valid_BT).sum(dim=1) / valid_BT.sum(dim=1).clamp(min=1)
    mean_PG = mean_B.view(correct_PG.shape)
    right_PG = correct_PG.bool()
    pair_PGG = right_PG[:, :, None] & ~right_PG[:, None, :]
    sign_PGG = (mean_PG[:, :, None] - mean_PG[:, None, :]).sign()
    return (sign_PGG * pair_PGG).sum() / pair_PGG.sum().clamp(min=1)


@dataclass(frozen=True)
class VariantAllocation(VisualAllocation):
    """VAA with our changes; at their defaults it is the paper's."""

    bounds: ClassVar[Bounds] = {**VisualAllocation.bounds, "utility_bound": (0, ANY)}

    modulation: Literal["add", "weigh"] = "add"
    """Eq. 14's A + beta |A| U, or A + beta A |U|, which never pushes against the reward. Ours; add in PIVOT."""
    adapt_beta: bool = False
    """Multiply beta by how well c separates right from wrong responses of a prompt. Ours, off in PIVOT."""
    utility_bound: float | None = None
    """Clip U to [-bound, bound] before Eq. 14; null for no bound. Ours, off in PIVOT."""
    soften_wrong: bool = True
    """Let visual support soften the penalty of a wrong response, as Eq. 14 does. Ours; true in PIVOT."""
    support_form: Literal["relative", "absolute"] = "relative"
    """c as (p - q) / p, Eq. 10, or as p - q, which is small for unlikely tokens. Ours; relative in PIVOT."""

    def support(self, batch: Batch) -> Tensor:
        if self.support_form == "relative":
            return super().support(batch)
        return absolute_support(batch.clean_logprobs_BT, batch.given("corrupted_logprobs_BT"), batch.mask_BT)

    def modulate(
        self, batch: Batch, advantage_B: Tensor, support_BT: Tensor, utility_BT: Tensor
    ) -> tuple[Tensor, Diagnostics]:
        valid_BT, beta, strength = batch.mask_BT.bool(), self.beta, None
        if self.adapt_beta:
            separation = support_separation(support_BT, batch.by_prompt(batch.correct_B), valid_BT)
            strength = beta * separation.clamp(min=0)
            beta = float(strength)
        utility_BT = restrain_utility(
            utility_BT, batch.correct_B, bound=self.utility_bound, soften_wrong=self.soften_wrong
        )
        add = weigh_advantage if self.modulation == "weigh" else add_visual_advantage
        modulated_BT = add(advantage_B, utility_BT, valid_BT, beta=beta)
        advantage_BT = protect_sign(modulated_BT, batch.correct_B)
        return advantage_BT, Diagnostics(protected_BT=advantage_BT != modulated_BT, beta=strength)


def variants_of(pivot: Method) -> tuple[Method, ...]:
    """The four presets, each a change to PIVOT's visual part."""
    bounded = VariantAllocation(utility_bound=1.0, soften_wrong=False)
    adaptive = VariantAllocation(beta=1.0, adapt_beta=True)
    absolute = VariantAllocation(beta=1.0, support_form="absolute")
    weighted = replace(absolute, modulation="weigh")
    return (
        replace(
            pivot,
            name="pivot-bounded",
            summary="PIVOT, ours: U within [-1, 1], and it never softens a wrong response's penalty",
            visual=bounded,
        ),
        replace(
            pivot,
            name="pivot-adaptive",
            summary="PIVOT, ours: beta follows how well c separates right from wrong responses",
            visual=adaptive,
        ),
        replace(
            pivot,
            name="pivot-absolute",
            summary="PIVOT, ours: c = p - q, so that unlikely tokens weigh little",
            visual=absolute,
        ),
        replace(
            pivot,
            name="pivot-weighted",
            summary="PIVOT, ours: c = p - q and A + beta A |U|: only the reward decides the direction",
            visual=weighted,
        ),
    )
