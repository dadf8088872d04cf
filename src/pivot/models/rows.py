"""How prompts and responses are laid out for one forward pass.

`tree`: one row for everything: the prompts, then their responses as trees, so that common beginnings of siblings occur
once. Every response sees its prompt and itself; its positions continue the prompt's.
`repeated`: one row per response, [prompt | y], right-padded.
Both give the same log-probs. `Rows` says which hidden state predicts which token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pivot.models.family import EncodedPrompt
from pivot.models.shared_prefix import SharedPrefix, share
from pivot.types import PreparedPrompt

PreparedT = TypeVar("PreparedT", bound=PreparedPrompt)


@dataclass(frozen=True)
class PromptWithResponses(Generic[PreparedT]):
    """A prompt and some of its responses; micro-batches consist of these."""

    prompt: PreparedT
    """Encoded wherever a model reads it; only measured in a driver without a model."""
    responses: Sequence[Tensor]
    """Token ids of each response, int64 [T]."""

    @property
    def tree_length(self) -> int:
        """Tokens of a tree row at most; siblings may share some."""
        return len(self.prompt) + sum(len(y) for y in self.responses)


@dataclass
class Rows:
    """R rows of L tokens with B responses of at most T tokens, N of them to be predicted."""

    input_ids_RL: Tensor
    position_ids_ARL: Tensor
    unit_R: list[int]
    """Units whose images occur, in the order of the rows."""
    predictor_N: Tensor
    """Flat index r*L + l of the hidden state that predicts token n."""
    targets_N: Tensor
    token_BT: Tensor
    """Index n of token t of response b; siblings with a common beginning share indices. 0 where masked."""
    mask_BT: Tensor
    place_N: Tensor
    """Flat index of token n itself."""
    prompt_RL: Tensor
    """The prompt that each token belongs to: a number of its own for every prompt in every row."""
    shared_prefix: SharedPrefix | None = None
    """How a tree row attends; None: rows are causal."""
    has_gaps: bool = False
    """Whether positions skip hidden images, which Hugging Face would take for the end of a packed row."""

    def spread(self, values_N: Tensor | None) -> Tensor:
        """Values of the predicted tokens per response; 0 where masked or not computed."""
        if values_N is None:
            return torch.zeros(self.mask_BT.shape, device=self.mask_BT.device)
        spread_BT = values_N.index_select(0, self.token_BT.flatten()).view(self.token_BT.shape)
        return torch.where(self.mask_BT, spread_BT, 0.0)

    def to(self, device: torch.device) -> Rows:
        moved = {n: v.to(device) for n, v in vars(self).items() if isinstance(v, Tensor | SharedPrefix)}
        return replace(self, **moved)


def tree_rows(units: Sequence[PromptWithResponses[EncodedPrompt]]) -> Rows:
    """All units in one row without padding."""
    prompts = [unit.prompt for unit in units]
    first_P = np.cumsum([0, *(len(prompt) for prompt in prompts)])
    trees = [_Tree.grow(unit.responses) for unit in units]
    first_N = np.cumsum([0, *(len(tree.targets_N) for tree in trees)])
    # Tokens of the row: the prompts' first, then the trees'.
    before = int(first_P[-1])
    last_P = torch.from_numpy(first_P[1:] - 1)
    predictor = [
        torch.where(tree.parent_N < 0, last_P[u], before + int(first_N[u]) + tree.parent_N)
        for u, tree in enumerate(trees)
    ]
    positions = [
        (prompt.next_position + tree.depth_N).expand(len(prompt.position_ids_AL), -1)
        for prompt, tree in zip(prompts, trees, strict=True)
    ]
    targets_N = torch.cat([tree.targets_N for tree in trees])
    token_BT = _pad([row + int(first_N[u]) for u, tree in enumerate(trees) for row in tree.token_T])
    mask_BT = _pad([torch.ones(len(row), dtype=torch.bool) for tree in trees for row in tree.token_T])
    prompt_places = [torch.arange(a, b) for a, b in pairwise(first_P)]
    response_places = [before + int(first_N[u]) + row for u, tree in enumerate(trees) for row in tree.token_T]
    prompt_of = [u for u, unit in enumerate(units) for _ in unit.responses]
    lengths_U = torch.tensor([*map(len, prompts), *(len(tree.targets_N) for tree in trees)])
    prompt_L = torch.arange(len(units)).repeat(2).repeat_interleave(lengths_U)
    return Rows(
        input_ids_RL=torch.cat([*(p.input_ids_L for p in prompts), targets_N])[None],
        position_ids_ARL=torch.cat([*(p.position_ids_AL for p in prompts), *positions], dim=1)[:, None],
        unit_R=list(range(len(units))),
        predictor_N=torch.cat(predictor),
        targets_N=targets_N,
        token_BT=token_BT,
        mask_BT=mask_BT,
        place_N=before + torch.arange(len(targets_N)),
        prompt_RL=prompt_L[None],
        shared_prefix=share(prompt_places, response_places, prompt_of),
    )


def repeated_rows(units: Sequence[PromptWithResponses[EncodedPrompt]], pad_id: int) -> Rows:
    """One row per response. Rows are causal, so padding at the end changes nothing."""
    singles = [(u, unit.prompt, y) for u, unit in enumerate(units) for y in unit.responses]
    ids = [torch.cat([prompt.input_ids_L, y]) for _, prompt, y in singles]
    positions = [_continued(prompt, len(y)).T for _, prompt, y in singles]
    mask_BT = _pad([torch.ones(len(y), dtype=torch.bool) for _, _, y in singles])
    input_ids_RL = pad_sequence(ids, batch_first=True, padding_value=pad_id)
    start_R = torch.tensor([len(prompt) for _, prompt, _ in singles])
    first_R = torch.arange(len(singles)) * input_ids_RL.shape[1] + start_R - 1
    predictor_BT = first_R[:, None] + torch.arange(mask_BT.shape[1])
    return Rows(
        input_ids_RL=input_ids_RL,
        position_ids_ARL=pad_sequence(positions, batch_first=True).permute(2, 0, 1),
        unit_R=[u for u, _, _ in singles],
        predictor_N=predictor_BT[mask_BT],
        targets_N=torch.cat([y for _, _, y in singles]),
        token_BT=(mask_BT.flatten().cumsum(0) - 1).clamp(min=0).view(mask_BT.shape),
        mask_BT=mask_BT,
        place_N=predictor_BT[mask_BT] + 1,
        prompt_RL=torch.arange(len(singles))[:, None].expand(input_ids_RL.shape),
        has_gaps=any(unit.prompt.hides_images for unit in units),
    )


@dataclass(frozen=True)
class _Tree:
    """Responses to one prompt with common beginnings merged: N tokens, each with its parent."""

    targets_N: Tensor
    parent_N: Tensor
    """The token before; -1: the prompt's last."""
    depth_N: Tensor
    token_T: list[Tensor]
    """The tokens of each response, in order."""

    @staticmethod
    def grow(responses: Sequence[Tensor]) -> _Tree:
        """Sorted, a response has the longest common beginning with the one before it."""
        lengths = [len(y) for y in responses]
        ids_GT = pad_sequence(list(responses), batch_first=True, padding_value=-1).numpy()
        order = np.lexsort(ids_GT.T[::-1])
        ids_GT = ids_GT[order]
        alike_GT = np.zeros(ids_GT.shape, dtype=bool)
        alike_GT[1:] = np.logical_and.accumulate(ids_GT[1:] == ids_GT[:-1], axis=1)
        new_GT = ~alike_GT & (ids_GT >= 0)
        number_GT = np.cumsum(new_GT).reshape(new_GT.shape) - 1
        owner_GT = np.maximum.accumulate(np.where(new_GT, np.arange(len(order))[:, None], 0), axis=0)
        token_GT = np.take_along_axis(number_GT, owner_GT, axis=0)
        parent_GT = np.concatenate([np.full((len(order), 1), -1), token_GT[:, :-1]], axis=1)
        depth_GT = np.broadcast_to(np.arange(ids_GT.shape[1]), ids_GT.shape)
        tokens = token_GT[np.argsort(order)]
        return _Tree(
            targets_N=torch.from_numpy(ids_GT[new_GT]),
            parent_N=torch.from_numpy(parent_GT[new_GT]),
            depth_N=torch.from_numpy(depth_GT[new_GT]),
            token_T=[torch.from_numpy(row[:n]) for row, n in zip(tokens, lengths, strict=True)],
        )


def _continued(prompt: EncodedPrompt, num_tokens: int) -> Tensor:
    """Positions [axes, L + T] of a prompt and a response."""
    following = prompt.next_position + torch.arange(num_tokens)
    return torch.cat([prompt.position_ids_AL, following.expand(len(prompt.position_ids_AL), -1)], 1)


def _pad(rows: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(rows), batch_first=True)
