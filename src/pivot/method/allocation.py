"""From rewards and token scores to the advantage of each token, for any method."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pivot.method.advantage import add_visual_advantage, group_advantage, protect_sign
from pivot.method.batch import Batch
from pivot.method.numerics import on_valid
from pivot.method.policy import k3_divergence
from pivot.method.restraint import absolute_support, restrain_utility, support_separation, weigh_advantage
from pivot.method.shapes import check_floating
from pivot.method.switches import Method
from pivot.method.visual import combine_utility, entropy_gate, future_support, visual_support
from pivot.method.vppo import shaping_factor, top_token_mask


@dataclass(frozen=True)
class Diagnostics:
    """The intermediate values of an allocation, for metrics; None where the method has no such part."""

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
def allocate_advantage(method: Method, batch: Batch) -> tuple[Batch, Diagnostics]:
    """A_total = shape(protect(A + beta |A| U)) + format_coef * A_format: Eq. 2 and 10-15, and VPPO's parts.

    Takes all rows of a step, since H-bar and the strength of `adapt_beta` are statistics of the whole batch.
    No gradient.

    Returns:
        The batch with `advantage_BT`, `policy_mask_BT` and `group_advantage_B`, and the path to them.
    """
    valid_BT = batch.mask_BT.bool()
    check_floating("rewards_B", batch.rewards_B, valid_BT.shape[:1])
    check_floating("format_B", batch.format_B, valid_BT.shape[:1])
    accuracy_B = _group_advantage(method, batch, batch.rewards_B)
    format_B = method.format_coef * _group_advantage(method, batch, batch.format_B).to(accuracy_B.dtype)
    format_first = method.format_position == "before"
    base_B = accuracy_B + format_B if format_first else accuracy_B
    parts = _visual_parts(method, batch)
    advantage_BT = base_B[:, None].expand(valid_BT.shape)
    if "utility_BT" in parts:
        beta = method.beta
        if method.adapt_beta:
            correct_PG = batch.by_prompt(batch.correct_B)
            separation = support_separation(parts["support_BT"], correct_PG, valid_BT)
            parts["beta"] = beta * separation.clamp(min=0)
            beta = float(parts["beta"])
        utility_BT = restrain_utility(
            parts["utility_BT"], batch.correct_B, bound=method.utility_bound, soften_wrong=method.soften_wrong
        )
        modulate = weigh_advantage if method.modulation == "weigh" else add_visual_advantage
        modulated_BT = modulate(base_B, utility_BT, valid_BT, beta=beta)
        advantage_BT = protect_sign(modulated_BT, batch.correct_B)
        parts["protected_BT"] = advantage_BT != modulated_BT
    factor_B, policy_mask_BT = _dependency_parts(method, batch)
    if factor_B is not None:
        advantage_BT = advantage_BT * factor_B[:, None]
    if not format_first:
        advantage_BT = advantage_BT + format_B[:, None]
    allocated = replace(
        batch,
        advantage_BT=on_valid(advantage_BT, valid_BT),
        policy_mask_BT=policy_mask_BT,
        group_advantage_B=accuracy_B,
    )
    return allocated, Diagnostics(**parts)


def _group_advantage(method: Method, batch: Batch, rewards_B: Tensor) -> Tensor:
    return group_advantage(batch.by_prompt(rewards_B), normalise_std=method.normalise_std).flatten()


def _visual_parts(method: Method, batch: Batch) -> dict[str, Tensor]:
    """c, F, u, U as far as the method has them, under their names in `Diagnostics`."""
    if method.utility == "none":
        return {}
    mask_BT = batch.mask_BT
    clean_BT, corrupted_BT = batch.clean_logprobs_BT, batch.given("corrupted_logprobs_BT")
    if method.support_form == "absolute":
        literal_BT = absolute_support(clean_BT, corrupted_BT, mask_BT)
    else:
        literal_BT = visual_support(clean_BT, corrupted_BT, mask_BT, floor=None)
    support_BT = literal_BT
    clipped_share = literal_BT.new_zeros(())
    if method.support_floor is not None:
        support_BT = literal_BT.clamp(min=method.support_floor)
        clipped_share = (literal_BT < method.support_floor).sum() / mask_BT.bool().sum().clamp(min=1)
    parts = {"support_BT": support_BT, "utility_BT": support_BT, "support_clipped_share": clipped_share}
    if method.utility == "local":
        return parts
    gate_BT = entropy_gate(batch.entropy_BT, mask_BT)
    future_BT = future_support(
        support_BT, mask_BT, window=method.future_window, discount=method.future_discount
    )
    utility_BT = combine_utility(support_BT, gate_BT, future_BT, mask_BT, future_coef=method.future_coef)
    return {**parts, "gate_BT": gate_BT, "future_BT": future_BT, "utility_BT": utility_BT}


def _dependency_parts(method: Method, batch: Batch) -> tuple[Tensor | None, Tensor]:
    """VPPO's factor per response (None without shaping) and the tokens that stay in the policy loss."""
    valid_BT = batch.mask_BT.bool()
    if not method.needs_token_dependency:
        return None, valid_BT
    dependency_BT = k3_divergence(
        batch.clean_logprobs_BT,
        batch.given("corrupted_logprobs_BT"),
        valid_BT,
        maximum=method.perception_clip,
    )
    factor_B = None
    if method.shaping_floor is not None:
        factor_B = shaping_factor(
            dependency_BT, valid_BT, floor=method.shaping_floor, minibatch_B=batch.minibatch_B
        )
    return factor_B, top_token_mask(dependency_BT, valid_BT, share=method.token_keep_share)
