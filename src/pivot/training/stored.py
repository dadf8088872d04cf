"""Groups on their way into the store of a method that replays them, and back (`StoredGroups`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pivot.experience import GroupStore, StoredGroup, StoredResponse
from pivot.method import Batch, Method
from pivot.types import Prompt, Response, Reward, RolloutGroup


def is_varied(group: RolloutGroup, method: Method) -> bool:
    """Whether its rewards differ, or an experience in one of its slots (Off-PG) will decide that."""
    with_experience = method.trains_on_experience and bool(group.candidates)
    return with_experience or len(set(group.accuracies)) > 1


def store_groups(
    store: GroupStore, method: Method, groups: Sequence[RolloutGroup], batch: Batch, step: int
) -> None:
    """Keep the groups that this step sampled and that have advantages, with their log-probs."""
    assert method.stored is not None
    advantage_PG = batch.by_prompt(batch.given("group_advantage_B"))
    scores = method.stored.scores(advantage_PG, batch.by_prompt(batch.rewards_B)).tolist()
    old_PGT = batch.old_logprobs_BT.view(len(groups), batch.group_size, -1)
    for group, score, logprobs_GT in zip(groups, scores, old_PGT, strict=True):
        with_experience = method.trains_on_experience and group.anchor is not None
        is_old = with_experience or any(response.stored for response in group.responses)
        if score > 0 and not is_old:
            store.add(_as_stored(group, logprobs_GT, score, step))


def _as_stored(group: RolloutGroup, logprobs_GT: Tensor, score: float, step: int) -> StoredGroup:
    responses = tuple(
        StoredResponse(
            token_ids=response.token_ids_T.numpy(),
            logprobs=logprobs_T[: len(response)].numpy(),
            accuracy=accuracy,
            format=response.reward.format if response.reward else 0.0,
            step=step,
        )
        for response, accuracy, logprobs_T in zip(group.responses, group.accuracies, logprobs_GT, strict=True)
    )
    success = tuple(response.correct for response in group.responses)
    truncated = tuple(response.truncated for response in group.responses)
    return StoredGroup(group.prompt.id, responses, success, truncated, score, step)


def as_group(prompt: Prompt, stored: StoredGroup) -> RolloutGroup:
    """A stored group as the step trains on it."""
    responses = []
    for one, success, truncated in zip(stored.responses, stored.success, stored.truncated, strict=True):
        assert one.logprobs is not None
        reason = "correct" if success else "wrong"
        response = Response(
            torch.from_numpy(one.token_ids).long(),
            "",
            torch.from_numpy(one.logprobs.copy()),
            None,
            truncated,
            Reward(one.accuracy or 0.0, one.format or 0.0, reason, success=success),
            stored=True,
        )
        responses.append(response)
    return RolloutGroup(prompt, responses, replayed=True)
