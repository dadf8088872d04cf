"""How many groups survive DAPO's filter, from recent steps: what a round of dynamic sampling is planned by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WINDOW = 5
"""Steps that are remembered: success rates move, and old losses say little about the next step."""
LOWEST = 0.25
"""A round asks for at most four times what is missing, however few groups survived before."""


@dataclass
class KeepRates:
    """Per source (fresh, replayed) the groups that were sampled and that survived, over the last few steps."""

    history: dict[bool, list[tuple[int, int]]] = field(default_factory=lambda: {False: [], True: []})
    """replayed -> (survived, sampled) of each remembered step, newest last."""

    def rate(self, replayed: bool, survived: int = 0, sampled: int = 0) -> float:
        """The share of groups that survive, this step's own counts included; 1 where nothing is known."""
        for past_survived, past_sampled in self.history[replayed]:
            survived, sampled = survived + past_survived, sampled + past_sampled
        return max(LOWEST, survived / sampled) if sampled else 1.0

    def add(self, replayed: bool, survived: int, sampled: int) -> None:
        """Remember a step; one that sampled nothing from this source says nothing."""
        if sampled:
            self.history[replayed] = [*self.history[replayed], (survived, sampled)][-WINDOW:]

    def state_dict(self) -> dict[str, Any]:
        return {"fresh": self.history[False], "replayed": self.history[True]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.history = {
            replayed: [(survived, sampled) for survived, sampled in state[name]]
            for name, replayed in (("fresh", False), ("replayed", True))
        }
