"""How many groups survive DAPO's filter, from recent steps: what a round of dynamic sampling is planned by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WINDOW = 5
"""Steps that are remembered: success rates move, and old losses say little about the next step."""
MOST = 4
"""A round asks for at most so many times what is missing, however few groups survived before."""
MARGIN = 0.5
"""Standard deviations beyond the expected number of prompts: fewer rounds for a few groups of surplus."""


@dataclass
class KeepRates:
    """Per source (fresh, replayed) the groups that were sampled and that survived, over the last few steps."""

    history: dict[bool, list[tuple[int, int]]] = field(default_factory=lambda: {False: [], True: []})
    """replayed -> (survived, sampled) of each remembered step, newest last."""

    def prompts_for(self, missing: int, replayed: bool, survived: int = 0, sampled: int = 0) -> int:
        """How many prompts to sample so that `missing` groups can be expected to survive.

        The number of draws until k survive, each with probability r, has mean k/r and deviation sqrt(k (1 - r))/r.
        `survived` of `sampled` are this step's own counts so far.
        """
        for past_survived, past_sampled in self.history[replayed]:
            survived, sampled = survived + past_survived, sampled + past_sampled
        if not survived:
            return MOST * missing if sampled else missing
        rate = survived / sampled
        expected = (missing + MARGIN * math.sqrt(missing * (1 - rate))) / rate
        return min(math.ceil(expected), MOST * missing)

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
