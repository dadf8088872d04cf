"""A rollout replica for machines without a GPU: this project's own decoder in a Ray actor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import ray
import torch
from torch import Tensor
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from pivot.models.loading import ModelOptions, load_policy
from pivot.sampling import NativeSampler, SampleRequest
from pivot.types import Prompt, Response


def server_name(replica_rank: int) -> str:
    return f"pivot_rollout_{replica_rank}"


class RolloutServer:
    """A whole policy that samples; verl sends it new weights after every step."""

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        temperature = options.pop("temperature")
        self.policy = load_policy(path, ModelOptions(**options))
        self.policy.temperature = temperature
        self.global_steps: int | None = None
        self._lock = asyncio.Lock()

    async def ready(self) -> int:
        """The process id."""
        return os.getpid()

    async def generate(
        self, request_id: str, prompts: list[Prompt], request: SampleRequest, **_: Any
    ) -> TokenOutput:
        """All samples of all these prompts, as `extra_fields["groups"]`."""
        async with self._lock:
            groups = await asyncio.to_thread(self._sample, prompts, request)
        return TokenOutput(token_ids=[], extra_fields={"groups": groups, "global_steps": self.global_steps})

    def _sample(self, prompts: list[Prompt], request: SampleRequest) -> list[list[Response]]:
        found = dict(NativeSampler(self.policy).sample(prompts, request))
        return [found[i] for i in range(len(prompts))]

    async def load(self, weights: dict[str, Tensor], global_steps: int | None) -> None:
        """Replace all weights and forget everything computed with the old ones."""
        async with self._lock:
            known = self.policy.model.state_dict()
            unknown, absent = set(weights) - set(known), set(known) - set(weights)
            if unknown or absent - _tied(known, weights):
                raise ValueError(
                    f"the rollout's model does not match the trained one: it has no {sorted(unknown)[:3]}, and "
                    f"{sorted(absent)[:3]} were not sent"
                )
            self.policy.model.load_state_dict(weights, strict=False)
            self.policy.forget_features()
            self.global_steps = global_steps

    async def clear_kv_cache(self) -> None:
        """Image features are all that is kept between requests."""
        async with self._lock:
            self.policy.forget_features()

    async def sleep(self) -> None: ...

    async def wake_up(self) -> None: ...


def _tied(known: dict[str, Tensor], sent: dict[str, Tensor]) -> set[str]:
    """Weights that are another name of one that was sent."""
    places = {known[name].data_ptr() for name in sent if name in known}
    return {name for name, value in known.items() if value.data_ptr() in places}


class PivotReplica(RolloutReplica):
    """One server per replica, on the node of its rank."""

    async def launch_servers(self) -> None:
        options = self.config.engine_kwargs.get("pivot") or {}
        strategy = "DEFAULT"
        if self.workers:
            node = await self.workers[0].__ray_call__.remote(_node_id)
            strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        server = (
            ray.remote(RolloutServer)
            .options(
                name=server_name(self.replica_rank),
                num_cpus=0,
                max_concurrency=self.max_concurrency,
                scheduling_strategy=strategy,
            )
            .remote(self.model_config.path, dict(options))
        )
        await server.ready.remote()
        self.servers = [server]
        self._server_handle, self._server_address = server, server_name(self.replica_rank)


def _node_id(_: Any) -> str:
    return ray.get_runtime_context().get_node_id()


class WeightSender(BaseRollout):
    """The ranks' side: all gather every weight, and the first rank of each replica sends them."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, **_: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        rank = int(os.environ["RANK"])
        size = self.config.tensor_model_parallel_size * self.config.data_parallel_size
        size *= self.config.pipeline_model_parallel_size
        self._server = server_name(rank // size) if rank % size == 0 else None

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self,
        weights: Iterator[tuple[str, Tensor]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_: Any,
    ) -> None:
        """Every rank must iterate over all weights: each is gathered from all ranks on the way."""
        whole = {name: weight.detach().cpu().clone() for name, weight in weights}
        if self._server is not None:
            await ray.get_actor(self._server).load.remote(whole, global_steps)
