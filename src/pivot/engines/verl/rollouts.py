"""Who samples: this project's own replicas on CPUs, or verl's vLLM or SGLang servers on GPUs.

verl constructs the chosen class as its agent loop manager and passes it the client of its load balancer.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from PIL import Image

from pivot.models.corruption import GREY
from pivot.models.policy import Policy
from pivot.sampling import SampleRequest, Sampling
from pivot.seeding import stable_seed
from pivot.types import Prompt, Response

NEVER = -100.0
"""The strongest logit bias that both servers accept."""
SEEDS = {"vllm": 2**62, "sglang": 2**31 - 1}
"""Seeds stay below these."""


class _Client:
    """verl's client, and the run's tokenizer once it is known."""

    takes_images: ClassVar[bool]

    def __init__(self, config: Any, client: Any) -> None:
        self.client = client
        rollout = config.actor_rollout_ref.rollout
        per_replica = rollout.tensor_model_parallel_size * rollout.data_parallel_size
        per_replica *= rollout.pipeline_model_parallel_size
        ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
        self.num_replicas = max(1, ranks // per_replica)
        self.name = rollout.name
        self.tokenizer_only: Policy | None = None
        """Set by the driver."""
        self.images: Callable[[Prompt], list[Image.Image]] = lambda prompt: []
        """Likewise: the decoded images of a prompt."""
        self.share: Callable[[list[Image.Image]], Any] = lambda images: images
        """Likewise: puts images where all servers of a node find them, instead of into every request."""
        self.seeded = bool(rollout.full_determinism)
        """Whether every sample has a seed. vLLM draws such samples row by row."""

    @classmethod
    def create(cls, config: Any, llm_client: Any, **_: Any) -> Self:
        """As verl constructs an agent loop manager."""
        return cls(config, llm_client)

    async def _generate(self, request_id: str | None = None, **request: Any) -> Any:
        """verl sends requests with the same id to the same replica."""
        return await self.client.generate(request_id=request_id or uuid.uuid4().hex, **request)


class ReplicaRollouts(_Client):
    """Through `replica.PivotReplica`: whole prompts, all G samples of a prompt from one prefill."""

    takes_images = False

    def sample(
        self, prompts: Sequence[Prompt], request: SampleRequest
    ) -> Iterator[tuple[int, list[Response]]]:
        request = replace(request, refill=None)  # all at once, so that a seed fixes a run
        shares = [list(range(first, len(prompts), self.num_replicas)) for first in range(self.num_replicas)]
        shares = [share for share in shares if share]
        found = asyncio.run(self._all([[prompts[i] for i in share] for share in shares], request))
        for share, groups in zip(shares, found, strict=True):
            yield from zip(share, groups, strict=True)

    async def _all(
        self, shares: Sequence[list[Prompt]], request: SampleRequest
    ) -> list[list[list[Response]]]:
        outputs = await asyncio.gather(
            *(self._generate(prompt_ids=[], sampling_params={}, prompts=s, request=request) for s in shares)
        )
        return [output.extra_fields["groups"] for output in outputs]


class ServerRollouts(_Client):
    """Through verl's own vLLM or SGLang servers: token ids and images, one request per sample.

    The samples of a prompt go to one replica, which then finds its prefix and its images in its caches. Responses come
    without log-probs: a server's are those after top-p, and the ranks compute the policy's own.
    """

    takes_images = True

    def sample(
        self, prompts: Sequence[Prompt], request: SampleRequest
    ) -> Iterator[tuple[int, list[Response]]]:
        return iter(asyncio.run(self._all(prompts, request)).items())

    async def _all(self, prompts: Sequence[Prompt], request: SampleRequest) -> dict[int, list[Response]]:
        """All groups by index; `request.refill` is asked whenever half of the running groups have finished."""
        running = {asyncio.create_task(self._group(p, request)): i for i, p in enumerate(prompts)}
        # Which groups finish first depends on the servers' load: a run with seeds does not look.
        refill = None if self.seeded else request.refill
        found: dict[int, list[Response]] = {}
        fresh: dict[int, list[Response]] = {}
        while running:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            fresh |= {running.pop(task): task.result() for task in done}
            if refill is not None and len(fresh) >= len(running):
                more = await asyncio.to_thread(refill, fresh)
                found, fresh = found | fresh, {}
                last = len(found) + len(running)
                running |= {
                    asyncio.create_task(self._group(prepared.prompt, request)): last + i
                    for i, prepared in enumerate(more)
                }
        return found | fresh

    async def _group(self, prompt: Prompt, request: SampleRequest) -> list[Response]:
        assert self.tokenizer_only is not None
        images = await asyncio.to_thread(self.images, prompt)
        if request.blank:
            images = [Image.new("RGB", image.size, (int(GREY),) * 3) for image in images]
        shared = self.share(images) if images else None
        ids = self.tokenizer_only.encoder.text_ids(prompt)
        replica = uuid.uuid4().hex
        outputs = await asyncio.gather(
            *(
                self._generate(
                    # With full determinism verl hands the id on to vLLM, where it must be the sample's own.
                    request_id=f"{request.key}-{prompt.id}-{sample}" if self.seeded else replica,
                    prompt_ids=ids,
                    sampling_params=self._settings(prompt, sample, request),
                    image_data=shared,
                )
                for sample in range(request.num_samples)
            )
        )
        return [self._response(output) for output in outputs]

    def _settings(self, prompt: Prompt, sample: int, request: SampleRequest) -> dict[str, Any]:
        assert self.tokenizer_only is not None
        known = self.tokenizer_only
        seed = stable_seed(*request.key, prompt.id, sample) if self.seeded else None
        return server_settings(self.name, request.sampling, seed, ends=known.end_ids, banned=known.banned_ids)

    def _response(self, output: Any) -> Response:
        assert self.tokenizer_only is not None
        ids = torch.tensor(output.token_ids, dtype=torch.int64)
        # As a tensor: of a list, the tokenizer asks each element for its type.
        text = str(self.tokenizer_only.tokenizer.decode(ids, skip_special_tokens=True))
        ended = bool(len(ids)) and int(ids[-1]) in self.tokenizer_only.end_ids
        return Response(ids, text, None, None, truncated=not ended)


def server_settings(
    server: str, sampling: Sampling, seed: int | None, *, ends: Sequence[int], banned: Sequence[int]
) -> dict[str, Any]:
    """vLLM's or SGLang's settings for one sample that ends as the model does and contains no image tokens.

    Example:
        server_settings("vllm", Sampling(max_tokens=2048), 1, ends=[2], banned=[11])["top_k"] == -1
    """
    settings: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": list(ends),
    }
    if server == "sglang":
        settings["logit_bias"] = {str(token): NEVER for token in banned}
        return settings if seed is None else {**settings, "sampling_seed": seed % SEEDS["sglang"]}
    settings["logit_bias"] = dict.fromkeys(banned, NEVER)
    return settings if seed is None else {**settings, "seed": seed % SEEDS["vllm"]}
