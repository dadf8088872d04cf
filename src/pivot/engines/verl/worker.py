"""verl's worker with the jobs of this project besides verl's own methods."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.model import convert_weight_keys
from verl.workers.engine_workers import ActorRolloutRefWorker

from pivot.config import from_dict
from pivot.engines.jobs import RankUpdate, ScoreJob, UpdateJob
from pivot.engines.settings import model_options
from pivot.engines.verl.rank import Rank
from pivot.errors import UserError
from pivot.models.loading import load_tokenizer_only
from pivot.models.policy import ResponseStatistics

SHARDS = "shards"
"""What verl's checkpoint manager writes: one file of weights, optimizer and random state per rank."""


class PivotWorker(ActorRolloutRefWorker):
    """One rank: verl's engines, checkpoints and weight updates; this project's forwards and losses."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Seeded, so that low-rank adapters start as in the local engine."""
        torch.manual_seed(self.config.actor.fsdp_config.seed)
        super().init_model()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def prepare(self, settings: dict[str, Any]) -> tuple[str, int]:
        """Build this project's side of the rank from a run's configuration; returns host and process id."""
        config = from_dict(settings)
        assert self.actor is not None
        tokenizer_only = load_tokenizer_only(Path(self.actor.model_config.local_path), model_options(config))
        reference = None if self.ref is None else self.ref.engine
        self.pivot_rank = Rank.build(config, tokenizer_only, self.actor.engine, reference)
        if config.model.lora_rank:
            # verl would merge adapters in place, round all weights to bfloat16 and keep a copy to go back to.
            self.actor.engine.get_per_tensor_param = self._merged_weights
        return socket.gethostname(), os.getpid()

    def _merged_weights(self, **_: Any) -> tuple[Iterator[tuple[str, Tensor]], None]:
        """In place of verl's method: what a rollout server receives, and no configuration of adapters."""
        rank = self.pivot_rank
        renamed = (convert_weight_keys({name: w}, rank.policy.model) for name, w in rank.weights())
        return (item for items in renamed for item in items.items()), None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def export(self, folder: str) -> None:
        """Write the whole model as a Hugging Face folder; the first rank writes it."""
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
    """`jobs.Ranks` over verl's worker group. All nodes must see the run's folder."""

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

    def save(self, folder: Path) -> None:
        self._group.save_checkpoint(str(folder / SHARDS), None, 0)
        self._group.export(str(folder / "model"))

    def load(self, folder: Path) -> None:
        found = saved_ranks(folder)
        if found != self.size:
            raise UserError(
                f"{folder} was saved by {found} ranks and {self.size} are to load it; resume with as many (--nodes, "
                f"--gpus), or start a new run from its weights with --model {folder / 'model'}"
            )
        self._group.load_checkpoint(str(folder / SHARDS))


def saved_ranks(checkpoint: Path) -> int | None:
    """How many ranks wrote a checkpoint; None for one of the local engine."""
    path = checkpoint / SHARDS / "fsdp_config.json"
    return json.loads(path.read_bytes())["world_size"] if path.is_file() else None
