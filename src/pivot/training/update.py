"""The policy update: minibatches, micro-batches, one optimizer step each (Eq. 3, 9, 16)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from pivot.engines.memory import within_memory
from pivot.engines.optimizer import MasterAdamW
from pivot.method import Allocation, Method, ObjectiveInputs, count_totals, objective
from pivot.models.policy import Policy
from pivot.models.rows import PromptWithResponses
from pivot.training.batch import StepBatch
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

    def update(self, batch: StepBatch, allocation: Allocation) -> UpdateSummary:
        """One optimizer step a minibatch; an update whose loss or gradient is not finite is skipped and named."""
        summary = UpdateSummary()
        made: list[dict[str, float]] = []
        for groups in batch.minibatches():
            terms, result = self._minibatch(batch, allocation, groups)
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
        self, batch: StepBatch, allocation: Allocation, groups: Sequence[int]
    ) -> tuple[dict[str, float], float | Skipped]:
        """The terms, and the gradient norm of an update that was made."""
        rows = MinibatchRows(batch, allocation, groups, with_anchors=self.method.anchor_use == "sft")
        gradients = partial(self._gradients, rows)
        terms, broken = within_memory(
            gradients, partial(self.packing.halve, rows.units), "train.micro_batch_tokens"
        )
        norm = float(torch.nn.utils.clip_grad_norm_(self.optimizer.parameters, self.grad_clip))
        result: float | Skipped = norm
        if broken:
            result = Skipped("loss", broken)
        elif not math.isfinite(norm):
            result = Skipped("gradient", [unit.prompt.prompt.id for unit in rows.units])
        else:
            self.optimizer.step()
            self.policy.forget_features()
        self.optimizer.zero_grad()
        return terms, result

    def _gradients(self, rows: MinibatchRows) -> tuple[dict[str, float], list[str]]:
        """Accumulate them from nothing; the terms, and the ids of prompts whose loss is not finite."""
        totals = count_totals(self.method, rows.inputs(rows.all_rows, None))
        terms: dict[str, float] = defaultdict(float)
        broken: list[str] = []
        self.optimizer.zero_grad()
        for micro in self.packing.plan(rows.units):
            with self.policy.training():
                loss, values = objective(self.method, self._forward(rows, micro), totals)
                loss.backward()
            if not bool(torch.isfinite(loss.detach())):
                broken += [unit.prompt.prompt.id for unit in select(rows.units, micro)]
            terms["total"] += float(loss.detach())
            for name, value in values.items():
                terms[name] = max(terms[name], float(value)) if name in MAXIMA else terms[name] + float(value)
        return dict(terms), list(dict.fromkeys(broken))

    def _forward(self, rows: MinibatchRows, micro: MicroBatch) -> ObjectiveInputs:
        units = select(rows.units, micro)
        exact = self.method.entropy_coef != 0 and self.method.entropy_form == "exact"
        found = self.policy.score(
            units, self.policy.features([u.prompt for u in units]), layout=micro.layout, with_entropy=exact
        )
        return rows.inputs(row_indices(rows.units, micro), found)


class MinibatchRows:
    """The rows of one minibatch: the responses of its groups and, for Off-SFT, their anchors behind them."""

    def __init__(
        self, batch: StepBatch, allocation: Allocation, groups: Sequence[int], *, with_anchors: bool
    ) -> None:
        self.batch, self.allocation = batch, allocation
        self.units: list[PromptWithResponses] = []
        source: list[int] = []
        num_responses = batch.rewards_PG.shape[1]
        for g in groups:
            unit, anchor = batch.units[g], batch.groups[g].anchor
            extra = [anchor.token_ids_T] if with_anchors and anchor is not None else []
            self.units.append(PromptWithResponses(unit.prompt, [*unit.responses, *extra]))
            source += [g * num_responses + i for i in range(num_responses)] + [-1] * len(extra)
        self.source = torch.tensor(source)
        """Row of the step's batch; -1 for an anchor."""
        self.all_rows = torch.arange(len(source))
        self.lengths = torch.tensor([len(y) for unit in self.units for y in unit.responses])

    def inputs(self, rows: Tensor, found) -> ObjectiveInputs:
        """What the objective needs of these rows; `found` is their forward pass, None to count tokens only."""
        batch, allocation = self.batch, self.allocation
        is_response = self.source[rows] >= 0
        b = self.source[rows][is_response]
        width = int(self.lengths[rows].max())
        logprobs = batch.old_logprobs_BT[b, :width] if found is None else found.logprobs_BT[is_response]
        device = logprobs.device

        def pick(values: Tensor | None) -> Tensor | None:
            if values is None:
                return None
            return (values[b, :width] if values.dim() == 2 else values[b]).to(device)

        def need(values: Tensor) -> Tensor:
            picked = pick(values)
            assert picked is not None
            return picked

        sft_mask = torch.arange(width) < self.lengths[rows][~is_response][:, None]
        return ObjectiveInputs(
            logprobs_BT=logprobs,
            old_logprobs_BT=need(batch.old_logprobs_BT),
            advantage_BT=need(allocation.advantage_BT),
            mask_BT=need(batch.mask_BT),
            policy_mask_BT=need(allocation.policy_mask_BT),
            group_advantage_B=need(allocation.group_advantage_B),
            correct_B=need(batch.correct_B),
            entropy_BT=None if found is None else found.entropy_BT[is_response],
            corrupted_logprobs_BT=pick(batch.corrupted_logprobs_BT),
            reference_logprobs_BT=pick(batch.reference_logprobs_BT),
            anchor_logprob_B=pick(batch.anchor_logprob_B),
            anchor_logprobs_BT=pick(batch.anchor_logprobs_BT),
            off_policy_B=pick(batch.off_policy_B),
            sft_logprobs_AT=None if found is None else found.logprobs_BT[~is_response],
            sft_mask_AT=sft_mask.to(device),
        )
