"""The groups a step trains on, as padded tensors. Rows stand group by group; a minibatch is a run of groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pivot.errors import UserError
from pivot.models.encoding import EncodedPrompt
from pivot.models.rows import PromptWithResponses
from pivot.seeding import stable_seed
from pivot.training.packing import pad_rows
from pivot.types import Anchor, Response, RolloutGroup


@dataclass
class StepBatch:
    """P groups of G responses: B = P*G rows of at most T tokens."""

    groups: list[RolloutGroup]
    units: list[PromptWithResponses]
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
        sizes = torch.tensor([len(groups) for groups in self.minibatches()])
        return torch.arange(len(sizes)).repeat_interleave(sizes * self.rewards_PG.shape[1])

    def minibatches(self) -> list[range]:
        """The groups of each update. A last one below half the size joins the one before it."""
        starts = list(range(0, len(self.groups), self.minibatch_groups))
        if len(starts) > 1 and 2 * (len(self.groups) - starts[-1]) < self.minibatch_groups:
            starts.pop()
        return [range(start, end) for start, end in zip(starts, [*starts[1:], len(self.groups)], strict=True)]


def shuffled(groups: Sequence[RolloutGroup], seed: int, step: int) -> list[RolloutGroup]:
    """Fresh and replayed groups mixed, in an order that depends on (seed, step) alone."""
    generator = np.random.Generator(np.random.Philox(key=stable_seed(seed, step, "minibatches")))
    return [groups[i] for i in generator.permutation(len(groups))]


def with_experience(group: RolloutGroup) -> RolloutGroup:
    """Off-PG: the anchor takes the last of the G slots, with the reward and log-probs that were recorded with it."""
    anchor = group.anchor
    if anchor is None:
        return group
    if anchor.recorded_logprobs_T is None or anchor.reward is None:
        raise UserError(
            f"the experience of prompt {group.prompt.id!r} was recorded without its log-probs or rewards, which "
            "method.anchor_use=off_policy needs: train from the beginning instead of resuming"
        )
    old = Response(
        anchor.token_ids_T,
        "",
        anchor.recorded_logprobs_T,
        anchor.entropy_T,
        truncated=False,
        reward=anchor.reward,
    )
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

    def padded(values: Iterable[Tensor | None]) -> Tensor:
        """NaN rows for what the sampler did not say."""
        unknown = (torch.full((len(r),), torch.nan) for _, r in rows)
        return pad_rows([u if v is None else v for u, v in zip(unknown, values, strict=True)], width)

    # Wide enough for the anchors too: Off-SFT puts them into the same rows.
    width = max([len(r) for _, r in rows] + [len(g.anchor.token_ids_T) for g in groups if g.anchor])
    means, by_index = zip(*(_anchor_row(group.anchor, width, sum_anchor) for group, _ in rows), strict=True)
    return StepBatch(
        groups=list(groups),
        units=[
            PromptWithResponses(encoded[g.prompt.id], [r.token_ids_T for r in g.responses]) for g in groups
        ],
        minibatch_groups=minibatch_groups,
        mask_BT=pad_rows([torch.ones(len(response)) for _, response in rows], width).bool(),
        clean_logprobs_BT=padded(clean),
        old_logprobs_BT=padded(response.logprobs_T for _, response in rows),
        entropy_BT=padded(response.entropy_T for _, response in rows),
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
