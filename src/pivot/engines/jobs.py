"""The jobs that a driver gives to ranks, and their results: plain data, whole prompts, no pixels.

Ranks hold shards of one model, so they must enter it equally often. Prompts are partitioned by length, each rank packs
its own, and a rank with fewer micro-batches than the others gets copies that do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from pivot.engines.base import ScoreRequest, View
from pivot.engines.packing import MicroBatch, Packing, Part, row_indices, select
from pivot.engines.saving import Saving
from pivot.method import Batch, Totals
from pivot.models.policy import Layout, ResponseStatistics
from pivot.models.rows import PromptWithResponses
from pivot.types import Prompt


@dataclass(frozen=True)
class Piece:
    """One micro-batch of one rank."""

    prompts: tuple[Prompt, ...]
    tokens_N: Tensor
    """Token ids of all responses, one after another: a tensor per response would take longer to send."""
    lengths: tuple[tuple[int, ...], ...]
    """Tokens of each response, by prompt."""
    layout: Layout
    rows: Tensor
    """Indices of the responses among all of the job's."""
    counts: bool = True
    """False for a copy that only keeps the ranks in step."""
    batch: Batch | None = None
    """What the loss needs besides the forward pass."""

    @property
    def responses(self) -> list[list[Tensor]]:
        """Token ids of each response, by prompt."""
        rows = iter(self.tokens_N.split([n for lengths in self.lengths for n in lengths]))
        return [list(islice(rows, len(lengths))) for lengths in self.lengths]


@dataclass(frozen=True)
class ScoreJob:
    """Statistics of some responses, without gradient."""

    pieces: tuple[Piece, ...]
    step: int
    view: View
    images: bool
    """Whether any rank has an image: then all of them enter the vision tower."""
    of_reference: bool = False
    """Score with the frozen model that training started from."""
    with_similarity: bool = False


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
    """One rank's result of an update."""

    terms: dict[str, float]
    """Of this rank's rows; the sum over ranks is the minibatch's."""
    grad_norm: float
    """Of the whole gradient; not finite if no step was made."""
    broken: tuple[str, ...] = ()
    """Ids of this rank's prompts whose loss is not finite."""


class Ranks(Protocol):
    """All ranks together; `score` and `update` take one job per rank and return one result per rank."""

    @property
    def size(self) -> int: ...

    def score(self, jobs: Sequence[ScoreJob]) -> list[list[ResponseStatistics]]:
        """One result per piece, on the CPU."""
        ...

    def update(self, jobs: Sequence[UpdateJob]) -> list[RankUpdate]: ...

    def nonfinite_weights(self) -> list[list[str]]:
        """Names of the weights that hold a NaN or an infinity, by rank."""
        ...

    def save(self, folder: Path) -> Saving:
        """The model as a Hugging Face folder `model/`, and each rank's weights and optimizer."""
        ...

    def load(self, folder: Path) -> None:
        """What any number of ranks saved."""
        ...


def score_jobs(request: ScoreRequest, packing: Packing, num_ranks: int) -> list[ScoreJob]:
    """One job per rank."""
    pieces = pieces_of(request.units, partition(request.units, packing, num_ranks))
    images = has_images(request.units)
    flags = (images, request.of_reference, request.with_similarity)
    return [ScoreJob(part, request.step, request.view, *flags) for part in pieces]


def update_jobs(
    units: Sequence[PromptWithResponses],
    batch: Batch,
    totals: Totals,
    lr: float,
    packing: Packing,
    num_ranks: int,
) -> list[UpdateJob]:
    """One job per rank; each piece carries its rows of the batch."""
    images = has_images(units)
    return [
        UpdateJob(tuple(replace(p, batch=batch.select(p.rows)) for p in part), totals, lr, images)
        for part in pieces_of(units, partition(units, packing, num_ranks))
    ]


def partition(
    units: Sequence[PromptWithResponses], packing: Packing, num_ranks: int
) -> list[list[MicroBatch]]:
    """The micro-batches of each rank. A prompt stays whole on its rank, which alone encodes its images."""
    plans: list[list[MicroBatch]] = []
    for share in _shares(units, num_ranks):
        plan = packing.plan([units[u] for u in share])
        plans.append([_renumbered(micro, share) for micro in plan])
    return plans


def pieces_of(
    units: Sequence[PromptWithResponses], plans: Sequence[Sequence[MicroBatch]]
) -> list[tuple[Piece, ...]]:
    """The pieces of each rank, filled up to equal numbers with copies of the smallest."""
    longest = max(map(len, plans))
    smallest = min((m for plan in plans for m in plan), key=lambda m: _tokens(units, m))
    copy = _piece(units, smallest, counts=False)
    return [
        tuple([_piece(units, micro) for micro in plan] + [copy] * (longest - len(plan))) for plan in plans
    ]


def has_images(units: Sequence[PromptWithResponses]) -> bool:
    return any(unit.prompt.prompt.images for unit in units)


def _shares(units: Sequence[PromptWithResponses], num_ranks: int) -> list[list[int]]:
    """Indices of each rank's units: the longest first, always to the rank with the fewest tokens."""
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
        tokens_N=torch.cat([y for unit in chosen for y in unit.responses]).to(torch.int64),
        lengths=tuple(tuple(map(len, unit.responses)) for unit in chosen),
        layout=micro.layout,
        rows=row_indices(units, micro),
        counts=counts,
    )


def _tokens(units: Sequence[PromptWithResponses], micro: MicroBatch) -> int:
    return sum(unit.tree_length for unit in select(units, micro))
