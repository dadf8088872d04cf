"""Which prompts a step rolls out: fresh ones, replayed ones, and more of either until its quotas are full.

Half of a batch is replayed once the gate is open (App. C.2); a group that the filter drops is replaced from its own
source for a number of rounds, then by fresh prompts. A step may end with fewer groups, or none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pivot.experience import Draw, ExperienceBuffer, StoredResponse
from pivot.train.stream import FreshStream
from pivot.types import Prompt, RolloutGroup


@dataclass(frozen=True)
class Visit:
    """A prompt that is about to be rolled out."""

    prompt: Prompt
    draw: Draw | None = None
    """Why it was drawn from the buffer; None for a fresh prompt."""
    candidates: tuple[StoredResponse, ...] = ()
    """The stored responses as they were before this rollout, oldest first: the anchor is one of them."""


@dataclass
class Sources:
    """Where prompts come from."""

    prompts: Mapping[str, Prompt]
    stream: FreshStream
    buffer: ExperienceBuffer


@dataclass
class Selection:
    """The bookkeeping of one step."""

    sources: Sources
    step: int
    num_fresh: int
    """Groups wanted from the fresh stream."""
    num_replayed: int
    """Groups wanted from the buffer, N_off."""
    max_tries: int
    filter_groups: bool
    """DAPO's dynamic sampling: keep 0 < k < G only."""
    kept: list[RolloutGroup] = field(default_factory=list)
    sampled: list[RolloutGroup] = field(default_factory=list)
    visits: dict[str, Visit] = field(default_factory=dict)
    """By prompt id, as they were rolled out."""
    unreadable: list[str] = field(default_factory=list)
    """What was wrong with prompts that could not be rolled out."""
    nonfinite: list[str] = field(default_factory=list)
    """Ids of prompts with a response whose reward is not finite."""
    rounds: int = 0
    """Rounds that sampled something."""
    tries: int = 0
    _used: set[str] = field(default_factory=set)

    def next_visits(self) -> list[Visit]:
        """The prompts of the next round; none when the quotas are full or the tries used up."""
        replayed = self.num_replayed - sum(group.replayed for group in self.kept)
        fresh = self.num_fresh - sum(not group.replayed for group in self.kept)
        if self.tries >= self.max_tries:
            # Replay has had its tries: fresh prompts take what it could not fill, once.
            fresh = replayed if self.tries == self.max_tries else 0
            self.num_fresh, self.num_replayed, replayed = self.num_fresh + fresh, self.num_replayed - fresh, 0
        draws = self.sources.buffer.draw(replayed, exclude=self._used, step=self.step) if replayed else []
        short = replayed - len(draws)
        self.num_fresh, self.num_replayed = self.num_fresh + short, self.num_replayed - short
        self._used |= {draw.prompt_id for draw in draws}
        ids = self.sources.stream.take(fresh + short, exclude=self._used)
        self._used |= set(ids)
        self.tries += 1
        return [*map(self._replay, draws), *(Visit(self.sources.prompts[i]) for i in ids)]

    def finite(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        """Without the groups of a reward that is not finite: it says nothing of them. They are noted."""
        is_finite = [all(map(math.isfinite, group.accuracies)) for group in groups]
        pairs = list(zip(groups, is_finite, strict=True))
        self.nonfinite += [group.prompt.id for group, fine in pairs if not fine]
        return [group for group, fine in pairs if fine]

    def observe(self, groups: Sequence[RolloutGroup]) -> None:
        """Keep what carries a signal."""
        self.rounds += 1
        self.sampled += groups
        self.kept += [group for group in groups if group.is_informative or not self.filter_groups]

    def _replay(self, draw: Draw) -> Visit:
        candidates = tuple(self.sources.buffer.candidates(draw.prompt_id))
        return Visit(self.sources.prompts[draw.prompt_id], draw, candidates)
