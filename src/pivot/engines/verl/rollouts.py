"""Who samples: this project's own replicas on CPUs, or verl's vLLM or SGLang servers on GPUs.

verl constructs the chosen class as its agent loop manager and hands it the client of its load balancer.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import torch
from PIL import Image

from pivot.data.images import open_rgb
from pivot.engines.verl.requests import server_settings
from pivot.models.corruption import GREY
from pivot.models.policy import Policy
from pivot.sampling import SampleRequest
from pivot.seeding import stable_seed
from pivot.training.plan import StepPlan
from pivot.types import Prompt, Response


class Rollouts(Protocol):
    """Samples responses somewhere."""

    def sample(self, prompts: Sequence[Prompt], order: SampleRequest) -> Iterator[tuple[int, list[Response]]]:
        """(index of the prompt, its responses); every prompt comes once."""
        ...

    def plan(self, plan: StepPlan) -> StepPlan:
        """The step's sizes as this way of sampling needs them."""
        ...


class _Client:
    """What both ways share: verl's client, and the run's policy once that is known."""

    def __init__(self, config: Any, client: Any) -> None:
        self.client = client
        rollout = config.actor_rollout_ref.rollout
        per_replica = rollout.tensor_model_parallel_size * rollout.data_parallel_size
        per_replica *= rollout.pipeline_model_parallel_size
        ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
        self.num_replicas = max(1, ranks // per_replica)
        self.name = rollout.name
        self.outline: Policy | None = None

    @classmethod
    def create(cls, config: Any, llm_client: Any, **_: Any) -> Self:
        """As verl constructs an agent loop manager."""
        return cls(config, llm_client)

    async def _generate(self, **request: Any) -> Any:
        return await self.client.generate(request_id=uuid.uuid4().hex, **request)


class ReplicaRollouts(_Client):
    """Through `replica.PivotReplica`: whole prompts there, all G samples of a prompt from one prefill."""

    def sample(self, prompts: Sequence[Prompt], order: SampleRequest) -> Iterator[tuple[int, list[Response]]]:
        shares = [list(range(first, len(prompts), self.num_replicas)) for first in range(self.num_replicas)]
        shares = [share for share in shares if share]
        found = asyncio.run(self._all([[prompts[i] for i in share] for share in shares], order))
        for share, groups in zip(shares, found, strict=True):
            yield from zip(share, groups, strict=True)

    def plan(self, plan: StepPlan) -> StepPlan:
        """Decoding says log-probs and entropies itself, as in the embedded engine."""
        return plan

    async def _all(self, shares: Sequence[list[Prompt]], order: SampleRequest) -> list[list[list[Response]]]:
        outputs = await asyncio.gather(
            *(self._generate(prompt_ids=[], sampling_params={}, prompts=s, order=order) for s in shares)
        )
        return [output.extra_fields["groups"] for output in outputs]


class ServerRollouts(_Client):
    """Through verl's own vLLM or SGLang servers: token ids and pictures there, a request a sample."""

    def sample(self, prompts: Sequence[Prompt], order: SampleRequest) -> Iterator[tuple[int, list[Response]]]:
        return iter(enumerate(asyncio.run(self._all(prompts, order))))

    def plan(self, plan: StepPlan) -> StepPlan:
        """Log-probs and entropies of the policy itself come from a pass on the ranks, as PAPO and DAPO on verl do."""
        return replace(plan, recompute_logprobs=True)

    async def _all(self, prompts: Sequence[Prompt], order: SampleRequest) -> list[list[Response]]:
        return list(await asyncio.gather(*(self._group(prompt, order) for prompt in prompts)))

    async def _group(self, prompt: Prompt, order: SampleRequest) -> list[Response]:
        assert self.outline is not None
        encoder = self.outline.encoder
        images = [encoder.resized(open_rgb(source)) for source in prompt.images]
        if order.blank:
            images = [Image.new("RGB", image.size, (int(GREY),) * 3) for image in images]
        outputs = await asyncio.gather(
            *(
                self._generate(
                    prompt_ids=encoder.text_ids(prompt),
                    sampling_params=self._settings(prompt, sample, order),
                    image_data=images or None,
                )
                for sample in range(order.num_samples)
            )
        )
        return [self._response(output) for output in outputs]

    def _settings(self, prompt: Prompt, sample: int, order: SampleRequest) -> dict[str, Any]:
        assert self.outline is not None
        seed = stable_seed(*order.key, prompt.id, sample)
        return server_settings(
            self.name, order.sampling, seed, ends=self.outline.end_ids, banned=self.outline.banned_ids
        )

    def _response(self, output: Any) -> Response:
        assert self.outline is not None
        ids = torch.tensor(output.token_ids, dtype=torch.int64)
        text = str(self.outline.tokenizer.decode(output.token_ids, skip_special_tokens=True))
        ended = bool(len(ids)) and int(ids[-1]) in self.outline.end_ids
        # A server's log-probs belong to the distribution after top-p; the ranks compute the policy's own.
        return Response(ids, text, None, None, truncated=not ended)


@dataclass
class RemoteSampler:
    """`evaluate.Sampler` for the evaluations of a run."""

    rollouts: Rollouts

    def sample(
        self, prompts: Sequence[Prompt], request: SampleRequest
    ) -> Iterator[tuple[int, list[Response]]]:
        return self.rollouts.sample(prompts, request)

    def close(self) -> None: ...
