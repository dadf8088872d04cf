"""The policy update: minibatches, micro-batches, one optimizer step each (Eq. 3, 9, 16)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch

from pivot.method import Batch, Method, count_totals, objective
from pivot.models.policy import Policy
from pivot.models.rows import PromptWithResponses
from pivot.training.batch import StepBatch
from pivot.training.memory import within_memory
from pivot.training.optimizer import MasterAdamW
from pivot.training.packing import MicroBatch, Packing, row_indices, select

MAXIMA = ("ratio_max",)
"""Terms of the objective that are not added up over micro-batches."""


@dataclass(frozen=True)
class Skipped:
    """An update that was left out."""

    what: Literal["reward", "loss", "gradient"]
    """The first thing that was not finite."""
    prompts: list[str]
    """Ids of those it came from, as closely as that is known."""


@dataclass
class UpdateSummary:
    """What the updates of a step did; terms are means over the updates that were made."""

    terms: dict[str, float] = field(default_factory=dict)
    grad_norms: list[float] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    """Updates that were left out because a number was not finite."""

    @property
    def num_updates(self) -> int:
        return len(self.grad_norms)


@dataclass
class Updater:
    """Turns a scored batch into optimizer steps."""

    policy: Policy
    method: Method
    optimizer: MasterAdamW
    packing: Packing
    grad_clip: float

    def update(self, batch: StepBatch) -> UpdateSummary:
        """One optimizer step per minibatch; an update whose loss or gradient is not finite is skipped and named."""
        summary = UpdateSummary()
        made: list[dict[str, float]] = []
        for units, rows in batch.minibatches():
            terms, result = self._minibatch(units, rows)
            if isinstance(result, Skipped):
                summary.skipped.append(result)
                continue
            made.append(terms)
            summary.grad_norms.append(result)
        for terms in made:
            for name, value in terms.items():
                summary.terms[name] = summary.terms.get(name, 0.0) + value / len(made)
        return summary

    def _minibatch(
        self, units: Sequence[PromptWithResponses], rows: Batch
    ) -> tuple[dict[str, float], float | Skipped]:
        """The terms, and the gradient norm of an update that was made."""
        gradients = partial(self._gradients, units, rows)
        terms, broken = within_memory(
            gradients, partial(self.packing.halve, units), "train.micro_batch_tokens"
        )
        norm = float(torch.nn.utils.clip_grad_norm_(self.optimizer.parameters, self.grad_clip))
        result: float | Skipped = norm
        if broken:
            result = Skipped("loss", broken)
        elif not math.isfinite(norm):
            result = Skipped("gradient", [unit.prompt.prompt.id for unit in units])
        else:
            self.optimizer.step()
            self.policy.forget_features()
        self.optimizer.zero_grad()
        return terms, result

    def _gradients(
        self, units: Sequence[PromptWithResponses], rows: Batch
    ) -> tuple[dict[str, float], list[str]]:
        """Accumulate them from nothing; the terms, and the ids of prompts whose loss is not finite."""
        totals = count_totals(self.method, rows)
        terms: dict[str, float] = defaultdict(float)
        broken: list[str] = []
        self.optimizer.zero_grad()
        for micro in self.packing.plan(units):
            with self.policy.training():
                loss, values = objective(self.method, self._forward(units, rows, micro), totals)
                loss.backward()
            if not bool(torch.isfinite(loss.detach())):
                broken += [unit.prompt.prompt.id for unit in select(units, micro)]
            terms["total"] += float(loss.detach())
            for name, value in values.items():
                terms[name] = max(terms[name], float(value)) if name in MAXIMA else terms[name] + float(value)
        return dict(terms), list(dict.fromkeys(broken))

    def _forward(self, units: Sequence[PromptWithResponses], rows: Batch, micro: MicroBatch) -> Batch:
        chosen = select(units, micro)
        found = self.policy.score(
            chosen,
            self.policy.features([u.prompt for u in chosen]),
            layout=micro.layout,
            with_entropy=self.method.needs_entropy,
        )
        return rows.select(row_indices(units, micro)).with_forward(found.logprobs_BT, found.entropy_BT)
