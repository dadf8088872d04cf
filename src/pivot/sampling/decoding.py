"""Decode G responses a prompt: one prefill for all of them, finished sequences leave the batch.

While decoding, the log-prob of each drawn token and the full entropy are kept, so that old log-probs and H (Eq. 5) need
no further pass. They are those of the policy at its own temperature, untruncated: top-p, top-k and banned tokens
change what is drawn, not what is noted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from pivot.models.encoding import EncodedPrompt
from pivot.models.policy import Policy
from pivot.sampling.continuation import Continuation, PrefilledPrompts
from pivot.sampling.sampling import Sampling, draw_tokens, uniform_stream
from pivot.seeding import stable_seed
from pivot.types import Response

HEAD_CHUNK_ELEMENTS = 2**25
"""Logits held at once while a token is drawn: 128 MiB in float32."""
LEAVE_SHARE = 0.25
"""The batch is compacted when this share of its sequences has finished."""


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
    """Yield (index of the prompt, its responses) as batches of prompts finish; every prompt comes once.

    `key` seeds the draws together with the prompt's id and the sample's number.
    """
    for indices in plan_batches([len(p) for p in prompts], num_samples, sampling.max_tokens, batch_tokens):
        batch = [prompts[i] for i in indices]
        drawn = _Decoder(policy, batch, num_samples, sampling, key).run()
        for slot, index in enumerate(indices):
            yield index, drawn[slot * num_samples : (slot + 1) * num_samples]


def plan_batches(
    lengths: Sequence[int], num_samples: int, max_tokens: int, batch_tokens: int
) -> list[list[int]]:
    """Prompts by length, as many a batch as their caches allow; one at least."""
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    batches: list[list[int]] = []
    for index in order:
        need = num_samples * (lengths[index] + max_tokens)  # the last is the longest: others are padded to it
        if not batches or need * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


@dataclass
class _Record:
    """What was drawn for N sequences, in the order of their slots."""

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
        prompts, hidden_PD = self._prefill()
        responses = Continuation(self.policy, prompts, self.num_samples, self.sampling.max_tokens)
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

    def _prefill(self) -> tuple[PrefilledPrompts, Tensor]:
        """The prompts once, left-padded to one length, and the hidden states behind them."""
        policy, device = self.policy, self.policy.device
        lengths = [len(p) for p in self.prompts]
        longest = max(lengths)
        ids_PL = torch.full((len(self.prompts), longest), policy.pad_id)
        positions_3PL = torch.zeros(3, len(self.prompts), longest, dtype=torch.int64)
        seen_PL = torch.zeros(len(self.prompts), longest, dtype=torch.bool)
        for row, prompt in enumerate(self.prompts):
            start = longest - len(prompt)
            ids_PL[row, start:] = prompt.input_ids_L
            positions_3PL[:, row, start:] = prompt.position_ids_3L
            seen_PL[row, start:] = True
        mask = None if min(lengths) == longest else _prefill_mask(seen_PL).to(device)
        cache = DynamicCache()
        inputs = policy.embed(ids_PL.to(device), policy.features(self.prompts))
        hidden_PD = policy.hidden(inputs, positions_3PL.to(device), mask, cache)[:, -1]
        position_P = torch.tensor([p.next_position for p in self.prompts], device=device)
        return PrefilledPrompts(cache, seen_PL.to(device), position_P), hidden_PD

    def _draw(self, hidden_ND: Tensor, alive: Tensor, t: int) -> Tensor:
        """Draw token t of every sequence and note its log-prob and entropy; a few rows of logits at a time.

        Those that have ended and not yet left are drawn for too; what is noted behind an end is never read.
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


def _prefill_mask(seen_PL: Tensor) -> Tensor:
    """bool [P, 1, L, L]: causal over the real tokens; padding sees itself alone."""
    length = seen_PL.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return (causal & seen_PL[:, None, :] | torch.eye(length, dtype=torch.bool))[:, None]
