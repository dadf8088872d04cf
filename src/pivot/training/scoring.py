"""Log-probs, entropies and divergences of many responses under the weights as they are; no gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from pivot.engines.memory import within_memory
from pivot.models.corruption import Corruptor
from pivot.models.policy import Policy, ResponseStatistics
from pivot.models.rows import PromptWithResponses
from pivot.training.packing import Packing, row_indices, select

View = Literal["clean", "corrupted", "both"]


@dataclass
class Scorer:
    """Scores units of responses at the weights of the step's start."""

    policy: Policy
    corruptor: Corruptor
    packing: Packing

    @torch.no_grad()
    def score(
        self, units: Sequence[PromptWithResponses], step: int, view: View, *, width: int | None = None
    ) -> ResponseStatistics:
        """All responses of all units, in their order, padded to `width` (by default that of the longest).

        `clean` and `corrupted` give the log-probs under that image; `both` gives the clean ones, the corrupted ones
        and their divergence. A prompt without an image looks the same either way.
        """
        return within_memory(
            partial(self._score, units, step, view, width),
            partial(self.packing.halve, units),
            "train.micro_batch_tokens",
        )

    def _score(
        self, units: Sequence[PromptWithResponses], step: int, view: View, width: int | None
    ) -> ResponseStatistics:
        num_rows = sum(len(unit.responses) for unit in units)
        longest = max((len(y) for unit in units for y in unit.responses), default=0)
        total = _empty(num_rows, width or longest, with_corrupted=view == "both")
        for batch in self.packing.plan(units):
            found = self._forward(select(units, batch), step, view, batch.layout)
            _put(total, found, row_indices(units, batch))
        return total

    def _forward(self, units: list[PromptWithResponses], step: int, view: View, layout) -> ResponseStatistics:
        prompts = [unit.prompt for unit in units]
        corrupted = None
        if view != "clean":
            # What the anchors have already encoded need not be corrupted, let alone processed, again.
            known = self.policy.knows_features
            damaged = [p if known(p, "corrupted") else self.corruptor.corrupt(p, step) for p in prompts]
            corrupted = self.policy.features(damaged, "corrupted")
        if view == "corrupted":
            assert corrupted is not None
            return self.policy.score(units, corrupted, layout=layout, with_entropy=False)
        clean = self.policy.features(prompts)
        return self.policy.score(units, clean, layout=layout, corrupted_features=corrupted)


def response_means(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the valid tokens of each response; 0 for an empty one (Eq. 4 and 5)."""
    return (values_BT * mask_BT).sum(-1) / mask_BT.sum(-1).clamp(min=1)


def _empty(num_rows: int, width: int, with_corrupted: bool) -> ResponseStatistics:
    shape = (num_rows, width)
    second = (torch.zeros(shape), torch.zeros(shape)) if with_corrupted else (None, None)
    mask = torch.zeros(shape, dtype=torch.bool)
    return ResponseStatistics(mask, torch.zeros(shape), torch.zeros(shape), *second)


def _put(total: ResponseStatistics, part: ResponseStatistics, rows: Tensor) -> None:
    width = part.mask_BT.shape[1]
    for name, values in vars(part).items():
        target = getattr(total, name)
        if values is not None and target is not None:
            target[rows, :width] = values.cpu()
