"""Log-probs, entropies and divergences of many responses under fixed weights; no gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from pivot.engines.base import ScoreRequest
from pivot.engines.packing import MicroBatch, Packing, row_indices, select
from pivot.models.corruption import Corruptor
from pivot.models.family import EncodedPrompt
from pivot.models.memory import within_memory
from pivot.models.policy import Policy, ResponseStatistics
from pivot.models.rows import PromptWithResponses


@dataclass
class Scorer:
    """Scores responses in micro-batches with a policy in this process."""

    policy: Policy
    corruptor: Corruptor
    packing: Packing

    @torch.no_grad()
    def score(self, request: ScoreRequest) -> ResponseStatistics:
        """All responses of all units, in their order, padded to the longest."""
        return within_memory(
            partial(self._score, request),
            partial(self.packing.halve, request.units),
            "train.micro_batch_tokens",
        )

    def _score(self, request: ScoreRequest) -> ResponseStatistics:
        rows = RowStatistics(request.units)
        for batch in self.packing.plan(request.units):
            rows.put(self._forward(request, batch), row_indices(request.units, batch))
        return rows.statistics()

    def _forward(self, request: ScoreRequest, batch: MicroBatch) -> ResponseStatistics:
        units, view = select(request.units, batch), request.view
        prompts = [unit.prompt for unit in units]
        corrupted = damaged_units = None
        if view != "clean":
            # Features that are already known need not be corrupted and processed again.
            hidden, known = self.corruptor.corruption.hidden, self.policy.knows_features
            damaged = [
                p if known(p, "corrupted") and not hidden else self.corruptor.corrupt(p, request.step)
                for p in prompts
            ]
            corrupted = self.policy.features(damaged, "corrupted")
            if hidden:
                damaged_units = with_prompts(units, damaged)
        if view == "corrupted":
            assert corrupted is not None
            return self.policy.score(
                damaged_units or units, corrupted, layout=batch.layout, with_entropy=False
            )
        return self.policy.score(
            units,
            self.policy.features(prompts),
            layout=batch.layout,
            corrupted_features=corrupted,
            corrupted_units=damaged_units,
            with_similarity=request.with_similarity,
        )


def with_prompts(
    units: Sequence[PromptWithResponses], prompts: Sequence[EncodedPrompt]
) -> list[PromptWithResponses]:
    """The same responses to other encodings of their prompts."""
    return [replace(unit, prompt=prompt) for unit, prompt in zip(units, prompts, strict=True)]


class RowStatistics:
    """The statistics of all responses of some units, filled micro-batch by micro-batch."""

    def __init__(self, units: Sequence[PromptWithResponses]) -> None:
        lengths = [len(y) for unit in units for y in unit.responses]
        self._shape = (len(lengths), max(lengths))
        self._columns: dict[str, Tensor] = {}

    def put(self, part: ResponseStatistics, rows: Tensor) -> None:
        """`part` holds these rows, in this order."""
        for name, values in vars(part).items():
            if values is None:
                continue
            if name not in self._columns:
                self._columns[name] = torch.zeros(self._shape, dtype=values.dtype)
            self._columns[name][rows, : values.shape[1]] = values.cpu()

    def statistics(self) -> ResponseStatistics:
        return ResponseStatistics(**self._columns)


def response_means(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the valid tokens of each response; 0 for an empty one (Eq. 4 and 5)."""
    return (values_BT * mask_BT).sum(-1) / mask_BT.sum(-1).clamp(min=1)
