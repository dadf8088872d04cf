"""verl's worker with the jobs of this project besides verl's own methods."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.model import convert_weight_keys
from verl.workers.engine_workers import ActorRolloutRefWorker

from pivot.config import from_dict
from pivot.engines import shards
from pivot.engines.jobs import RankUpdate, ScoreJob, UpdateJob
from pivot.engines.saving import Checksums
from pivot.engines.settings import model_options
from pivot.engines.verl.rank import Rank
from pivot.errors import UserError
from pivot.models.loading import load_tokenizer_only
from pivot.models.policy import ResponseStatistics

POLL_SECONDS = 0.5
"""Between two questions whether a checkpoint is written."""


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
    def start_saving(self, folder: str) -> None:
        """Copy what a checkpoint holds, and go on writing it in the background."""
        self.pivot_saving = self.pivot_rank.save(Path(folder))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def saved(self) -> Checksums | None:
        """The checksums of this rank's files; None while it is writing them."""
        return self.pivot_saving.result() if self.pivot_saving.done() else None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_shards(self, folder: str) -> None:
        self.pivot_rank.load(Path(folder))

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

    def save(self, folder: Path) -> RaySaving:
        self._group.start_saving(str(folder))
        return RaySaving(self._group)

    def load(self, folder: Path) -> None:
        """Earlier versions left verl's own files, which fit as many ranks as wrote them."""
        found = saved_ranks(folder)
        if found is None:
            self._group.load_shards(str(folder))
        elif found == self.size:
            self._group.load_checkpoint(str(folder / shards.FOLDER))
        else:
            raise UserError(
                f"{folder} is of an earlier version, saved by {found} ranks, and {self.size} are to load it; resume "
                f"with as many (--nodes, --gpus), or start a new run from its weights with --model {folder / 'model'}"
            )


@dataclass(frozen=True)
class RaySaving:
    """`saving.Saving` on all ranks. Asks again and again: a rank that waited for its disk could not train."""

    group: Any

    def wait(self) -> Checksums:
        while True:
            found = self.group.saved()
            if all(part is not None for part in found):
                return {name: digest for part in found for name, digest in part.items()}
            time.sleep(POLL_SECONDS)


def saved_ranks(checkpoint: Path) -> int | None:
    """How many ranks wrote verl's own files, of an earlier version; None: any number can load the checkpoint."""
    path = checkpoint / shards.FOLDER / "fsdp_config.json"
    return json.loads(path.read_bytes())["world_size"] if path.is_file() else None
