"""The embedded engine's updater with its gradients on the ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pivot.engines.verl.jobs import Piece, Ranks, RankUpdate, UpdateJob, has_images, partition, pieces_of
from pivot.method import Batch, Method, count_totals
from pivot.models.rows import PromptWithResponses
from pivot.training.packing import Packing
from pivot.training.update import MAXIMA, Skipped, Updater


class RemoteUpdater(Updater):
    """One job a rank and minibatch; the loss is normalised by the counts of the whole minibatch."""

    def __init__(self, method: Method, packing: Packing, ranks: Ranks) -> None:
        self.method, self.packing, self.ranks = method, packing, ranks
        self.lr = 0.0
        """Of the next updates."""

    def _minibatch(
        self, units: Sequence[PromptWithResponses], rows: Batch
    ) -> tuple[dict[str, float], float | Skipped]:
        """The terms, and the gradient norm of an update that was made."""
        totals = count_totals(self.method, rows)
        pieces = pieces_of(units, partition(units, self.packing, self.ranks.size))
        images = has_images(units)
        found = self.ranks.update(
            [UpdateJob(tuple(_filled(p, rows) for p in part), totals, self.lr, images) for part in pieces]
        )
        result: float | Skipped = found[0].grad_norm
        if broken := [name for one in found for name in one.broken]:
            result = Skipped("loss", broken)
        elif not math.isfinite(found[0].grad_norm):
            result = Skipped("gradient", [unit.prompt.prompt.id for unit in units])
        return _added(found), result


def _filled(piece: Piece, rows: Batch) -> Piece:
    """The piece with what the loss needs beside the forward pass."""
    return replace(piece, batch=rows.select(piece.rows))


def _added(found: Sequence[RankUpdate]) -> dict[str, float]:
    names = dict.fromkeys(name for one in found for name in one.terms)
    return {
        name: (max if name in MAXIMA else sum)(one.terms[name] for one in found if name in one.terms)
        for name in names
    }
