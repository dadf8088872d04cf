"""From rewards and token scores to the advantage of each token, for any method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pivot.method.advantage import add_visual_advantage, group_advantage, is_correct, protect_sign
from pivot.method.numerics import on_valid
from pivot.method.policy import k3_divergence
from pivot.method.restraint import absolute_support, restrain_utility, support_separation, weigh_advantage
from pivot.method.shapes import check_floating, check_mask
from pivot.method.switches import Method
from pivot.method.visual import combine_utility, entropy_gate, future_support, visual_support
from pivot.method.vppo import shaping_factor, top_token_mask


@dataclass(frozen=True)
class TokenScores:
    """What the policy at the start of the step says of each sampled token; no gradient."""

    logprobs_BT: Tensor
    """log p, under the clean image."""
    entropy_BT: Tensor
    """Full-vocabulary entropy H."""
    mask_BT: Tensor
    corrupted_logprobs_BT: Tensor | None = None
    """log q, under the corrupted image, for methods with `needs_corrupted`."""


@dataclass(frozen=True)
class Allocation:
    """The advantages of a batch and the path to them; None where the method has no such part."""

    advantage_BT: Tensor
    """What the policy loss takes: modulated, protected, shaped, with format."""
    policy_mask_BT: Tensor
    """bool: tokens in the policy loss, VPPO's choice or all valid ones."""
    group_advantage_B: Tensor
    """A_i of the accuracy reward (Eq. 2), for the calibration loss."""
    support_BT: Tensor | None = None
    """c (Eq. 10), floored."""
    future_BT: Tensor | None = None
    """F (Eq. 11)."""
    gate_BT: Tensor | None = None
    """u (Eq. 12)."""
    utility_BT: Tensor | None = None
    """U (Eq. 13)."""
    protected_BT: Tensor | None = None
    """bool: tokens whose advantage sign protection (Eq. 15) set to 0."""
    support_clipped_share: Tensor | None = None
    """Share of valid tokens with c below its floor, a scalar."""
    beta: Tensor | None = None
    """The strength of Eq. 14 where it adapts (`adapt_beta`), a scalar."""


@torch.no_grad()
def allocate_advantage(
    method: Method,
    rewards_PG: Tensor,
    format_PG: Tensor,
    scores: TokenScores,
    *,
    mean_entropy: float | Tensor | None = None,
    minibatch_B: Tensor | None = None,
    separation: float | Tensor | None = None,
) -> Allocation:
    """A_total = shape(protect(A + beta |A| U)) + format_coef * A_format: Eq. 2 and 10-15, and VPPO's parts.

    Rows are prompt-major: row p * G + g is response g of prompt p. No gradient.

    Args:
        method: which parts are on.
        rewards_PG: [P, G], accuracy rewards R.
        format_PG: [P, G], format rewards, normalised within their group on their own.
        scores: of the B = P * G responses.
        mean_entropy: H-bar over the step's whole batch; by default over these rows.
        minibatch_B: [B], the global minibatch of each row, over which VPPO's shaping is relative; by default
            all rows are one.
        separation: `support_separation` over the step's whole batch, for `adapt_beta`; by default over these rows.
    """
    check_floating("rewards_PG", rewards_PG, ("P", "G"))
    check_floating("format_PG", format_PG, rewards_PG.shape)
    num_rows = rewards_PG.numel()
    check_floating("logprobs_BT", scores.logprobs_BT, (num_rows, "T"))
    check_mask("mask_BT", scores.mask_BT, scores.logprobs_BT.shape)
    valid_BT = scores.mask_BT.bool()
    accuracy_B = group_advantage(rewards_PG, normalise_std=method.normalise_std).flatten()
    format_B = group_advantage(format_PG, normalise_std=method.normalise_std).flatten().to(accuracy_B.dtype)
    format_B = method.format_coef * format_B
    format_first = method.format_position == "before"
    base_B = accuracy_B + format_B if format_first else accuracy_B
    parts = _visual_parts(method, scores, mean_entropy)
    advantage_BT = base_B[:, None].expand(valid_BT.shape)
    if "utility_BT" in parts:
        correct_B = is_correct(rewards_PG.flatten())
        beta = method.beta
        if method.adapt_beta:
            if separation is None:
                separation = support_separation(parts["support_BT"], is_correct(rewards_PG), valid_BT)
            parts["beta"] = beta * torch.as_tensor(separation).clamp(min=0)
            beta = float(parts["beta"])
        utility_BT = restrain_utility(
            parts["utility_BT"], correct_B, bound=method.utility_bound, soften_wrong=method.soften_wrong
        )
        modulate = weigh_advantage if method.modulation == "weigh" else add_visual_advantage
        modulated_BT = modulate(base_B, utility_BT, valid_BT, beta=beta)
        advantage_BT = protect_sign(modulated_BT, correct_B)
        parts["protected_BT"] = advantage_BT != modulated_BT
    factor_B, policy_mask_BT = _dependency_parts(method, scores, minibatch_B)
    if factor_B is not None:
        advantage_BT = advantage_BT * factor_B[:, None]
    if not format_first:
        advantage_BT = advantage_BT + format_B[:, None]
    return Allocation(on_valid(advantage_BT, valid_BT), policy_mask_BT, accuracy_B, **parts)


