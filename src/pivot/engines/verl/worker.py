"""verl's worker with the jobs of this project beside verl's own methods."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import ActorRolloutRefWorker

from pivot.config import from_dict
from pivot.engines.verl.jobs import RankUpdate, ScoreJob, UpdateJob
from pivot.engines.verl.rank import Rank
from pivot.models.loading import load_outline
from pivot.models.policy import ResponseStatistics
from pivot.training.build import model_options


class PivotWorker(ActorRolloutRefWorker):
    """One rank: verl's engines, checkpoints and weight updates; this project's forwards and losses."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def prepare(self, settings: dict[str, Any]) -> tuple[str, int]:
        """Make this project's side of the rank from a run's configuration; returns its host and process id."""
        config = from_dict(settings)
        assert self.actor is not None
        outline = load_outline(Path(self.actor.model_config.local_path), model_options(config))
        reference = None if self.ref is None else self.ref.engine
        self.pivot_rank = Rank.build(config, outline, self.actor.engine, reference)
        return socket.gethostname(), os.getpid()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def export(self, folder: str) -> None:
        """The whole model as a Hugging Face folder, in the type it computes in; the first rank writes it."""
        self.pivot_rank.export(Path(folder))

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def score(self, job: ScoreJob) -> list[ResponseStatistics]:
        return self.pivot_rank.score(job)

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def update(self, job: UpdateJob) -> RankUpdate:
        return self.pivot_rank.update(job)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def nonfinite_weights(self) -> list[str]:
        return self.pivot_rank.nonfinite_weights()


class RayRanks:
    """`jobs.Ranks` over verl's worker group."""

    def __init__(self, group: Any) -> None:
        self._group = group

    @property
    def size(self) -> int:
        return self._group.world_size

    def score(self, jobs: Sequence[ScoreJob]) -> list[list[ResponseStatistics]]:
        return self._group.score(list(jobs))

    def update(self, jobs: Sequence[UpdateJob]) -> list[RankUpdate]:
        return self._group.update(list(jobs))

    def nonfinite_weights(self) -> list[list[str]]:
        return self._group.nonfinite_weights()
