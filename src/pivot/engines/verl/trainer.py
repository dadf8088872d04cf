"""verl's V1 trainer whose step is this project's.

verl's own loop drives: it starts the workers and the rollout replicas, counts steps, sends weights to the replicas
after each, and ends. What happens within a step is `Trainer.step`, the very line of the embedded engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray
import transfer_queue
from omegaconf import DictConfig, open_dict
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from pivot.config import to_dict
from pivot.engines.verl.checkpoints import load_shards, save_cluster
from pivot.engines.verl.cluster_trainer import RemoteWorkers, build_cluster_trainer
from pivot.engines.verl.recorder import Recorder
from pivot.engines.verl.rollouts import RemoteSampler
from pivot.engines.verl.worker import PivotWorker, RayRanks
from pivot.errors import UserError
from pivot.models.loading import load_outline
from pivot.runs.state import load_progress
from pivot.training import build
from pivot.training.prompts import drop_long_prompts, training_prompts


@register_trainer("pivot")
class PivotTrainer(PPOTrainerSync):
    """PIVOT and every other preset on verl's workers."""

    def __init__(self, config: DictConfig) -> None:
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"  # verl's classes ask for this very word
        self.recorder = Recorder(Path(config.pivot.run), resume=config.pivot.resume)
        self._processes: dict[str, Any] = {}
        super().__init__(config)

    # Setting up ------------------------------------------------------------------------------------------

    def init(self) -> None:
        with self.recorder.watching(lambda: self._processes):
            super().init()

    def _init_tokenizer(self) -> None:
        """Tokens and images are known to the outline; verl's own tokenizer is not needed here."""
        config = self.recorder.config
        folder = self.config.actor_rollout_ref.model.path
        self.outline = load_outline(Path(folder), build.model_options(config))
        self.tokenizer, self.processor = self.outline.tokenizer, None

    def _init_dataloader(self) -> None:
        """Prompts by id instead of verl's data loader: the stream and the buffer draw from them."""
        config, progress = self.recorder.config, self.recorder.progress
        found = drop_long_prompts(
            training_prompts(config), self.outline, config.rollout.max_prompt_tokens, list
        )
        for note in found.notes:
            progress.say(note)
        if len(found) < config.train.prompts_per_step:
            raise UserError(
                f"only {len(found)} prompts of {found.name} fit into rollout.max_prompt_tokens="
                f"{config.rollout.max_prompt_tokens}; a step needs {config.train.prompts_per_step}"
            )
        self.train_dataset = found.by_id
        self.total_training_steps = config.train.steps
        self.steps_per_epoch = config.train.steps + 1  # verl's epochs are not ours: it counts one

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping:
            self.role_worker_mapping[role] = ray.remote(PivotWorker)

    def _load_checkpoint(self) -> None:
        """Called by verl once workers and replicas are there."""
        group, start = self.actor_rollout_wg, self.recorder.start
        found = group.prepare(to_dict(self.recorder.config))
        self.recorder.folder.update_status(ranks=[{"host": host, "process": pid} for host, pid in found])
        names = [f"rank {n} (process {pid} on {host})" for n, (host, pid) in enumerate(found)]
        self._processes = dict(zip(names, group.workers, strict=True))
        for replica in self.llm_server_manager.get_replicas():
            for server in replica.servers:
                self._processes[f"rollout replica {replica.replica_rank}"] = server
        self.global_steps = start.step if start else 0
        if start:
            load_shards(group, start)

    # The loop --------------------------------------------------------------------------------------------

    def fit(self, agent_loop_manager: Any) -> None:
        with self.recorder.watching(lambda: self._processes):
            judge = build.build_judge(self.recorder.config)
            try:
                self._build(agent_loop_manager, judge)
                super().fit(agent_loop_manager)
                self.recorder.finish()
            finally:
                judge.close()

    def _build(self, rollouts: Any, judge: Any) -> None:
        recorder = self.recorder
        rollouts.outline = self.outline
        self.cluster = build_cluster_trainer(
            recorder.config,
            self.outline,
            self.train_dataset,
            judge,
            recorder.progress.clock,
            RemoteWorkers(RayRanks(self.actor_rollout_wg), rollouts, self.checkpoint_manager.sleep_replicas),
        )
        if recorder.start:
            load_progress(self.cluster, recorder.start.path)
        evaluation = recorder.build_evaluation(judge, open_sampler=lambda _: RemoteSampler(rollouts))
        recorder.begin(self.cluster, evaluation)

    def step(self, metrics: dict, timing_raw: dict) -> transfer_queue.KVBatchMeta:
        """The step of the embedded engine, with its forwards and updates on the ranks."""
        self.cluster.lr = self.recorder.learning_rate()
        self.outcome = self.cluster.step()
        # The driver holds a step's rows itself; verl's queue learns that there was a step, and clears it away.
        keys, tags = [f"step-{self.outcome.step}"], [{"status": "success"}]
        transfer_queue.kv_batch_put(keys=keys, partition_id="train", tags=tags)
        return transfer_queue.KVBatchMeta(partition_id="train", keys=keys, tags=tags)

    def on_step_end(self) -> None:
        """verl sends the new weights; nothing that the replicas computed with the old ones may survive that."""
        super().on_step_end()
        self._clear_caches()
        self.row = self.recorder.record(self.outcome, self.cluster.lr)
        self.recorder.save_if_due(lambda folder: save_cluster(self.cluster, self.actor_rollout_wg, folder))
        if self.recorder.stop_asked:
            self.total_training_steps = 0  # verl's loop ends here

    def _clear_caches(self) -> None:
        """Prefixes, processed images and encoder outputs; vLLM keeps replayed images by their hash alone."""
        servers = [server for r in self.llm_server_manager.get_replicas() for server in r.servers]
        ray.get([server.clear_kv_cache.remote() for server in servers])

    def _compute_metrics(
        self, batch: transfer_queue.KVBatchMeta, metrics: dict, timing_raw: dict, **_: Any
    ) -> None:
        """The row of metrics.jsonl, for verl's own loggers as well."""
        metrics.update({name: value for name, value in self.row.items() if isinstance(value, int | float)})
