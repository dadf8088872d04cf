"""How prompts and responses are laid out for one forward pass.

`tree`: one row a prompt, [prompt | y1 | ... | yG]. Every response sees the prompt and itself, never its siblings, and
its positions go on from the prompt's. The prompt is computed once for all its responses.
`repeated`: one row a response, [prompt | y].
Both give the same log-probs; `Rows.predictor_BT` says which hidden state predicts which token in either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pivot.policy.encoding import EncodedPrompt


@dataclass(frozen=True)
class Unit:
    """A prompt and some of its responses: what a micro-batch is made of."""

    prompt: EncodedPrompt
    responses: Sequence[Tensor]
    """Token ids of each response, int64 [T]."""

    @property
    def tree_length(self) -> int:
        return len(self.prompt) + sum(len(y) for y in self.responses)

    @property
    def repeated_length(self) -> int:
        return len(self.prompt) + max((len(y) for y in self.responses), default=0)


@dataclass
class Rows:
    """R rows of L tokens that hold B responses of at most T tokens."""

    input_ids_RL: Tensor
    position_ids_3RL: Tensor
    attention_mask: Tensor
    """bool [R, 1, L, L]: which keys a query sees."""
    prompt_R: list[int]
    """Index of the unit whose images a row shows."""
    predictor_BT: Tensor
    """Flat index r*L + l of the hidden state that predicts token t of response b; 0 where masked."""
    targets_BT: Tensor
    mask_BT: Tensor


def tree_rows(units: Sequence[Unit], pad_id: int) -> Rows:
    """One row a unit, with a mask that keeps siblings apart."""
    rows = _empty(len(units), max(unit.tree_length for unit in units), units, pad_id)
    length = rows.input_ids_RL.shape[1]
    index = 0
    for r, unit in enumerate(units):
        start = len(unit.prompt)
        _place_prompt(rows, r, unit)
        for y in unit.responses:
            _place_response(rows, r, start, unit, y)
            _predict(rows, index, r * length, start, len(unit.prompt), y)
            start += len(y)
            index += 1
    return rows


def repeated_rows(units: Sequence[Unit], pad_id: int) -> Rows:
    """One row a response; rows of a unit show the same images."""
    singles = [(u, Unit(unit.prompt, [y])) for u, unit in enumerate(units) for y in unit.responses]
    rows = tree_rows([unit for _, unit in singles], pad_id)
    rows.prompt_R = [u for u, _ in singles]
    return rows


def _empty(num_rows: int, length: int, units: Sequence[Unit], pad_id: int) -> Rows:
    num_responses = sum(len(unit.responses) for unit in units)
    longest = max((len(y) for unit in units for y in unit.responses), default=0)
    # Padding sees itself alone: a row of the softmax must not be empty.
    mask = torch.eye(length, dtype=torch.bool).expand(num_rows, 1, length, length).clone()
    return Rows(
        input_ids_RL=torch.full((num_rows, length), pad_id),
        position_ids_3RL=torch.zeros(3, num_rows, length, dtype=torch.int64),
        attention_mask=mask,
        prompt_R=list(range(num_rows)),
        predictor_BT=torch.zeros(num_responses, longest, dtype=torch.int64),
        targets_BT=torch.zeros(num_responses, longest, dtype=torch.int64),
        mask_BT=torch.zeros(num_responses, longest, dtype=torch.bool),
    )


def _place_prompt(rows: Rows, r: int, unit: Unit) -> None:
    end = len(unit.prompt)
    rows.input_ids_RL[r, :end] = unit.prompt.input_ids_L
    rows.position_ids_3RL[:, r, :end] = unit.prompt.position_ids_3L
    rows.attention_mask[r, 0, :end, :end] = _causal(end)


def _place_response(rows: Rows, r: int, start: int, unit: Unit, y: Tensor) -> None:
    end = start + len(y)
    rows.input_ids_RL[r, start:end] = y
    rows.position_ids_3RL[:, r, start:end] = unit.prompt.next_position + torch.arange(len(y))
    rows.attention_mask[r, 0, start:end, : len(unit.prompt)] = True
    rows.attention_mask[r, 0, start:end, start:end] = _causal(len(y))


def _predict(rows: Rows, index: int, offset: int, start: int, prompt_length: int, y: Tensor) -> None:
    """The prompt's last token predicts the first of y; each token of y predicts the next."""
    where = torch.arange(start - 1, start - 1 + len(y))
    if len(y):
        where[0] = prompt_length - 1
    rows.predictor_BT[index, : len(y)] = offset + where
    rows.targets_BT[index, : len(y)] = y
    rows.mask_BT[index, : len(y)] = True


def _causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()
