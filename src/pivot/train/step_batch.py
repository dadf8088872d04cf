"""The groups a step trains on, as padded tensors. Rows stand group by group; a minibatch is a run of groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pivot.policy.encoding import EncodedPrompt
from pivot.policy.rows import Unit
from pivot.seeding import stable_seed
from pivot.train.batching import pad_rows
from pivot.types import Anchor, Response, Reward, RolloutGroup


@dataclass
class StepBatch:
    """P groups of G responses: B = P*G rows of at most T tokens."""

    groups: list[RolloutGroup]
    units: list[Unit]
    minibatch_groups: int
    mask_BT: Tensor
    clean_logprobs_BT: Tensor
    """log p at the weights of the step's start."""
    old_logprobs_BT: Tensor
    """The ratio's denominator: the same, but what was recorded for an experience in the group (Off-PG)."""
    entropy_BT: Tensor
    rewards_PG: Tensor
    format_PG: Tensor
    off_policy_B: Tensor
    """Rows that are old experiences, not samples of this step."""
    anchor_logprob_B: Tensor
    """Mean token log-prob of the row's anchor (`seq_sum`: their sum); NaN where there is none."""
    anchor_logprobs_BT: Tensor
    """The anchor's log-probs by token index; NaN past its end and where there is none."""
    corrupted_logprobs_BT: Tensor | None = None
    reference_logprobs_BT: Tensor | None = None

    @property
    def correct_B(self) -> Tensor:
        return (self.rewards_PG > 0.5).flatten()

    @property
    def minibatch_B(self) -> Tensor:
        """Which minibatch a row belongs to."""
        num_responses = self.rewards_PG.shape[1]
        return (
            torch.arange(self.rewards_PG.shape[0]).repeat_interleave(num_responses) // self.minibatch_groups
        )

    def minibatches(self) -> Iterator[range]:
        """The groups of each update."""
        for start in range(0, len(self.groups), self.minibatch_groups):
            yield range(start, min(start + self.minibatch_groups, len(self.groups)))


def shuffled(groups: Sequence[RolloutGroup], seed: int, step: int) -> list[RolloutGroup]:
    """Fresh and replayed groups mixed, in an order that hangs on (seed, step) alone."""
    generator = np.random.Generator(np.random.Philox(key=stable_seed(seed, step, "minibatches")))
    return [groups[i] for i in generator.permutation(len(groups))]


def with_experience(group: RolloutGroup) -> RolloutGroup:
    """Off-PG: the anchor takes the last of the G slots and is treated as a response of the group."""
    anchor = group.anchor
    if anchor is None or anchor.recorded_logprobs_T is None or anchor.entropy_T is None:
        return group
    reward = Reward(1.0, 1.0, "correct")
    old = Response(anchor.token_ids_T, "", anchor.recorded_logprobs_T, anchor.entropy_T, False, reward)
    return replace(group, responses=[*group.responses[:-1], old])


def build_batch(
    groups: Sequence[RolloutGroup],
    encoded: Mapping[str, EncodedPrompt],
    *,
    minibatch_groups: int,
    sum_anchor: bool = False,
) -> StepBatch:
    """Tensors of the groups in their order; `sum_anchor` for the gap of whole sequences (`seq_sum`)."""
    rows = [(group, response) for group in groups for response in group.responses]
    is_old = [_is_experience(group, response) for group, response in rows]
    clean = [
        group.anchor.logprobs_T if old and group.anchor is not None else response.logprobs_T
        for (group, response), old in zip(rows, is_old, strict=True)
    ]
    # Wide enough for the anchors too: Off-SFT puts them into the same rows.
    width = max([len(r) for _, r in rows] + [len(g.anchor.token_ids_T) for g in groups if g.anchor])
    means, by_index = zip(*(_anchor_row(group.anchor, width, sum_anchor) for group, _ in rows), strict=True)
    return StepBatch(
        groups=list(groups),
        units=[Unit(encoded[g.prompt.id], [r.token_ids_T for r in g.responses]) for g in groups],
        minibatch_groups=minibatch_groups,
        mask_BT=pad_rows([torch.ones(len(response)) for _, response in rows], width).bool(),
        clean_logprobs_BT=pad_rows([row for row in clean if row is not None], width),
        old_logprobs_BT=pad_rows([response.logprobs_T for _, response in rows], width),
        entropy_BT=pad_rows([response.entropy_T for _, response in rows], width),
        rewards_PG=torch.tensor([g.accuracies for g in groups]),
        format_PG=torch.tensor([[r.reward.format if r.reward else 0.0 for r in g.responses] for g in groups]),
        off_policy_B=torch.tensor(is_old),
        anchor_logprob_B=torch.stack(means),
        anchor_logprobs_BT=torch.stack(by_index),
    )


def _is_experience(group: RolloutGroup, response: Response) -> bool:
    return group.anchor is not None and response.token_ids_T is group.anchor.token_ids_T


def _anchor_row(anchor: Anchor | None, width: int, sum_anchor: bool) -> tuple[Tensor, Tensor]:
    by_index_T = torch.full((width,), torch.nan)
    if anchor is None or anchor.logprobs_T is None:
        return torch.tensor(torch.nan), by_index_T
    by_index_T[: len(anchor.logprobs_T)] = anchor.logprobs_T
    return anchor.logprobs_T.sum() if sum_anchor else anchor.logprobs_T.mean(), by_index_T
