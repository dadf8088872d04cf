"""Micro-batches: prompts with their responses, sorted by length and packed up to a token budget."""

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
    """How rows are laid out and how large a micro-batch may be; a run has one."""

    layout: Layout = "tree"
    micro_batch_tokens: int = 16384
    may_halve: bool = True
    """Whether running out of memory lowers `micro_batch_tokens` instead of ending the run."""

    def plan(self, units: Sequence[PromptWithResponses]) -> list[MicroBatch]:
        """All responses of all units, each once, in micro-batches of similar length within the budget."""
        parts = [part for u, unit in enumerate(units) if unit.responses for part in self._split(u, unit)]
        parts.sort(key=lambda part: (_longest(units[part.unit], part.responses), part.unit))
        batches: list[list[Part]] = []
        for part in parts:
            if not batches or self.cost(units, [*batches[-1], part]) > self.micro_batch_tokens:
                batches.append([])
            batches[-1].append(part)
        return [MicroBatch(self.layout, tuple(batch)) for batch in batches]

    def halve(self, units: Sequence[PromptWithResponses]) -> bool:
        """Lower the budget so that these units need at most half of it; False if that is impossible."""
        plan = self.plan(units)
        divisible = any(sum(len(part.responses) for part in batch.parts) > 1 for batch in plan)
        if not (self.may_halve and divisible):
            return False
        largest = max(self.cost(units, batch.parts) for batch in plan)
        self.micro_batch_tokens = max(1, min(self.micro_batch_tokens, largest) // 2)
        return True

    def _split(self, index: int, unit: PromptWithResponses) -> list[Part]:
        """A unit in parts within the budget; a single response that exceeds it is a part of its own."""
        parts: list[tuple[int, ...]] = [()]
        for i in range(len(unit.responses)):
            grown = (*parts[-1], i)
            if parts[-1] and self.cost([unit], [Part(0, grown)]) > self.micro_batch_tokens:
                parts.append((i,))
            else:
                parts[-1] = grown
        return [Part(index, part) for part in parts]

    def cost(self, units: Sequence[PromptWithResponses], parts: Sequence[Part]) -> int:
        """Tokens computed: a tree holds each prompt once, repeated rows are padded to the longest."""
        if self.layout == "tree":
            return sum(
                len(units[p.unit].prompt) + sum(len(units[p.unit].responses[i]) for i in p.responses)
                for p in parts
            )
        return sum(len(p.responses) for p in parts) * max(_longest(units[p.unit], p.responses) for p in parts)


def _longest(unit: PromptWithResponses, responses: Sequence[int]) -> int:
    return len(unit.prompt) + max(len(unit.responses[i]) for i in responses)


def select(units: Sequence[PromptWithResponses], batch: MicroBatch) -> list[PromptWithResponses]:
    """The units of a micro-batch with its responses only."""
    return [
        PromptWithResponses(units[part.unit].prompt, [units[part.unit].responses[i] for i in part.responses])
        for part in batch.parts
    ]


def first_rows(units: Sequence[PromptWithResponses]) -> list[int]:
    """Index of each unit's first response among all responses."""
    starts, total = [], 0
    for unit in units:
        starts.append(total)
        total += len(unit.responses)
    return starts


def row_indices(units: Sequence[PromptWithResponses], batch: MicroBatch) -> Tensor:
    """Indices of a micro-batch's responses among all responses."""
    starts = first_rows(units)
    return torch.tensor([starts[part.unit] + i for part in batch.parts for i in part.responses])


def pad_rows(rows: Sequence[Tensor], width: int) -> Tensor:
    """Rows of different lengths as one [B, width] tensor, padded with 0."""
    out = torch.zeros(len(rows), width)
    for row, values in zip(out, rows, strict=True):
        row[: len(values)] = values
    return out
