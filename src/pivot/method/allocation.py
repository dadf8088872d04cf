"""From rewards and token scores to the advantage of each token (Eq. 2 and 10-15), for any method."""

from __future__ import annotations

from dataclasses import replace

import torch

from pivot.method.batch import Batch, Diagnostics
from pivot.method.method import Method
from pivot.method.numerics import on_valid
from pivot.method.shapes import check_floating


@torch.no_grad()
def allocate_advantage(method: Method, batch: Batch) -> tuple[Batch, Diagnostics]:
    """A_total = visual(A) + format_coef * A_format: the method's advantage, its visual part, then format.

    Rows of stored groups are weighted as `StoredGroups` says.

    Takes all rows of a step, since H-bar and an adaptive beta are statistics of the whole batch. No gradient.

    Returns:
        The batch with `advantage_BT`, `policy_mask_BT` and `group_advantage_B`, and the path to them.
    """
    valid_BT = batch.mask_BT.bool()
    check_floating("rewards_B", batch.rewards_B, valid_BT.shape[:1])
    check_floating("format_B", batch.format_B, valid_BT.shape[:1])
    rule = method.advantage
    accuracy_B = rule(batch.by_prompt(batch.rewards_B)).flatten()
    format_B = rule.format_coef * rule(batch.by_prompt(batch.format_B)).flatten().to(accuracy_B.dtype)
    format_first = rule.format_position == "before"
    base_B = accuracy_B + format_B if format_first else accuracy_B
    if method.visual is None:
        advantage_BT, policy_mask_BT, found = base_B[:, None].expand(valid_BT.shape), valid_BT, Diagnostics()
    else:
        advantage_BT, policy_mask_BT, found = method.visual(batch, base_B)
    if not format_first:
        advantage_BT = advantage_BT + format_B[:, None]
    if method.stored is not None and batch.stored_B is not None:
        weight_B = method.stored.sample_weights(batch.by_prompt(accuracy_B)).flatten()
        advantage_BT = advantage_BT * torch.where(batch.stored_B, weight_B, 1.0)[:, None]
    allocated = replace(
        batch,
        advantage_BT=on_valid(advantage_BT, valid_BT),
        policy_mask_BT=policy_mask_BT,
        group_advantage_B=accuracy_B,
    )
    return allocated, found
