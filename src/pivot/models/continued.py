"""Scores of responses to prompts that were just prefilled: only the responses' own tokens pass the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pivot.method import token_statistics
from pivot.models.decoding import PrefilledPrompts
from pivot.models.policy import Policy, ResponseStatistics
from pivot.models.shared_prefix import shares_prefixes


def can_continue(policy: Policy) -> bool:
    """Whether the language model keeps nothing but keys and values, and its attention takes any mask."""
    return policy.family.shares_prefixes and shares_prefixes(policy.family.text_model(policy.model))


@torch.no_grad()
def score_continued(
    policy: Policy,
    prompts: PrefilledPrompts,
    hidden_PD: Tensor,
    prompt_B: Tensor,
    responses: Sequence[Tensor],
) -> ResponseStatistics:
    """Log-probs and entropies as `Policy.score` computes them, up to rounding; on the CPU.

    Args:
        prompts: after their forward pass.
        hidden_PD: [P, D], the hidden states after each prompt.
        prompt_B: [B], int64, the prompt of each response.
        responses: token ids of each, int64 [T].
    """
    device = policy.device
    prompt_B = prompt_B.to(device)
    ids_BT = pad_sequence(list(responses), batch_first=True).to(device)
    mask_BT = pad_sequence([torch.ones_like(y, dtype=torch.bool) for y in responses], batch_first=True).to(
        device
    )
    hidden_BTD = hidden_PD[prompt_B][:, None]  # predicts the first token; each but the last predicts another
    if ids_BT.shape[1] > 1:
        following_BTD = _continued(policy, prompts, prompt_B, ids_BT[:, :-1])
        hidden_BTD = torch.cat([hidden_BTD, following_BTD], 1)
    found = token_statistics(
        hidden_BTD[mask_BT], policy.head_weight_VD, ids_BT[mask_BT], temperature=policy.temperature
    )
    assert found.entropy_N is not None
    logprobs_BT, entropy_BT = (
        torch.zeros_like(ids_BT, dtype=x.dtype).masked_scatter(mask_BT, x).cpu()
        for x in (found.logprobs_N, found.entropy_N)
    )
    return ResponseStatistics(mask_BT.cpu(), logprobs_BT, entropy_BT)


def _continued(policy: Policy, prompts: PrefilledPrompts, prompt_B: Tensor, ids_BT: Tensor) -> Tensor:
    """Hidden states [B, T, D] after each token of the responses."""
    num_tokens = ids_BT.shape[1]
    cache: Any = policy.family.new_cache(policy.model)
    for index, layer in enumerate(prompts.cache.layers):
        cache.update(layer.keys.index_select(0, prompt_B), layer.values.index_select(0, prompt_B), index)
    so_far_TT = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=ids_BT.device).tril()
    before_BTL = prompts.seen_PL[prompt_B, None].expand(-1, num_tokens, -1)
    visible = torch.cat([before_BTL, so_far_TT.expand(len(ids_BT), -1, -1)], 2)
    positions_BT = prompts.next_position_P[prompt_B, None] + torch.arange(num_tokens, device=ids_BT.device)
    return policy.hidden(policy.embed(ids_BT, []), positions_BT[None], visible[:, None], cache)
