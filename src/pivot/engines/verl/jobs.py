"""What the driver gives each rank to do, and what it gets back: plain data, whole prompts, no pixels.

Ranks hold shards of one model, so they must enter it equally often. Units are dealt by length, each rank packs its
own, and a rank with fewer micro-batches than the others gets stand-ins whose values count for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pivot.method import Batch, Totals
from pivot.models.policy import Layout, ResponseStatistics
from pivot.models.rows import PromptWithResponses
from pivot.training.packing import MicroBatch, Packing, Part, row_indices, select
from pivot.training.scoring import View
from pivot.types import Prompt


@dataclass(frozen=True)
class Piece:
    """One micro-batch of one rank."""

    prompts: tuple[Prompt, ...]
    responses: tuple[tuple[Tensor, ...], ...]
    """Token ids, by prompt."""
    layout: Layout
    rows: Tensor
    """Which of all responses they are."""
    counts: bool = True
    """False for a stand-in."""
    batch: Batch | None = None
    """What the loss needs beside the forward pass."""


@dataclass(frozen=True)
class ScoreJob:
    """Statistics of some responses, without gradient."""

    pieces: tuple[Piece, ...]
    step: int
    view: View
    images: bool
    """Whether any rank sees an image: then all of them enter the vision tower."""
    of_reference: bool = False
    """By the frozen model that training started from."""


@dataclass(frozen=True)
class UpdateJob:
    """One optimizer step on some rows of a minibatch."""

    pieces: tuple[Piece, ...]
    totals: Totals
    """Of the whole minibatch, over all ranks."""
    lr: float
    images: bool


@dataclass(frozen=True)
class RankUpdate:
    """What an update did, as one rank saw it."""

    terms: dict[str, float]
    """Of this rank's rows; they add up over ranks."""
    grad_norm: float
    """Of the whole gradient; not finite: no step was made."""
    broken: tuple[str, ...] = ()
    """Ids of prompts on this rank whose loss is not finite."""


class Ranks(Protocol):
    """All ranks together; each method takes a job a rank and returns a result a rank."""

    @property
    def size(self) -> int: ...

    def score(self, jobs: Sequence[ScoreJob]) -> list[list[ResponseStatistics]]:
        """One result a piece, on the CPU."""
        ...

    def update(self, jobs: Sequence[UpdateJob]) -> list[RankUpdate]: ...

    def nonfinite_weights(self) -> list[list[str]]:
        """Names of the weights that hold a NaN or an infinity, by rank."""
        ...


def partition(
    units: Sequence[PromptWithResponses], packing: Packing, num_ranks: int
) -> list[list[MicroBatch]]:
    """The micro-batches of each rank, equally many on all; those past the end of a list are stand-ins.

    A unit stays whole on its rank, so that its images are encoded there alone.
    """
    plans: list[list[MicroBatch]] = []
    for share in _shares(units, num_ranks):
        plan = packing.plan([units[u] for u in share])
        plans.append([_renumbered(micro, share) for micro in plan])
    return plans


def pieces_of(
    units: Sequence[PromptWithResponses], plans: Sequence[Sequence[MicroBatch]]
) -> list[tuple[Piece, ...]]:
    """The pieces of each rank, with stand-ins up to the same number."""
    longest = max(map(len, plans))
    smallest = min((m for plan in plans for m in plan), key=lambda m: _tokens(units, m))
    stand_in = _piece(units, smallest, counts=False)
    return [
        tuple([_piece(units, micro) for micro in plan] + [stand_in] * (longest - len(plan))) for plan in plans
    ]


def has_images(units: Sequence[PromptWithResponses]) -> bool:
    return any(unit.prompt.prompt.images for unit in units)


def _shares(units: Sequence[PromptWithResponses], num_ranks: int) -> list[list[int]]:
    """Indices of the units of each rank: the longest first, always to the rank with the least to do."""
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    load = [0] * num_ranks
    for u in sorted(range(len(units)), key=lambda u: (-units[u].tree_length, u)):
        rank = load.index(min(load))
        shares[rank].append(u)
        load[rank] += units[u].tree_length
    return [sorted(share) for share in shares]


def _renumbered(micro: MicroBatch, share: Sequence[int]) -> MicroBatch:
    return MicroBatch(micro.layout, tuple(Part(share[p.unit], p.responses) for p in micro.parts))


def _piece(units: Sequence[PromptWithResponses], micro: MicroBatch, *, counts: bool = True) -> Piece:
    chosen = select(units, micro)
    return Piece(
        prompts=tuple(unit.prompt.prompt for unit in chosen),
        responses=tuple(tuple(y.to(torch.int64) for y in unit.responses) for unit in chosen),
        layout=micro.layout,
        rows=row_indices(units, micro),
        counts=counts,
    )


def _tokens(units: Sequence[PromptWithResponses], micro: MicroBatch) -> int:
    return sum(unit.tree_length for unit in select(units, micro))
