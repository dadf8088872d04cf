"""Which prompts a step samples: fresh ones, replayed ones, and more of either until its quotas are full.

Half of a batch is replayed once the gate is open (App. C.2). A group that the filter drops is replaced from its own
source for up to `max_tries` rounds; what replay could not fill by then is filled with fresh prompts by the same rule.
Each round asks for more prompts than are missing, by the share that the filter dropped in recent steps, so that most
steps need one or two rounds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from pivot.experience import Draw, ExperienceBuffer
from pivot.seeding import stable_seed
from pivot.training.anchors import candidates_of
from pivot.types import Prompt, RolloutGroup

WINDOW = 5
"""Steps that are remembered: success rates change, and old ones say little about the next step."""
MOST = 4
"""A round asks for at most this many times the missing groups."""
MARGIN = 0.5
"""Standard deviations added to the expected number of prompts: fewer rounds for a few surplus groups."""


class Stream(Protocol):
    """Prompt ids without end."""

    def take(self, num_prompts: int, exclude: Collection[str] = ()) -> list[str]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class FreshStream:
    """The data set's prompt ids in a new order every epoch, without end; excluded ids come first next time.

    The order of an epoch depends on (seed, epoch) alone, so the state is three small values.
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


@dataclass
class KeepRates:
    """How many groups of each source (fresh, replayed) were sampled and survived the filter in recent steps."""

    history: dict[bool, list[tuple[int, int]]] = field(default_factory=lambda: {False: [], True: []})
    """replayed -> (survived, sampled) of each remembered step, newest last."""

    def prompts_for(self, missing: int, replayed: bool, survived: int = 0, sampled: int = 0) -> int:
        """How many prompts to sample so that `missing` groups are expected to survive.

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
        """Remember a step that sampled something from this source."""
        if sampled:
            self.history[replayed] = [*self.history[replayed], (survived, sampled)][-WINDOW:]

    def state_dict(self) -> dict[str, Any]:
        return {"fresh": self.history[False], "replayed": self.history[True]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.history = {
            replayed: [(survived, sampled) for survived, sampled in state[name]]
            for name, replayed in (("fresh", False), ("replayed", True))
        }


@dataclass
class Sources:
    """Where prompts come from."""

    prompts: Mapping[str, Prompt]
    stream: Stream
    buffer: ExperienceBuffer
    keep_rates: KeepRates = field(default_factory=KeepRates)
    """How many groups of each source survived the filter in recent steps."""
    set_of: Mapping[str, str] = field(default_factory=dict)
    """Prompt id -> its data set, if there are several."""


@dataclass(frozen=True)
class Quotas:
    """How many groups a step wants, and how many rounds it tries."""

    num_fresh: int
    """Groups wanted from the fresh stream."""
    num_replayed: int
    """Groups wanted from the buffer, N_off."""
    max_tries: int = 20
    """Rounds from both sources; then as many again from fresh prompts for what replay could not fill. 1: one in all."""
    filter_groups: bool = True
    """DAPO's dynamic sampling: keep only 0 < k < G."""
    oversample: bool = False
    """Ask for more prompts than are missing, by the share that the filter dropped in recent steps."""
    with_experience: bool = False
    """Off-PG: an old success takes the last slot of a replayed group, and the filter sees the group with it."""
    max_groups: int = sys.maxsize
    """Most groups to sample in this step: what the run's budget has left."""

    @property
    def total(self) -> int:
        return self.num_fresh + self.num_replayed