def _visual_parts(
    method: Method, scores: TokenScores, mean_entropy: float | Tensor | None
) -> dict[str, Tensor]:
    """c, F, u, U as far as the method has them, under their names in `Allocation`."""
    if method.utility == "none":
        return {}
    mask_BT = scores.mask_BT
    if method.support_form == "absolute":
        literal_BT = absolute_support(scores.logprobs_BT, _corrupted(scores), mask_BT)
    else:
        literal_BT = visual_support(scores.logprobs_BT, _corrupted(scores), mask_BT, floor=None)
    support_BT = literal_BT
    clipped_share = literal_BT.new_zeros(())
    if method.support_floor is not None:
        support_BT = literal_BT.clamp(min=method.support_floor)
        clipped_share = (literal_BT < method.support_floor).sum() / mask_BT.bool().sum().clamp(min=1)
    parts = {"support_BT": support_BT, "utility_BT": support_BT, "support_clipped_share": clipped_share}
    if method.utility == "local":
        return parts
    gate_BT = entropy_gate(scores.entropy_BT, mask_BT, mean_entropy=mean_entropy)
    future_BT = future_support(
        support_BT, mask_BT, window=method.future_window, discount=method.future_discount
    )
    utility_BT = combine_utility(support_BT, gate_BT, future_BT, mask_BT, future_coef=method.future_coef)
    return {**parts, "gate_BT": gate_BT, "future_BT": future_BT, "utility_BT": utility_BT}


def _dependency_parts(
    method: Method, scores: TokenScores, minibatch_B: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    """VPPO's factor a response (None without shaping) and the tokens that stay in the policy loss."""
    valid_BT = scores.mask_BT.bool()
    if not method.needs_token_dependency:
        return None, valid_BT
    dependency_BT = k3_divergence(
        scores.logprobs_BT, _corrupted(scores), valid_BT, maximum=method.perception_clip
    )
    factor_B = None
    if method.shaping_floor is not None:
        factor_B = shaping_factor(
            dependency_BT, valid_BT, floor=method.shaping_floor, minibatch_B=minibatch_B
        )
    return factor_B, top_token_mask(dependency_BT, valid_BT, share=method.token_keep_share)


def _corrupted(scores: TokenScores) -> Tensor:
    if scores.corrupted_logprobs_BT is None:
        raise ValueError("corrupted_logprobs_BT must be a tensor for a method with needs_corrupted, got None")
    return scores.corrupted_logprobs_BT
