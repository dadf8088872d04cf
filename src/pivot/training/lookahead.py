"""Work that hangs on nothing but the weights of the step's start, done beside the rollout where a core is free.

Decoding is a long chain of small products that cannot use a second core well; scoring is a few large ones that leave
Python alone. So the candidates of replayed prompts, and the groups that earlier rounds have kept, are scored while
the next prompts are decoded. Where no core is free the same work is done first: the numbers are the same bit for bit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pivot.method import Method
from pivot.models.encoding import EncodedPrompt
from pivot.models.rows import PromptWithResponses
from pivot.training.anchors import AnchorSelector, ScoredCandidates
from pivot.training.clock import PhaseClock
from pivot.training.packing import pad_rows
from pivot.training.scoring import Scorer
from pivot.training.selection import PromptDraw
from pivot.types import RolloutGroup

Encoded = Mapping[str, EncodedPrompt]
"""By prompt id."""


@dataclass
class Lookahead:
    """What a step knows of its candidates and kept groups, computed as early as it can be, once."""

    method: Method
    scorer: Scorer
    selector: AnchorSelector
    clock: PhaseClock
    enabled: bool
    rated: dict[str, ScoredCandidates] = field(default_factory=dict)
    """Scored candidates of replayed prompts, by prompt id."""
    _corrupted: dict[str, Tensor] = field(default_factory=dict)
    """log q of a group's responses [G, T], by prompt id."""

    def begin(self) -> None:
        """Weights have changed: nothing is known."""
        self.rated, self._corrupted = {}, {}

    @contextmanager
    def beside(
        self, visits: Sequence[PromptDraw], kept: Sequence[RolloutGroup], encoded: Encoded, step: int
    ) -> Iterator[None]:
        """While the block rolls `visits` out: their candidates, and the kept groups under the corrupted image."""
        if not self.enabled:
            yield
        elif not has_free_core():
            with self.clock.phase("anchors"):
                self._rate(visits, encoded, step)
            with self.clock.phase("score"):
                self._corrupt_ahead(kept, encoded, step)
            yield
        else:
            # A new thread would bring as many threads of its own as there are cores, and round otherwise.
            same = {"initializer": torch.set_num_threads, "initargs": (torch.get_num_threads(),)}
            with ThreadPoolExecutor(max_workers=1, **same) as pool:
                running = [
                    pool.submit(self._rate, visits, encoded, step),
                    pool.submit(self._corrupt_ahead, kept, encoded, step),
                ]
                yield
                for job in running:
                    job.result()

    def corrupted(self, groups: Sequence[RolloutGroup], encoded: Encoded, step: int, *, width: int) -> Tensor:
        """log q of all responses of these groups [B, width]; what is not known yet is computed."""
        self._corrupt(groups, encoded, step)
        rows = [row for group in groups for row in self._corrupted[group.prompt.id]]
        return pad_rows([row[:width] for row in rows], width)

    def _rate(self, visits: Sequence[PromptDraw], encoded: Encoded, step: int) -> None:
        if self.method.needs_anchors:
            self.rated |= self.selector.rate(visits, encoded, step)

    def _corrupt_ahead(self, kept: Sequence[RolloutGroup], encoded: Encoded, step: int) -> None:
        # Off-PG puts an old response into the group later on.
        if self.method.needs_corrupted and not self.method.trains_on_experience:
            self._corrupt(kept, encoded, step)

    def _corrupt(self, groups: Sequence[RolloutGroup], encoded: Encoded, step: int) -> None:
        missing = [group for group in groups if group.prompt.id not in self._corrupted]
        units = [
            PromptWithResponses(encoded[g.prompt.id], [r.token_ids_T for r in g.responses]) for g in missing
        ]
        logprobs_BT = self.scorer.score(units, step, "corrupted").logprobs_BT
        rows = logprobs_BT.split([len(unit.responses) for unit in units])
        self._corrupted |= {group.prompt.id: found for group, found in zip(missing, rows, strict=True)}


def has_free_core() -> bool:
    """Whether another thread would find a core to run on. This process counts for one of the load."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores > 1 and os.getloadavg()[0] < cores
