"""When replay starts."""

from __future__ import annotations

from typing import Any


class ReplayGate:
    """Opens once the policy solves enough, or after the warm-up; then it stays open.

    Replay starts in the step after the one whose share of correct responses, among all its rollouts before
    filtering, exceeds `threshold`, and at the latest after `max_warmup_steps` steps.

    Args:
        threshold: 0.45 in the paper.
        max_warmup_steps: the cap; the paper names none. None: no cap. 0: open from the first step.
    """

    def __init__(self, threshold: float = 0.45, max_warmup_steps: int | None = None) -> None:
        if not 0.0 <= threshold <= 1.0:
            raise ValueError(f"threshold must lie in [0, 1], got {threshold}")
        if max_warmup_steps is not None and max_warmup_steps < 0:
            raise ValueError(f"max_warmup_steps must be at least 0, got {max_warmup_steps}")
        self.threshold = threshold
        self.max_warmup_steps = max_warmup_steps
        self.opened_at: int | None = 0 if max_warmup_steps == 0 else None
        """The step after which replay was on; None while the gate is shut."""

    @property
    def is_open(self) -> bool:
        return self.opened_at is not None

    def observe(self, solved_ratio: float, step: int) -> bool:
        """Take in the solved ratio of a finished step; returns whether the gate is open from now on."""
        if not 0.0 <= solved_ratio <= 1.0:
            raise ValueError(f"solved_ratio must lie in [0, 1], got {solved_ratio}")
        warmed_up = self.max_warmup_steps is not None and step >= self.max_warmup_steps
        if self.opened_at is None and (solved_ratio > self.threshold or warmed_up):
            self.opened_at = step
        return self.is_open

    def state_dict(self) -> dict[str, Any]:
        """JSON values; threshold and warm-up are configuration, not state."""
        return {"opened_at": self.opened_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.opened_at = state["opened_at"]
