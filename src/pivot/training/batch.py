"""The groups that a step trains on, as padded tensors. Rows follow the groups; a minibatch is a range of groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pivot.engines.packing import first_rows, pad_rows
from pivot.errors import UserError
from pivot.method import Batch
from pivot.models.rows import PromptWithResponses
from pivot.seeding import stable_seed
from pivot.types import Anchor, Response, RolloutGroup


def unit_of(group: RolloutGroup, responses: Sequence[Tensor]) -> PromptWithResponses:
    """A group's prompt with some responses, for an engine."""
    assert group.prepared is not None, "prepared by the engine when it was drawn"
    return PromptWithResponses(group.prepared, responses)


def units_of(groups: Sequence[RolloutGroup]) -> list[PromptWithResponses]:
    """The prompts of the groups with their responses."""
    return [unit_of(group, [r.token_ids_T for r in group.responses]) for group in groups]


def minibatches(
    groups: Sequence[RolloutGroup], batch: Batch, *, with_targets: bool = False
) -> Iterator[tuple[list[PromptWithResponses], Batch]]:
    """The prompts and rows of each update; with `with_targets` the anchors are rows of their own (Off-SFT)."""
    units = units_of(groups)
    if with_targets:
        units, batch = _add_targets(groups, units, batch)
    minibatch_B = batch.given("minibatch_B")
    of_unit = minibatch_B[first_rows(units)].tolist()
    for m in dict.fromkeys(of_unit):
        chosen = [unit for unit, minibatch in zip(units, of_unit, strict=True) if minibatch == m]
        yield chosen, batch.select((minibatch_B == m).nonzero()[:, 0])


def minibatch_sizes(num_groups: int, minibatch_groups: int) -> list[int]:
    """Groups per update. A last minibatch below half the size joins the one before it."""
    starts = list(range(0, num_groups, minibatch_groups))
    if len(starts) > 1 and 2 * (num_groups - starts[-1]) < minibatch_groups:
        starts.pop()
    return [end - start for start, end in zip(starts, [*starts[1:], num_groups], strict=True)]


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
    *,
    minibatch_groups: int,
    sum_anchor: bool = False,
    mask_truncated: bool = False,
    max_tokens: int | None = None,
) -> Batch:
    """The rows of the groups, in their order; `sum_anchor` for the gap of whole sequences (`seq_sum`).

    With `mask_truncated` a truncated response has no valid token; its reward still counts in its group. `max_tokens` is
    the length limit of responses.
    """
    rows = [(group, response) for group in groups for response in group.responses]
    is_old = [_is_experience(group, response) for group, response in rows]
    clean = [
        group.anchor.logprobs_T if old and group.anchor is not None else response.logprobs_T
        for (group, response), old in zip(rows, is_old, strict=True)
    ]

    def padded(values: Iterable[Tensor | None]) -> Tensor:
        """NaN rows for values that sampling did not return."""
        unknown = (torch.full((len(r),), torch.nan) for _, r in rows)
        return pad_rows([u if v is None else v for u, v in zip(unknown, values, strict=True)], width)

    # Wide enough for the anchors too: Off-SFT puts them into the same rows.
    width = max([len(r) for _, r in rows] + [len(g.anchor.token_ids_T) for g in groups if g.anchor])
    means, by_index = zip(*(_anchor_row(group.anchor, width, sum_anchor) for group, _ in rows), strict=True)
    sampled = [response.sampler_logprobs_T for _, response in rows]
    group_size = len(groups[0].responses)
    sizes = torch.tensor(minibatch_sizes(len(groups), minibatch_groups))
    return Batch(
        mask_BT=pad_rows(
            [torch.full((len(r),), _is_trained(r, mask_truncated)) for _, r in rows], width
        ).bool(),
        rewards_B=torch.tensor([g.accuracies for g in groups]).flatten(),
        format_B=torch.tensor([response.reward.format if response.reward else 0.0 for _, response in rows]),
        success_B=torch.tensor([response.correct for _, response in rows]),
        group_size=group_size,
        minibatch_B=torch.arange(len(sizes)).repeat_interleave(sizes * group_size),
        clean_logprobs_BT=padded(clean),
        entropy_BT=padded(response.entropy_T for _, response in rows),
        old_logprobs_BT=padded(response.logprobs_T for _, response in rows),
        sampler_logprobs_BT=None if all(values is None for values in sampled) else padded(sampled),
        off_policy_B=torch.tensor(is_old),
        stored_B=torch.tensor([response.stored for _, response in rows]),
        max_tokens=max_tokens,
        anchor_logprob_B=torch.stack(means),
        anchor_logprobs_BT=torch.stack(by_index),
    )


def _add_targets(
    groups: Sequence[RolloutGroup], units: Sequence[PromptWithResponses], batch: Batch
) -> tuple[list[PromptWithResponses], Batch]:
    """Off-SFT: each group's anchor becomes a row of its own after the group's responses.

    Of such a row only the mask and `target_B` are read; the rest repeats the group's last response.
    """
    extended: list[PromptWithResponses] = []
    source: list[int] = []
    target_length: list[int | None] = []
    for group, unit, first in zip(groups, units, first_rows(units), strict=True):
        extra = [group.anchor.token_ids_T] if group.anchor else []
        last = first + len(unit.responses) - 1
        extended.append(PromptWithResponses(unit.prompt, [*unit.responses, *extra]))
        source += [*range(first, last + 1), *(last for _ in extra)]
        target_length += [*(None for _ in unit.responses), *map(len, extra)]
    rows = batch.take(torch.tensor(source))
    for row_T, length in zip(rows.mask_BT, target_length, strict=True):
        if length is not None:
            row_T[:] = torch.arange(len(row_T)) < length
    is_target_B = torch.tensor([length is not None for length in target_length])
    return extended, replace(rows, target_B=is_target_B)


def _is_trained(response: Response, mask_truncated: bool) -> float:
    return float(not (mask_truncated and response.truncated))


def _is_experience(group: RolloutGroup, response: Response) -> bool:
    return group.anchor is not None and response.token_ids_T is group.anchor.token_ids_T


def _anchor_row(anchor: Anchor | None, width: int, sum_anchor: bool) -> tuple[Tensor, Tensor]:
    by_index_T = torch.full((width,), torch.nan)
    if anchor is None or anchor.logprobs_T is None:
        return torch.tensor(torch.nan), by_index_T
    by_index_T[: len(anchor.logprobs_T)] = anchor.logprobs_T
    return anchor.logprobs_T.sum() if sum_anchor else anchor.logprobs_T.mean(), by_index_T