@dataclass(slots=True)
class Selection:
    """The groups of one step: drawn, filtered, counted."""

    sources: Sources
    step: int
    quotas: Quotas
    kept: list[RolloutGroup] = field(default_factory=list)
    """What the step trains on: never more than the quotas."""
    surplus: list[RolloutGroup] = field(default_factory=list)
    """Informative groups beyond the quotas; the buffer records them, the update does not see them."""
    sampled: list[RolloutGroup] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """Why prompts could not be prepared."""
    nonfinite: list[str] = field(default_factory=list)
    """Ids of prompts with a response whose reward is not finite."""
    rounds: int = 0
    """Rounds that sampled something."""
    tries: int = 0
    _fresh_wanted: int = field(init=False)
    _replayed_wanted: int = field(init=False)
    _last_try: int = field(init=False)
    _used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._fresh_wanted, self._replayed_wanted = self.quotas.num_fresh, self.quotas.num_replayed
        self._last_try = self.quotas.max_tries

    def draw(self) -> list[RolloutGroup]:
        """The next round's prompts, without responses; none when the quotas are full or the tries used up."""
        left_open = self._missing(replayed=True)
        if self.tries == self._last_try and left_open and self.quotas.max_tries > 1:
            self._give_up_replay(left_open)
            self._last_try += self.quotas.max_tries
        if self.tries == self._last_try:
            return []
        self.tries += 1
        draws = self._draw_replayed(self._missing(replayed=True))
        ids = self._take_fresh(self._missing(replayed=False))
        return [*map(self._replayed_group, draws), *(RolloutGroup(self.sources.prompts[i]) for i in ids)]

    def refill(self, finished: Sequence[RolloutGroup], pending: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        """More prompts during a round, where the groups still being sampled are not expected to fill the quotas.

        Nothing is kept yet: which groups finish early depends on their length, so the filter sees them in the order of
        the draw when all have finished.
        """
        if self.tries == self._last_try:
            return []
        asked = {replayed: self._asked_meanwhile(replayed, finished, pending) for replayed in (True, False)}
        num_replayed = min(asked[True], self._room(replayed=True))
        draws = (
            self.sources.buffer.draw(num_replayed, exclude=self._used, step=self.step) if num_replayed else []
        )
        self._used |= {draw.prompt_id for draw in draws}
        num_fresh = min(asked[False], self._room(replayed=False))
        ids = self.sources.stream.take(num_fresh, exclude=self._used) if num_fresh else []
        self._used |= set(ids)
        self.tries += bool(draws or ids)
        return [*map(self._replayed_group, draws), *(RolloutGroup(self.sources.prompts[i]) for i in ids)]

    def _asked_meanwhile(
        self, replayed: bool, finished: Sequence[RolloutGroup], pending: Sequence[RolloutGroup]
    ) -> int:
        own = [group for group in finished if group.replayed == replayed]
        good = sum(map(self._is_informative, own))
        missing = self._missing(replayed=replayed) - good
        if missing <= 0:
            return 0
        asked, (survived, sampled) = missing, self._survived(replayed)
        if self.quotas.oversample and self.quotas.filter_groups:
            rates = self.sources.keep_rates
            asked = rates.prompts_for(missing, replayed, survived + good, sampled + len(own))
        return max(0, asked - sum(group.replayed == replayed for group in pending))

    def filter(self, groups: Sequence[RolloutGroup]) -> None:
        """Keep the groups that carry a signal, up to the quota of their source; set aside non-finite rewards."""
        self.rounds += 1
        for group in groups:
            if not all(map(math.isfinite, group.accuracies)):
                self.nonfinite.append(group.prompt.id)
                continue
            self.sampled.append(group)
            full = self._missing(replayed=group.replayed) == 0
            if self._is_informative(group) and not full:
                self.kept.append(group)
                continue
            group.prepared = None  # encoded images are large, and this group is not trained on
            if self._is_informative(group):
                self.surplus.append(group)

    def close(self) -> None:
        """Remember how many groups of each source carried a signal."""
        for replayed in (False, True):
            self.sources.keep_rates.add(replayed, *self._survived(replayed))

    def _missing(self, *, replayed: bool) -> int:
        wanted = self._replayed_wanted if replayed else self._fresh_wanted
        return wanted - sum(group.replayed == replayed for group in self.kept)

    def _give_up_replay(self, num_groups: int) -> None:
        """Move this many groups from the replay quota to the fresh quota."""
        self._replayed_wanted -= num_groups
        self._fresh_wanted += num_groups

    def _draw_replayed(self, missing: int) -> list[Draw]:
        """Replayed prompts for the missing groups; what the buffer cannot supply becomes fresh."""
        if not missing:
            return []
        asked = min(self._oversampled(missing, replayed=True), self._room(replayed=True))
        draws = self.sources.buffer.draw(asked, exclude=self._used, step=self.step)
        self._give_up_replay(max(0, missing - len(draws)))
        self._used |= {draw.prompt_id for draw in draws}
        return draws

    def _take_fresh(self, missing: int) -> list[str]:
        asked = min(self._oversampled(missing, replayed=False), self._room(replayed=False)) if missing else 0
        ids = self.sources.stream.take(asked, exclude=self._used)
        self._used |= set(ids)
        return ids

    def _oversampled(self, missing: int, *, replayed: bool) -> int:
        """The number of prompts of which `missing` are expected to survive the filter."""
        if not (self.quotas.oversample and self.quotas.filter_groups):
            return missing
        return self.sources.keep_rates.prompts_for(missing, replayed, *self._survived(replayed))

    def _room(self, *, replayed: bool) -> int:
        """Groups of a source that the budget has left; replay never takes more than its share of it."""
        left = self.quotas.max_groups - len(self._used)
        return left if not replayed else round(left * self.quotas.num_replayed / self.quotas.total)

    def _survived(self, replayed: bool) -> tuple[int, int]:
        """Groups of a source that carried a signal in this step, and how many were sampled."""
        informative = sum(g.replayed == replayed for g in (*self.kept, *self.surplus))
        return informative, sum(g.replayed == replayed for g in self.sampled)

    def _is_informative(self, group: RolloutGroup) -> bool:
        """Whether the group has both correct and wrong responses."""
        if not self.quotas.filter_groups:
            return True
        flags = [response.correct for response in group.responses]
        if self.quotas.with_experience and group.candidates:
            flags[-1] = True
        return 0 < sum(flags) < len(flags)

    def _replayed_group(self, draw: Draw) -> RolloutGroup:
        prompt = self.sources.prompts[draw.prompt_id]
        return RolloutGroup(
            prompt, replayed=True, candidates=candidates_of(self.sources.buffer, draw, self.step)
        )
