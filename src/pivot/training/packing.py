"""Micro-batches: groups by length, as many as the token budget holds; and the step's responses as padded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pivot.models.policy import Layout
from pivot.models.rows import PromptWithResponses


@dataclass(frozen=True)
class Part:
    """Some responses of one unit."""

    unit: int
    responses: tuple[int, ...]


@dataclass(frozen=True)
class MicroBatch:
    """What goes through the model at once."""

    layout: Layout
    parts: tuple[Part, ...]


@dataclass
class Packing:
    """How rows are laid out and how large a micro-batch may be; one of it serves a whole run."""

    layout: Layout = "tree"
    micro_batch_tokens: int = 16384
    may_halve: bool = True
    """Whether running out of memory lowers `micro_batch_tokens` instead of ending the run."""

    def plan(self, units: Sequence[PromptWithResponses]) -> list[MicroBatch]:
        """All responses of all units, each once, in micro-batches of similar length and at most the budget."""
        parts = [part for u, unit in enumerate(units) if unit.responses for part in self._split(u, unit)]
        parts.sort(key=lambda part: (_longest(units[part.unit], part.responses), part.unit))
        batches: list[list[Part]] = []
        for part in parts:
            if not batches or self._cost(units, [*batches[-1], part]) > self.micro_batch_tokens:
                batches.append([])
            batches[-1].append(part)
        return [MicroBatch(self.layout, tuple(batch)) for batch in batches]

    def halve(self, units: Sequence[PromptWithResponses]) -> bool:
        """Plan these units in micro-batches of at most half their present size; False where that cannot be done."""
        plan = self.plan(units)
        divisible = any(sum(len(part.responses) for part in batch.parts) > 1 for batch in plan)
        if not (self.may_halve and divisible):
            return False
        largest = max(self._cost(units, batch.parts) for batch in plan)
        self.micro_batch_tokens = max(1, min(self.micro_batch_tokens, largest) // 2)
        return True

    def _split(self, index: int, unit: PromptWithResponses) -> list[Part]:
        """A unit in parts that fit the budget; a single response may exceed it, then it goes alone."""
        parts: list[tuple[int, ...]] = [()]
        for i in range(len(unit.responses)):
            grown = (*parts[-1], i)
            if parts[-1] and self._cost([unit], [Part(0, grown)]) > self.micro_batch_tokens:
                parts.append((i,))
            else:
                parts[-1] = grown
        return [Part(index, part) for part in parts]

    def _cost(self, units: Sequence[PromptWithResponses], parts: Sequence[Part]) -> int:
        """Tokens that go through the model: a tree holds each prompt once, repeated rows are padded to the longest."""
        if self.layout == "tree":
            return sum(
                len(units[p.unit].prompt) + sum(len(units[p.unit].responses[i]) for i in p.responses)
                for p in parts
            )
        return sum(len(p.responses) for p in parts) * max(_longest(units[p.unit], p.responses) for p in parts)


def _longest(unit: PromptWithResponses, responses: Sequence[int]) -> int:
    return len(unit.prompt) + max(len(unit.responses[i]) for i in responses)


def select(units: Sequence[PromptWithResponses], batch: MicroBatch) -> list[PromptWithResponses]:
    """The units of a micro-batch with just its responses."""
    return [
        PromptWithResponses(units[part.unit].prompt, [units[part.unit].responses[i] for i in part.responses])
        for part in batch.parts
    ]


def first_rows(units: Sequence[PromptWithResponses]) -> list[int]:
    """Row of each unit's first response when all responses are counted through."""
    starts, total = [], 0
    for unit in units:
        starts.append(total)
        total += len(unit.responses)
    return starts


def row_indices(units: Sequence[PromptWithResponses], batch: MicroBatch) -> Tensor:
    """Which of all responses, counted through, the rows of a micro-batch are."""
    starts = first_rows(units)
    return torch.tensor([starts[part.unit] + i for part in batch.parts for i in part.responses])


def pad_rows(rows: Sequence[Tensor], width: int) -> Tensor:
    """Rows of different length as one [B, width] tensor, 0 behind their ends."""
    out = torch.zeros(len(rows), width)
    for row, values in zip(out, rows, strict=True):
        row[: len(values)] = values
    return out
