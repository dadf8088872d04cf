"""Micro-batches: groups by length, as many as the token budget holds; and the step's responses as padded tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pivot.policy.policy import Layout
from pivot.policy.rows import Unit


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


@dataclass(frozen=True)
class Packing:
    """How rows are laid out and how large a micro-batch may be."""

    layout: Literal["auto", "tree", "repeated"] = "auto"
    micro_batch_tokens: int = 16384
    tree_row_tokens: int = 4096

    def plan(self, units: Sequence[Unit]) -> list[MicroBatch]:
        """All responses of all units, each once, in micro-batches of similar length and at most the budget."""
        plan: list[MicroBatch] = []
        for layout in ("tree", "repeated"):
            members = [u for u, unit in enumerate(units) if unit.responses and self._layout(unit) == layout]
            parts = [part for u in members for part in self._split(u, units[u], layout)]
            plan += self._fill(parts, units, layout)
        return plan

    def _layout(self, unit: Unit) -> Layout:
        if self.layout != "auto":
            return self.layout
        return "tree" if unit.tree_length <= self.tree_row_tokens else "repeated"

    def _split(self, index: int, unit: Unit, layout: Layout) -> list[Part]:
        """A unit in parts that fit the budget; a single response may exceed it, then it goes alone."""
        parts: list[list[int]] = [[]]
        for i in range(len(unit.responses)):
            if parts[-1] and _cost(unit, [*parts[-1], i], layout) > self.micro_batch_tokens:
                parts.append([])
            parts[-1].append(i)
        return [Part(index, tuple(part)) for part in parts]

    def _fill(self, parts: Sequence[Part], units: Sequence[Unit], layout: Layout) -> list[MicroBatch]:
        batches: list[list[Part]] = []
        longest = num_rows = 0
        for part in sorted(parts, key=lambda p: (_row_length(units[p.unit], p.responses, layout), p.unit)):
            rows = 1 if layout == "tree" else len(part.responses)
            longest = max(longest, _row_length(units[part.unit], part.responses, layout))
            if not batches or longest * (num_rows + rows) > self.micro_batch_tokens:
                batches.append([])
                num_rows, longest = 0, _row_length(units[part.unit], part.responses, layout)
            batches[-1].append(part)
            num_rows += rows
        return [MicroBatch(layout, tuple(batch)) for batch in batches]


def _row_length(unit: Unit, responses: Sequence[int], layout: Layout) -> int:
    lengths = [len(unit.responses[i]) for i in responses]
    return len(unit.prompt) + (sum(lengths) if layout == "tree" else max(lengths))


def _cost(unit: Unit, responses: Sequence[int], layout: Layout) -> int:
    rows = 1 if layout == "tree" else len(responses)
    return rows * _row_length(unit, responses, layout)


def select(units: Sequence[Unit], batch: MicroBatch) -> list[Unit]:
    """The units of a micro-batch with just its responses."""
    return [
        Unit(units[part.unit].prompt, [units[part.unit].responses[i] for i in part.responses])
        for part in batch.parts
    ]


def first_rows(units: Sequence[Unit]) -> list[int]:
    """Row of each unit's first response when all responses are counted through."""
    starts, total = [], 0
    for unit in units:
        starts.append(total)
        total += len(unit.responses)
    return starts


def row_indices(units: Sequence[Unit], batch: MicroBatch) -> Tensor:
    """Which of all responses, counted through, the rows of a micro-batch are."""
    starts = first_rows(units)
    return torch.tensor([starts[part.unit] + i for part in batch.parts for i in part.responses])


def pad_rows(rows: Sequence[Tensor], width: int) -> Tensor:
    """Rows of different length as one [B, width] tensor, 0 behind their ends."""
    out = torch.zeros(len(rows), width)
    for row, values in zip(out, rows, strict=True):
        row[: len(values)] = values
    return out
