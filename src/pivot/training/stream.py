"""The fresh stream: the data set in a new order every epoch, taken a few prompts at a time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from pivot.seeding import stable_seed


class FreshStream:
    """Prompt ids without end. It advances by just what was taken; what had to be passed over comes first next time.

    The order of an epoch depends on (seed, epoch) alone, so the state is three small things.
    """

    def __init__(self, prompt_ids: Sequence[str], seed: int) -> None:
        self._ids, self._seed = list(prompt_ids), seed
        self._deferred: list[str] = []
        self._position = 0
        self._start_epoch(0)

    @property
    def epoch(self) -> int:
        """Full passes over the data so far."""
        return self._epoch

    def take(self, num_prompts: int, exclude: Collection[str] = ()) -> list[str]:
        """The next prompts that are not in `exclude`; fewer only when no others are left.

        Excluded prompts that come up are deferred, not dropped: the next call sees them first.
        """
        wanted = min(num_prompts, len(set(self._ids) - set(exclude)))
        waiting, self._deferred = self._deferred, []
        taken: dict[str, None] = {}
        while len(taken) < wanted:
            prompt_id = waiting.pop(0) if waiting else self._next()
            if prompt_id in taken or prompt_id in exclude:
                self._deferred.append(prompt_id)
            else:
                taken[prompt_id] = None
        self._deferred += waiting
        return list(taken)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "position": self._position, "deferred": list(self._deferred)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start_epoch(state["epoch"])
        self._position = state["position"]
        self._deferred = list(state["deferred"])

    def _next(self) -> str:
        if self._position == len(self._order):
            self._start_epoch(self._epoch + 1)
        self._position += 1
        return self._ids[self._order[self._position - 1]]

    def _start_epoch(self, epoch: int) -> None:
        self._epoch, self._position = epoch, 0
        generator = np.random.Generator(np.random.Philox(key=stable_seed(self._seed, "epoch", epoch)))
        self._order = generator.permutation(len(self._ids)).tolist()
