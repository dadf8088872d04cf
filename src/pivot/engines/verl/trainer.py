"""verl's V1 trainer as the driver of a run.

verl starts the workers and the rollout replicas; `fit` then hands over to `Run`, the same one that the local engine
uses, with an engine made of verl's parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ray
from omegaconf import DictConfig, OmegaConf, open_dict
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.tracking import Tracking

from pivot.config import Config, from_dict, to_dict
from pivot.engines.ranks import RanksEngine
from pivot.engines.settings import model_options
from pivot.engines.verl.child import PROGRESS, STOP
from pivot.engines.verl.compose import device_of
from pivot.engines.verl.environment import check_imports, check_nodes
from pivot.engines.verl.overrides import check_resolved
from pivot.engines.verl.worker import PivotWorker, RayRanks
from pivot.errors import UserError
from pivot.models.loading import check_encodes_apart, load_tokenizer_only
from pivot.runs.folder import RunFolder
from pivot.runs.resuming import Accept, find_start
from pivot.runs.run import Host, Run
from pivot.runs.trackers import scalars
from pivot.sampling import SampleRequest
from pivot.types import Prompt, Response

PATIENCE = 40.0
"""Seconds to wait for signs of life; a busy process is not dead."""


@register_trainer("pivot")
class PivotTrainer(PPOTrainerSync):
    """Any preset on verl's workers and replicas."""

    def __init__(self, config: DictConfig) -> None:
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"  # verl's classes compare with this word
        run = Path(config.pivot.run)
        folder = RunFolder.open(run)
        self.processes: dict[str, Any] = {}
        """Ranks and replicas by name, for the reason of a failure."""
        settings = from_dict(folder.read_config())
        # `pivot train` has asked already what the user accepts.
        accept = Accept(lost_history=True, changed_config=True)
        resuming = config.pivot.resume
        self.run = Run(
            settings,
            folder,
            engine="verl",
            start=find_start(folder, settings.checkpoint.every, accept) if resuming else None,
            host=Host(
                stream=(run / PROGRESS).open("a", buffering=1, encoding="utf-8"),
                stopping=StopFile(run / STOP),
                reason_of=self._explain,
                trackers=lambda: [VerlTracker(config)],
            ),
        )
        versions = {name: metadata.version(name) for name in ("verl", "ray")}
        self.run.folder.update_status(**versions, lost=[])
        super().__init__(config)

    def _explain(self, error: BaseException) -> str:
        """The reason of a failure; run.json lists the processes that died, so that `pivot train` can start again."""
        lost = find_dead(error, self.processes)
        self.run.folder.update_status(lost=lost)
        return explain(error, lost)

    def init(self) -> None:
        with self.run.recording_failure():
            check_resolved(partial(OmegaConf.select, self.config))
            server = (
                None if device_of(self.run.config) == "cpu" else self.config.actor_rollout_ref.rollout.name
            )
            check_imports("by the driver", server)
            check_nodes(server)
            super().init()

    def _init_tokenizer(self) -> None:
        folder = Path(self.config.actor_rollout_ref.model.path)
        self.tokenizer_only = load_tokenizer_only(folder, model_options(self.run.config))
        check_encodes_apart(self.tokenizer_only.model.config.model_type)
        self.tokenizer, self.processor = self.tokenizer_only.tokenizer, None

    def _init_dataloader(self) -> None:
        """The run's own prompts, read before workers are started, instead of verl's data loader.

        verl's number of steps stays unset: only its own loop, which `fit` replaces, would read it.
        """
        self.train_dataset = self.run.prompts.by_id

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping:
            self.role_worker_mapping[role] = ray.remote(PivotWorker)

    def _load_checkpoint(self) -> None:
        """Called by verl once workers and replicas exist. The run loads its own checkpoints later."""
        found = self.actor_rollout_wg.prepare(to_dict(self.run.config))
        self.run.folder.update_status(ranks=[{"host": host, "process": pid} for host, pid in found])
        names = [f"rank {n} (process {pid} on {host})" for n, (host, pid) in enumerate(found)]
        self.processes = dict(zip(names, self.actor_rollout_wg.workers, strict=True))
        for replica in self.llm_server_manager.get_replicas():
            for server in replica.servers:
                self.processes[f"rollout replica {replica.replica_rank}"] = server
        self.global_steps = 0

    def on_init_end(self) -> None:
        """The engine sends weights to the replicas before they sample."""

    def fit(self, agent_loop_manager: Any) -> None:
        """Instead of verl's own loop."""
        agent_loop_manager.tokenizer_only = self.tokenizer_only

        def open_engine(config: Config, _: Path | None) -> RanksEngine:
            ranks, rollouts = RayRanks(self.actor_rollout_wg), VerlRollouts(agent_loop_manager, self)
            engine = RanksEngine("verl", config, self.tokenizer_only.encoder, ranks, rollouts)
            agent_loop_manager.images, agent_loop_manager.share = engine.images.take, ray.put
            return engine

        self.run.go(open_engine)


