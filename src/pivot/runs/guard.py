"""Numbers that are not finite: what was skipped is counted and named, and a run that no longer learns ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from pivot.errors import UserError
from pivot.models.policy import Policy
from pivot.runs.folder import RunFolder
from pivot.training.trainer import StepOutcome
from pivot.training.update import Skipped

SHOWN = 5
"""Prompt ids that a message names; nonfinite.jsonl has them all."""


class Guard:
    """Watches over the updates that were skipped because a loss, reward, gradient or weight was not finite."""

    def __init__(self, folder: RunFolder, limit: int, say: Callable[[str], None]) -> None:
        self._folder, self._limit, self._say = folder, limit, say
        self.bad_updates = 0
        """Skipped ones in a row."""

    def recall(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Count as if the run had never stopped, from the metrics of its steps so far."""
        for row in rows:
            self._count(row.get("optim/updates", 0), row.get("optim/skipped_updates", 0))

    def observe(self, outcome: StepOutcome, policy: Policy) -> None:
        """Name what a step skipped; too many in a row end the run before anything good is overwritten."""
        if outcome.update is None:
            return
        skipped = outcome.update.skipped
        for one in skipped:
            self._say(f"step {outcome.step}: {one.what} is not finite, update skipped; prompts: {_some(one)}")
        if skipped:
            self._folder.append_nonfinite(
                {"step": outcome.step, "what": one.what, "prompts": one.prompts} for one in skipped
            )
            self.check_weights(policy, outcome.step)
        self._count(outcome.update.num_updates, len(skipped))
        if self.bad_updates >= self._limit:
            raise UserError(
                f"{self.bad_updates} updates in a row were not finite, the last because of its {skipped[-1].what} "
                f"({self._folder.path / 'nonfinite.jsonl'} names the prompts); the last checkpoint is good: "
                f"{_ADVICE[skipped[-1].what]}, and resume from it"
            )

    def check_weights(self, policy: Policy, step: int) -> None:
        """Weights that are not finite never recover and are never saved: the run ends."""
        broken = self.find_nonfinite(policy)
        if broken:
            raise UserError(
                f"after step {step} {len(broken)} of the model's weights are not finite, {broken[0]} first; they are "
                "not saved and the last checkpoint is good: lower train.lr, or train.grad_clip, and resume from it"
            )

    def find_nonfinite(self, policy: Policy) -> list[str]:
        """Names of the broken weights; another engine knows where else they are."""
        return nonfinite_weights(policy)

    def _count(self, made: float, skipped: float) -> None:
        self.bad_updates = 0 if made else self.bad_updates + int(skipped)


_ADVICE = {
    "reward": "correct the reward function",
    "loss": "lower train.lr or leave these prompts out",
    "gradient": "lower train.lr or leave these prompts out",
}


def nonfinite_weights(policy: Policy) -> list[str]:
    """Names of the parameters that hold a NaN or an infinity."""
    return [
        name for name, weight in policy.model.named_parameters() if not bool(torch.isfinite(weight).all())
    ]


def _some(skipped: Skipped) -> str:
    more = len(skipped.prompts) - SHOWN
    return ", ".join(skipped.prompts[:SHOWN]) + (f" and {more} more" if more > 0 else "")
