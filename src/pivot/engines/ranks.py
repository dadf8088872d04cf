"""An engine whose model is spread over ranks and whose responses come from rollout replicas.

The driver has no weights: it measures prompts, partitions rows over the ranks and puts their results together. Ranks
and replicas share their devices, so the replicas sleep while the ranks work and are woken with the current weights
before they sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pivot.config import Config
from pivot.data.images import ImageError
from pivot.engines.base import MAXIMA, ScoreRequest, Skipped, Update
from pivot.engines.images import ImageReader
from pivot.engines.jobs import Ranks, RankUpdate, score_jobs, update_jobs
from pivot.engines.saving import Saving
from pivot.engines.scoring import RowStatistics
from pivot.engines.settings import corruption_of, packing_of
from pivot.method import Batch, count_totals
from pivot.models.corruption import Corruptor
from pivot.models.encoding import PromptEncoder, UnreadablePrompt
from pivot.models.policy import ResponseStatistics
from pivot.models.rows import PromptWithResponses
from pivot.sampling import SampleRequest
from pivot.types import PreparedPrompt, Prompt, Response


@dataclass(frozen=True)
class MeasuredPrompt:
    """A prompt and its length in tokens; the ranks encode it themselves."""

    prompt: Prompt
    length: int

    def __len__(self) -> int:
        return self.length


class Rollouts(Protocol):
    """The rollout replicas."""

    @property
    def takes_images(self) -> bool:
        """Whether the driver sends decoded images; otherwise replicas decode them."""
        ...

    def sample(
        self, prompts: Sequence[Prompt], request: SampleRequest
    ) -> Iterator[tuple[int, list[Response]]]:
        """(index of the prompt, its responses); each prompt comes once, and so do those that `refill` adds."""
        ...

    def wake(self, version: int) -> None:
        """Send the ranks' weights to the replicas; nothing computed with older ones survives."""
        ...

    def sleep(self) -> None:
        """Free the replicas' device memory for the ranks."""
        ...


class RanksEngine:
    """`base.Engine` over `Ranks` and `Rollouts`."""

    def __init__(
        self, name: str, config: Config, encoder: PromptEncoder, ranks: Ranks, rollouts: Rollouts
    ) -> None:
        self.name, self.method = name, config.method
        self.encoder, self.ranks, self.rollouts = encoder, ranks, rollouts
        self.corruptor = Corruptor(encoder, corruption_of(config), config.train.seed)
        self.packing = packing_of(config, encoder.family)
        self.images = ImageReader(encoder.resized)
        self._measured: dict[str, MeasuredPrompt] = {}
        self._version = 0
        """Counts up with every change of the weights."""
        self._awake = False

    @property
    def description(self) -> str:
        return f"{self.ranks.size} ranks"

    @property
    def budgets(self) -> dict[str, int]:
        return {"micro_batch_tokens": self.packing.micro_batch_tokens}

    def read_images(self, prompts: Sequence[Prompt]) -> None:
        """Those that are sent to servers, and those that are seen for the first time."""
        sent = self.rollouts.takes_images
        self.images.announce([p for p in prompts if sent or p.id not in self._measured])

    def prepare(self, prompt: Prompt) -> MeasuredPrompt:
        """Each image is decoded when it is first seen, to find those that cannot be."""
        known = self._measured.get(prompt.id)
        if known is None or known.prompt != prompt:  # NoisyRollout: other noise in each step
            try:
                self.images.check(prompt)
            except ImageError as cause:
                raise UnreadablePrompt(
                    f"prompt {prompt.id!r} has an image that cannot be used: {cause}"
                ) from cause
            known = self._measured[prompt.id] = MeasuredPrompt(prompt, self.encoder.count_tokens(prompt))
        return known

    def sample(
        self,
        prompts: Sequence[PreparedPrompt],
        request: SampleRequest,
        meanwhile: Sequence[ScoreRequest] = (),
    ) -> list[list[Response]]:
        """Nothing is scored meanwhile: ranks and replicas share their devices."""
        found = dict(self.draw([prompt.prompt for prompt in prompts], request))
        return [found[i] for i in range(len(found))]

    def evaluation_sampler(self) -> ReplicaSampler:
        return ReplicaSampler(self)

    def draw(self, prompts: Sequence[Prompt], request: SampleRequest) -> Iterator[tuple[int, list[Response]]]:
        if not self._awake:
            self.rollouts.wake(self._version)
            self._awake = True
        return self.rollouts.sample(prompts, request)

    def score(self, request: ScoreRequest) -> ResponseStatistics:
        self._rest()
        jobs = score_jobs(request, self.packing, self.ranks.size)
        rows = RowStatistics(request.units)
        for job, parts in zip(jobs, self.ranks.score(jobs), strict=True):
            for piece, part in zip(job.pieces, parts, strict=True):
                if piece.counts:
                    rows.put(part, piece.rows)
        return rows.statistics()

    def update(self, units: Sequence[PromptWithResponses], batch: Batch, lr: float) -> Update:
        """The loss is normalised by the counts of the whole minibatch, over all ranks."""
        self._rest()
        totals = count_totals(self.method, batch)
        found = self.ranks.update(update_jobs(units, batch, totals, lr, self.packing, self.ranks.size))
        self._version += 1
        norm, skipped = found[0].grad_norm, None
        if broken := [name for one in found for name in one.broken]:
            skipped = Skipped("loss", broken)
        elif not math.isfinite(norm):
            skipped = Skipped("gradient", [unit.prompt.prompt.id for unit in units])
        return Update(_summed_terms(found), norm, skipped)

    def nonfinite_weights(self) -> list[str]:
        return sorted({name for found in self.ranks.nonfinite_weights() for name in found})

    def save(self, folder: Path) -> Saving:
        """The ranks write while the next step samples."""
        self._rest()
        return self.ranks.save(folder)

    def load(self, folder: Path, budgets: Mapping[str, int]) -> None:
        """Budgets are those of the configuration: ranks do not lower them."""
        self._rest()
        self.ranks.load(folder)
        self._version += 1

    def close(self) -> None: ...

    def _rest(self) -> None:
        if self._awake:
            self.rollouts.sleep()
            self._awake = False


@dataclass(frozen=True)
class ReplicaSampler:
    """`sampling.Sampler` over the replicas."""

    engine: RanksEngine

    def sample(
        self, prompts: Sequence[Prompt], request: SampleRequest
    ) -> Iterator[tuple[int, list[Response]]]:
        return self.engine.draw(prompts, request)

    def close(self) -> None: ...


def _summed_terms(found: Sequence[RankUpdate]) -> dict[str, float]:
    names = dict.fromkeys(name for one in found for name in one.terms)
    return {
        name: (max if name in MAXIMA else sum)(one.terms[name] for one in found if name in one.terms)
        for name in names
    }