@dataclass
class VerlRollouts:
    """`ranks.Rollouts` over verl's replicas."""

    manager: Any
    """`ReplicaRollouts` or `ServerRollouts`."""
    trainer: PivotTrainer

    @property
    def takes_images(self) -> bool:
        return self.manager.takes_images

    def sample(
        self, prompts: Sequence[Prompt], request: SampleRequest
    ) -> Iterator[tuple[int, list[Response]]]:
        return self.manager.sample(prompts, request)

    def wake(self, version: int) -> None:
        """vLLM keeps prefixes, processed images and encoder outputs by their hash alone, so they are cleared."""
        self.trainer.checkpoint_manager.update_weights(version)
        replicas = self.trainer.llm_server_manager.get_replicas()
        ray.get([server.clear_kv_cache.remote() for replica in replicas for server in replica.servers])

    def sleep(self) -> None:
        self.trainer.checkpoint_manager.sleep_replicas()


class VerlTracker:
    """`runs.Tracker` for the loggers of verl's `trainer.logger`."""

    def __init__(self, config: DictConfig) -> None:
        self._tracking = Tracking(
            project_name=config.trainer.project_name,
            experiment_name=config.trainer.experiment_name,
            default_backend=config.trainer.logger,
            config=OmegaConf.to_container(config, resolve=True),
        )

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._tracking.log(data=scalars(metrics), step=step)

    def close(self) -> None:
        self._tracking.finish()


class StopFile:
    """`runs.StopRequest` through a file that the process of `pivot train` writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.stepping = False

    def __bool__(self) -> bool:
        return self._path.exists()

    @property
    def reason(self) -> str:
        return self._path.read_text(encoding="ascii").strip() if self else "stopped"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def explain(error: BaseException, dead: Sequence[str] = ()) -> str:
    """Why a run failed, in one sentence: a process that died is named, not just the call that noticed.

    Args:
        dead: the processes that died, e.g. `rank 0 (process 4711 on host)`.
    """
    if dead:
        return (
            f"{', '.join(dead)} {'has' if len(dead) == 1 else 'have'} died, killed or out of memory; the last "
            "checkpoint is good, continue with --resume"
        )
    cause = vars(error).get("cause")
    if isinstance(cause, Exception):
        return explain(cause)
    if isinstance(error, UserError):
        return str(error)
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no reason given'}"


def find_dead(error: BaseException, actors: Mapping[str, Any]) -> list[str]:
    """Names of the actors that have died, where `error` comes from Ray. A dead node is noticed after half a minute."""
    if not isinstance(error, RayError):
        return []
    calls = {name: actor.__ray_ready__.remote() for name, actor in actors.items()}
    waiting = list(calls.values())
    if waiting:
        ray.wait(waiting, num_returns=len(waiting), timeout=PATIENCE)
    return [name for name, call in calls.items() if _failed(call)]


def _failed(call: Any) -> bool:
    try:
        ray.get(call, timeout=0.1)
    except GetTimeoutError:
        return False
    except RayActorError:
        return True
    return False
