"""This project's own decoder: one prefill for all G responses of a prompt; finished responses leave the batch.

Decoding records the log-prob of each drawn token and the full entropy, so that old log-probs and H (Eq. 5) need no
further pass. They belong to the policy at its own temperature: top-p, top-k and banned tokens change what is drawn, not
what is recorded.

A token is drawn by inverting the cumulative distribution at one uniform number. Each response has its own counter-based
stream of these numbers, so its draws depend on (key, prompt, sample) alone and not on the batch it is decoded in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pivot.models.corruption import Corruption, Corruptor
from pivot.models.family import EncodedPrompt
from pivot.models.policy import Policy
from pivot.sampling.base import SampleRequest, SamplerName, Sampling
from pivot.seeding import stable_seed
from pivot.types import PreparedPrompt, Prompt, Response

CHUNK = 64
"""Prompts that `NativeSampler` encodes at once."""

HEAD_CHUNK_ELEMENTS = 2**25
"""Logits held at once while tokens are drawn: 128 MiB in float32."""
LEAVE_SHARE = 0.25
"""The batch is compacted when this share of its sequences has finished."""


class NativeSampler:
    """The policy in this process, at the weights that it has."""

    name: SamplerName = "native"

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def sample(
        self, prompts: Sequence[Prompt] | Sequence[PreparedPrompt], request: SampleRequest
    ) -> Iterator[tuple[int, list[Response]]]:
        """Encoded prompts are decoded as they are, and their image features stay cached for scoring."""
        encoded = [prompt for prompt in prompts if isinstance(prompt, EncodedPrompt)]
        if encoded:
            assert len(encoded) == len(prompts)
            return self._decode(encoded, request)
        return self._encode_and_decode([p for p in prompts if isinstance(p, Prompt)], request)

    def _decode(
        self, prompts: Sequence[EncodedPrompt], request: SampleRequest
    ) -> Iterator[tuple[int, list[Response]]]:
        return sample_responses(
            self.policy,
            prompts,
            request.num_samples,
            request.sampling,
            key=request.key,
            batch_tokens=request.batch_tokens,
        )

    def _encode_and_decode(
        self, prompts: Sequence[Prompt], request: SampleRequest
    ) -> Iterator[tuple[int, list[Response]]]:
        policy = self.policy
        blanker = Corruptor(policy.encoder, Corruption(kind="grey"), seed=0)
        policy.forget_features()
        for start in range(0, len(prompts), CHUNK):
            encoded = [policy.encoder.encode(prompt) for prompt in prompts[start : start + CHUNK]]
            if request.blank:
                encoded = [blanker.corrupt(prompt, 0) for prompt in encoded]
            for index, responses in self._decode(encoded, request):
                yield start + index, responses
            policy.forget_features()

    def weights_changed(self) -> None: ...

    def sleep(self) -> None: ...

    def close(self) -> None: ...


@torch.no_grad()
def sample_responses(
    policy: Policy,
    prompts: Sequence[EncodedPrompt],
    num_samples: int,
    sampling: Sampling,
    *,
    key: tuple[object, ...] = (0,),
    batch_tokens: int = 65536,
) -> Iterator[tuple[int, list[Response]]]:
    """Yield (index of the prompt, its responses) as batches of prompts finish; every prompt occurs once.

    `key` seeds the draws together with the prompt's id and the sample's index.
    """
    for indices in plan_batches([len(p) for p in prompts], num_samples, sampling.max_tokens, batch_tokens):
        batch = [prompts[i] for i in indices]
        drawn = _Decoder(policy, batch, num_samples, sampling, key).run()
        for slot, index in enumerate(indices):
            yield index, drawn[slot * num_samples : (slot + 1) * num_samples]


def plan_batches(
    lengths: Sequence[int], num_samples: int, max_tokens: int, batch_tokens: int
) -> list[list[int]]:
    """Indices of prompts sorted by length, as many per batch as their caches allow, at least one."""
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    batches: list[list[int]] = []
    for index in order:
        need = num_samples * (lengths[index] + max_tokens)  # the longest so far; the others are padded to it
        if not batches or need * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


@dataclass
class _Record:
    """Drawn tokens of N sequences and their scores."""

    tokens_NT: Tensor
    logprobs_NT: Tensor
    entropy_NT: Tensor
    lengths_N: Tensor
    ended_N: Tensor


class _Decoder:
    """One batch from prefill to the last token."""

    def __init__(
        self,
        policy: Policy,
        prompts: Sequence[EncodedPrompt],
        num_samples: int,
        sampling: Sampling,
        key: tuple[object, ...],
    ) -> None:
        self.policy, self.prompts, self.num_samples, self.sampling = policy, prompts, num_samples, sampling
        device = policy.device
        size = len(prompts) * num_samples
        streams = [
            uniform_stream(stable_seed(*key, p.prompt.id, sample), sampling.max_tokens)
            for p in prompts
            for sample in range(num_samples)
        ]
        self.uniform_NT = torch.from_numpy(np.stack(streams)).to(device)
        self.banned = torch.tensor(policy.banned_ids, device=device)
        self.banned_early = torch.tensor(policy.banned_ids + policy.end_ids, device=device)
        self.end_ids = torch.tensor(policy.end_ids, device=device)
        shape = (size, sampling.max_tokens)
        self.record = _Record(
            tokens_NT=torch.zeros(shape, dtype=torch.int64, device=device),
            logprobs_NT=torch.zeros(shape, device=device),
            entropy_NT=torch.zeros(shape, device=device),
            lengths_N=torch.full((size,), sampling.max_tokens, device=device),
            ended_N=torch.zeros(size, dtype=torch.bool, device=device),
        )

    def run(self) -> list[Response]:
        prompts, hidden_PD = self.policy.prefill(self.prompts)
        responses = self.policy.continuation(prompts, self.num_samples, self.sampling.max_tokens)
        hidden_ND = hidden_PD.repeat_interleave(self.num_samples, 0)
        alive = torch.arange(len(hidden_ND), device=hidden_ND.device)
        running = torch.ones(len(alive), dtype=torch.bool, device=hidden_ND.device)
        for t in range(self.sampling.max_tokens):
            tokens_N = self._draw(hidden_ND, alive, t)
            ended = torch.isin(tokens_N, self.end_ids) & running
            self.record.lengths_N[alive[ended]] = t + 1
            self.record.ended_N[alive[ended]] = True
            running &= ~ended
            num_running = int(running.sum())
            if num_running == 0 or t + 1 == self.sampling.max_tokens:
                break
            if num_running <= (1 - LEAVE_SHARE) * len(alive):
                keep = running.nonzero().squeeze(-1)
                responses.keep(keep)
                alive, tokens_N, running = (x[keep] for x in (alive, tokens_N, running))
            hidden_ND = responses.advance(tokens_N)
        return self._responses()

    def _draw(self, hidden_ND: Tensor, alive: Tensor, t: int) -> Tensor:
        """Draw token t of every sequence and record its log-prob and entropy, a few rows of logits at a time.

        Sequences that have ended stay until the batch is compacted; what is recorded after their end is never read.
        """
        banned = self.banned_early if t < self.sampling.min_tokens else self.banned
        head_VD = self.policy.head_weight_VD
        rows = max(1, HEAD_CHUNK_ELEMENTS // head_VD.shape[0])
        record = self.record
        for start in range(0, len(hidden_ND), rows):
            slots = alive[start : start + rows]
            logits_NV = (hidden_ND[start : start + rows] @ head_VD.T).float()
            drawn_N = draw_tokens(logits_NV, self.uniform_NT[slots, t], self.sampling, banned)
            if self.policy.temperature != 1:
                logits_NV = logits_NV / self.policy.temperature
            logprobs_NV = logits_NV.log_softmax(-1)
            record.tokens_NT[slots, t] = drawn_N
            record.logprobs_NT[slots, t] = logprobs_NV.gather(-1, drawn_N[:, None]).squeeze(-1)
            record.entropy_NT[slots, t] = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
        return record.tokens_NT[alive, t]

    def _responses(self) -> list[Response]:
        record = self.record
        ids = [
            tokens[:length]
            for tokens, length in zip(record.tokens_NT.cpu(), record.lengths_N.tolist(), strict=True)
        ]
        texts = self.policy.tokenizer.batch_decode([y.tolist() for y in ids], skip_special_tokens=True)
        scores = zip(record.logprobs_NT.cpu(), record.entropy_NT.cpu(), record.ended_N.tolist(), strict=True)
        return [
            Response(
                y.clone(), text, logprobs[: len(y)].clone(), entropy[: len(y)].clone(), truncated=not ended
            )
            for y, text, (logprobs, entropy, ended) in zip(ids, texts, scores, strict=True)
        ]


def uniform_stream(key: int, length: int) -> np.ndarray:
    """`length` uniform numbers in [0, 1) that depend on the key alone."""
    return np.random.Generator(np.random.Philox(key=key)).random(length)


def draw_tokens(logits_NV: Tensor, uniform_N: Tensor, sampling: Sampling, banned: Tensor) -> Tensor:
    """One token per row from the (tempered, truncated) distribution, never a banned one."""
    logits_NV = logits_NV.index_fill(-1, banned, -torch.inf)
    if sampling.temperature == 0:
        return logits_NV.argmax(-1)
    if sampling.temperature != 1:
        logits_NV = logits_NV / sampling.temperature
    if sampling.top_k and sampling.top_k < logits_NV.shape[-1]:
        kth = logits_NV.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits_NV = logits_NV.masked_fill(logits_NV < kth, -torch.inf)
    probs_NV = logits_NV.softmax(-1)
    if sampling.top_p < 1:
        probs_NV = keep_nucleus(probs_NV, sampling.top_p)
    # Double precision: a single-precision sum over 150,000 entries would shift the draw by whole tokens.
    cumulative_NV = probs_NV.double().cumsum(-1)
    total_N = cumulative_NV[:, -1:]
    # Strictly below the total, so that the first entry above it exists and has a positive probability.
    point_N1 = torch.minimum(uniform_N[:, None] * total_N, total_N * (1 - 1e-12))
    drawn_N1 = torch.searchsorted(cumulative_NV, point_N1, right=True)
    # Non-finite logits find no entry; the update that follows from them is skipped and reported.
    return drawn_N1.clamp(max=logits_NV.shape[-1] - 1).squeeze(-1)


def keep_nucleus(probs_NV: Tensor, top_p: float) -> Tensor:
    """Zero outside the smallest set of likeliest tokens whose probability reaches `top_p`."""
    ordered_NV, order_NV = probs_NV.sort(-1, descending=True)
    before_NV = ordered_NV.cumsum(-1) - ordered_NV
    ordered_NV = ordered_NV.masked_fill(before_NV >= top_p, 0.0)
    return torch.zeros_like(probs_NV).scatter(-1, order_NV, ordered_NV)
