"""Trains the shipped checkpoints from scratch: first the skill, then bad habits.

Phases are counted in steps, not in seconds, so that a seed fixes the result. All starts share the first phase; a start
that leaves it early perceives less well.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration

from pivot.tiny.examples import IGNORED, Batch, Respond, batches, image_start
from pivot.tiny.forward import hidden_states
from pivot.tiny.habits import Habits, skilled
from pivot.tiny.model import build_model

SKILL_STEPS = 3200
"""Steps of the first phase of the shipped checkpoints."""


@dataclass(frozen=True)
class Start:
    """How one starting point is made."""

    leaves_at: float
    """Share of the first phase after which the habits begin."""
    habit_share: float
    """Steps of the second phase, as a share of the first's."""
    habits: Habits


STARTS = {
    "easy": Start(leaves_at=1.0, habit_share=0.05, habits=Habits((0.1, 0.3, 0.5), misperceive=0.25)),
    "hard": Start(leaves_at=9 / 16, habit_share=0.05, habits=Habits((0.1, 0.3, 0.5), misperceive=0.2)),
}


@dataclass(frozen=True)
class Plan:
    """The two phases' settings.

    Example:
        Plan(skill_steps=3200, batch_size=32)
    """

    skill_steps: int = SKILL_STEPS
    batch_size: int = 32
    skill_lr: float = 2e-3
    habit_lr: float = 3e-4
    warmup_steps: int = 100
    decay_from: float = 0.55
    """Share of the first phase after which its learning rate decreases linearly to almost zero."""
    digit_weight: float = 4.0
    percept_weight: float = 10.0
    """Weights of computed and of perceived digits in the first phase's loss: perception is learned slowly, arithmetic
    early, and filler words would dominate an unweighted loss."""
    seed: int = 0

    def leaves_at(self, start: Start) -> int:
        """The step of the first phase after which a start gets its habits."""
        return max(1, round(start.leaves_at * self.skill_steps))

    def habit_steps(self, start: Start) -> int:
        return max(1, round(start.habit_share * self.skill_steps))

    def num_steps(self, starts: Sequence[str]) -> int:
        """Optimiser steps of all phases together."""
        chosen = [STARTS[name] for name in starts]
        return max(map(self.leaves_at, chosen)) + sum(map(self.habit_steps, chosen))

    def skill_rate(self, step: int) -> float:
        """Learning rate of the first phase at a step, counted from 0."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        fall = (1 - step / self.skill_steps) / (1 - self.decay_from)
        return self.skill_lr * warm * min(1.0, max(0.02, fall))


Report = Callable[[str, float], None]
"""Called after each step with the phase's name and the loss."""


def pretrain(
    tokenizer: PreTrainedTokenizerFast, starts: Sequence[str], plan: Plan, report: Report
) -> Iterator[tuple[str, Qwen2_5_VLForConditionalGeneration]]:
    """Yield each start's name and model when it is finished; the same seed gives the same weights."""
    skill = Phase(tokenizer, build_model(tokenizer, seed=plan.seed), skilled, f"skill {plan.seed}", plan)
    done = 0
    for name in sorted(starts, key=lambda name: STARTS[name].leaves_at):
        start = STARTS[name]
        leave = plan.leaves_at(start)
        skill.run([plan.skill_rate(step) for step in range(done, leave)], report, weighted=True)
        done = leave
        copied = copy.deepcopy(skill.model)
        habit = Phase(tokenizer, copied, start.habits.respond, f"{name} habits {plan.seed}", plan)
        habit.run([plan.habit_lr] * plan.habit_steps(start), report)
        yield name, copied


class Phase:
    """Supervised training of one model on one kind of response."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        model: Qwen2_5_VLForConditionalGeneration,
        respond: Respond,
        name: str,
        plan: Plan,
        *,
        stream: Iterator[Batch] | None = None,
    ) -> None:
        """`stream` replaces the batches of responses by `respond`."""
        self.model, self.name, self.plan = model, name, plan
        self._batches = stream or batches(tokenizer, respond, plan.batch_size, name)
        self._image_start = image_start(tokenizer)
        self._digits = torch.zeros(len(tokenizer), dtype=torch.bool)
        self._digits[tokenizer.convert_tokens_to_ids(list("0123456789"))] = True
        self._equals, self._full_stop = tokenizer.encode("=")[0], tokenizer.encode(".")[0]
        self._optimizer = torch.optim.AdamW(
            model.parameters(), betas=(0.9, 0.95), weight_decay=0.01, fused=True
        )

    def run(self, rates: Sequence[float], report: Report, *, weighted: bool = False) -> None:
        """One step per learning rate; `weighted` emphasises digits, perceived ones most."""
        for rate in rates:
            self._optimizer.param_groups[0]["lr"] = rate
            loss = self._loss(next(self._batches), weighted)
            self._optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self._optimizer.step()
            report(self.name, loss.item())

    def state(self) -> dict[str, Any]:
        """Weights and optimizer, from which another Phase continues."""
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from the `state` of another Phase; the stream is the caller's."""
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _loss(self, batch: Batch, weighted: bool) -> torch.Tensor:
        hidden_BLD = hidden_states(self.model, batch.patches_BNX, batch.ids_BL, self._image_start)
        valid_BL = batch.targets_BL != IGNORED
        targets_N = batch.targets_BL[valid_BL]
        losses_N = F.cross_entropy(self.model.lm_head(hidden_BLD[valid_BL]), targets_N, reduction="none")
        if not weighted:
            return losses_N.mean()
        perceived_N = batch.percepts_BL(self._equals, self._full_stop)[valid_BL]
        stress_N = torch.where(perceived_N, self.plan.percept_weight, self.plan.digit_weight)
        weights_N = torch.where(self._digits[targets_N], stress_N, 1.0)
        return (losses_N * weights_N).sum() / weights_N.sum()
