"""The embedded engine's scorer with its forwards on the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pivot.engines.verl.jobs import Ranks, ScoreJob, has_images, partition, pieces_of
from pivot.models.policy import ResponseStatistics
from pivot.models.rows import PromptWithResponses
from pivot.training.scoring import Scorer, View


@dataclass
class RemoteScorer(Scorer):
    """Deals rows to the ranks and puts what they say back in order; `policy` only knows tokens and images."""

    ranks: Ranks
    of_reference: bool = False

    def score(
        self, units: Sequence[PromptWithResponses], step: int, view: View, *, width: int | None = None
    ) -> ResponseStatistics:
        """As the embedded scorer does."""
        if not units:
            return super().score(units, step, view, width=width)
        pieces = pieces_of(units, partition(units, self.packing, self.ranks.size))
        images = has_images(units)
        jobs = [ScoreJob(part, step, view, images, self.of_reference) for part in pieces]
        found = self.ranks.score(jobs)
        total = _Total(units, width)
        for job, parts in zip(jobs, found, strict=True):
            for piece, part in zip(job.pieces, parts, strict=True):
                if piece.counts:
                    total.put(part, piece.rows)
        return total.statistics(with_corrupted=view == "both")


class _Total:
    """The statistics of all rows, filled part by part."""

    def __init__(self, units: Sequence[PromptWithResponses], width: int | None) -> None:
        lengths = [len(y) for unit in units for y in unit.responses]
        self._shape = (len(lengths), width or max(lengths))
        self._columns: dict[str, Tensor] = {}

    def put(self, part: ResponseStatistics, rows: Tensor) -> None:
        for name, values in vars(part).items():
            if values is not None:
                column = self._columns.setdefault(name, torch.zeros(self._shape, dtype=values.dtype))
                column[rows, : values.shape[1]] = values

    def statistics(self, *, with_corrupted: bool) -> ResponseStatistics:
        second = ("corrupted_logprobs_BT", "divergence_BT")
        return ResponseStatistics(
            **{name: v for name, v in self._columns.items() if with_corrupted or name not in second}
        )
