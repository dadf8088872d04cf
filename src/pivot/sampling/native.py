"""This project's own sampler: the decoder with a budget of tokens that follows the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from pivot.models.corruption import Corruption, Corruptor
from pivot.models.family import EncodedPrompt
from pivot.models.memory import within_memory
from pivot.models.policy import Policy
from pivot.sampling.base import AfterPrefill, SampleRequest, SamplerName, Sampling
from pivot.sampling.decoder import Decoder, cache_tokens
from pivot.types import PreparedPrompt, Prompt, Response

CHUNK = 64
"""Prompts that `NativeSampler` encodes at once."""
CPU_BATCH_TOKENS = 65536
GPU_BATCH_TOKENS = 2**22
"""More than any GPU holds: its free memory decides."""
FREE_SHARE = 0.8
"""Share of the GPU's free memory for keys and values; the rest is left to prefill and logits."""


class NativeSampler:
    """The policy in this process, at the weights that it has; holds fewer tokens when memory runs out."""

    name: SamplerName = "native"

    def __init__(self, policy: Policy, batch_tokens: int | None = None, *, halve_on_oom: bool = True) -> None:
        self.policy = policy
        self.batch_tokens = batch_tokens or (
            GPU_BATCH_TOKENS if policy.device.type == "cuda" else CPU_BATCH_TOKENS
        )
        """Most prompt and response tokens in the caches at once."""
        self._may_halve = halve_on_oom

    def sample(
        self, prompts: Sequence[Prompt] | Sequence[PreparedPrompt], request: SampleRequest
    ) -> Iterator[tuple[int, list[Response]]]:
        """Encoded prompts are decoded as they are, and their image features stay cached for scoring."""
        encoded = [prompt for prompt in prompts if isinstance(prompt, EncodedPrompt)]
        if encoded:
            assert len(encoded) == len(prompts)
            return enumerate(self.draw(encoded, request))
        return self._encode_and_draw([p for p in prompts if isinstance(p, Prompt)], request)

    def _encode_and_draw(
        self, prompts: Sequence[Prompt], request: SampleRequest
    ) -> Iterator[tuple[int, list[Response]]]:
        policy = self.policy
        blanker = Corruptor(policy.encoder, Corruption(kind="grey"), seed=0)
        policy.forget_features()
        for start in range(0, len(prompts), CHUNK):
            encoded = [policy.encoder.encode(prompt) for prompt in prompts[start : start + CHUNK]]
            if request.blank:
                encoded = [blanker.corrupt(prompt, 0) for prompt in encoded]
            for index, responses in enumerate(self.draw(encoded, request)):
                yield start + index, responses
            policy.forget_features()

    def draw(self, prompts: Sequence[EncodedPrompt], request: SampleRequest) -> list[list[Response]]:
        """The responses of each prompt."""
        found = within_memory(
            partial(self._draw, prompts, request),
            partial(self._halve, prompts, request),
            "rollout.batch_tokens",
        )
        return [found[i] for i in range(len(prompts))]

    def _draw(self, prompts: Sequence[EncodedPrompt], request: SampleRequest) -> dict[int, list[Response]]:
        return dict(
            sample_responses(
                self.policy,
                prompts,
                request.num_samples,
                request.sampling,
                key=request.key,
                batch_tokens=self.batch_tokens,
                after_prefill=request.after_prefill,
            )
        )

    def _halve(self, prompts: Sequence[EncodedPrompt], request: SampleRequest) -> bool:
        """Hold at most half as many tokens at once; False if that would not split these prompts further."""
        one = max(cache_tokens(self.policy, [len(prompt)], request) for prompt in prompts)
        every = sum(cache_tokens(self.policy, [len(prompt)], request) for prompt in prompts)
        used = min(self.batch_tokens, free_tokens(self.policy), every)
        if not self._may_halve or used <= one:
            return False
        self.batch_tokens = used // 2
        return True

    def weights_changed(self) -> None: ...

    def sleep(self) -> None: ...

    def close(self) -> None: ...


def free_tokens(policy: Policy) -> int:
    """Tokens whose keys and values fit into a GPU's free memory. On a CPU nothing is measured, so that runs repeat."""
    if policy.device.type != "cuda":
        return GPU_BATCH_TOKENS
    free, _ = torch.cuda.mem_get_info(policy.device)
    # torch keeps memory that it does not use at the moment.
    free += torch.cuda.memory_reserved(policy.device) - torch.cuda.memory_allocated(policy.device)
    return int(FREE_SHARE * free) // policy.cache_bytes_per_token


@torch.no_grad()
def sample_responses(
    policy: Policy,
    prompts: Sequence[EncodedPrompt],
    num_samples: int,
    sampling: Sampling,
    *,
    key: tuple[object, ...] = (0,),
    batch_tokens: int = CPU_BATCH_TOKENS,
    after_prefill: AfterPrefill | None = None,
) -> Iterator[tuple[int, list[Response]]]:
    """Yield (index of the prompt, its responses) as prompts finish; every prompt occurs once.

    `key` seeds the draws together with the prompt's id and the sample's index.
    """
    if prompts:
        budget = min(batch_tokens, free_tokens(policy))
        request = SampleRequest(num_samples, sampling, key, after_prefill=after_prefill)
        yield from Decoder(policy, prompts, request, budget).run()
