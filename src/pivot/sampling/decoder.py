"""Decodes a stream of prompts: one prefill for all responses of a prompt; finished ones make room for waiting ones.

Decoding records the log-prob of each drawn token and the full entropy, so that old log-probs and H (Eq. 5) need no
further pass. They belong to the policy at its own temperature: top-p, top-k and banned tokens change what is drawn, not
what is recorded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pivot.method.products import product
from pivot.models.decoding import Continuation
from pivot.models.family import EncodedPrompt
from pivot.models.policy import Policy
from pivot.sampling.base import SampleRequest
from pivot.sampling.drawing import draw_tokens, uniform_stream
from pivot.seeding import stable_seed
from pivot.types import Response

PREFILL_TOKENS = 16384
"""Prompt tokens that are prefilled at once."""
HEAD_CHUNK_ELEMENTS = 2**25
"""Logits held at once while tokens are drawn: 128 MiB in float32."""
LEAVE_SHARE = 0.25
"""The batch is compacted when this share of its sequences has finished, and refilled when this share of it is free."""
CPU_CHECK_EVERY, GPU_CHECK_EVERY = 1, 8
"""Tokens between two looks at which sequences have finished; each look makes the host wait for the GPU."""


def cache_tokens(policy: Policy, lengths: Sequence[int], request: SampleRequest) -> int:
    """Tokens in the caches of prompts that start together: padded to the longest, responses at full length."""
    copies = 1 if policy.family.shares_prefixes else request.num_samples
    return len(lengths) * (copies * max(lengths) + request.num_samples * request.sampling.max_tokens)


@dataclass
class _Record:
    """Drawn tokens of N sequences and their scores."""

    tokens_NT: Tensor
    logprobs_NT: Tensor
    entropy_NT: Tensor
    lengths_N: Tensor
    ended_N: Tensor

    @staticmethod
    def empty(size: int, max_tokens: int, device: torch.device) -> _Record:
        shape = (size, max_tokens)
        return _Record(
            tokens_NT=torch.zeros(shape, dtype=torch.int64, device=device),
            logprobs_NT=torch.zeros(shape, device=device),
            entropy_NT=torch.zeros(shape, device=device),
            lengths_N=torch.zeros(size, dtype=torch.int64, device=device),
            ended_N=torch.zeros(size, dtype=torch.bool, device=device),
        )

    def responses(self, rows: slice, tokenizer: Any) -> list[Response]:
        columns = [x[rows].cpu() for x in (self.tokens_NT, self.logprobs_NT, self.entropy_NT)]
        lengths, ended = self.lengths_N[rows].tolist(), self.ended_N[rows].tolist()
        found = []
        for row, length in enumerate(lengths):
            ids, logprobs, entropy = (values[row, :length].clone() for values in columns)
            text = tokenizer.decode(ids.tolist(), skip_special_tokens=True)
            found.append(Response(ids, text, logprobs, entropy, truncated=not ended[row]))
        return found


@dataclass(frozen=True)
class _Rows:
    """The N sequences being decoded, in the order of the continuation's."""

    slot_N: Tensor
    """Row of the record."""
    t_N: Tensor
    """Index of the next token."""
    running_N: Tensor
    """False once a sequence has ended: it stays until the batch is compacted, and its further tokens are never read."""

    def __len__(self) -> int:
        return len(self.slot_N)

    def select(self, rows: Tensor) -> _Rows:
        return _Rows(*(values[rows] for values in vars(self).values()))

    def joined(self, other: _Rows) -> _Rows:
        return _Rows(
            *(torch.cat(pair) for pair in zip(vars(self).values(), vars(other).values(), strict=True))
        )

    @staticmethod
    def starting(slot_N: Tensor) -> _Rows:
        return _Rows(slot_N, torch.zeros_like(slot_N), torch.ones_like(slot_N, dtype=torch.bool))


class Decoder:
    """Decodes a stream of prompts: as sequences finish, waiting prompts take their room in the caches."""

    def __init__(
        self, policy: Policy, prompts: Sequence[EncodedPrompt], request: SampleRequest, batch_tokens: int
    ) -> None:
        self.policy, self.prompts, self.request, self.batch_tokens = policy, prompts, request, batch_tokens
        self.sampling, device = request.sampling, policy.device
        streams = [
            uniform_stream(stable_seed(*request.key, p.prompt.id, sample), self.sampling.max_tokens)
            for p in prompts
            for sample in range(request.num_samples)
        ]
        self.uniform_NT = torch.from_numpy(np.stack(streams)).to(device)
        self.banned = torch.tensor(policy.banned_ids, device=device)
        self.end_ids = torch.tensor(policy.end_ids, device=device)
        self.record = _Record.empty(len(streams), self.sampling.max_tokens, device)
        self.rows = _Rows.starting(torch.zeros(0, dtype=torch.int64, device=device))
        self.continuation: Continuation | None = None
        # Prompts of similar length start together, because they are padded to the longest of them.
        self.waiting = deque(sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i)))
        self.unfinished: Counter[int] = Counter()
        """Sequences in the caches, by the index of their prompt."""
        self.padded: dict[int, int] = {}
        """Length to which a prompt was padded."""
        self.tick = 0
        self.deadlines: set[int] = set()
        """Ticks at which a cohort reaches the longest response."""

    def run(self) -> Iterator[tuple[int, list[Response]]]:
        check_every = CPU_CHECK_EVERY if self.policy.device.type == "cpu" else GPU_CHECK_EVERY
        hidden_ND = self._refilled(None)
        while hidden_ND is not None:
            tokens_N = self._draw(hidden_ND)
            self.tick += 1
            if self.tick in self.deadlines or self.tick % check_every == 0:
                tokens_N = self._compacted(tokens_N)
                yield from self._finished()
            hidden_ND = None if self.continuation is None else self.continuation.advance(tokens_N)
            hidden_ND = self._refilled(hidden_ND)

    # Starting and dropping sequences ----------------------------------------------------------------------------------

    def _refilled(self, hidden_ND: Tensor | None) -> Tensor | None:
        """Start waiting prompts while there is room; the hidden states of all sequences."""
        while indices := self._next_cohort():
            batch = [self.prompts[i] for i in indices]
            prefilled, hidden_PD = self.policy.prefill(batch)
            if self.request.after_prefill is not None:
                self.request.after_prefill(batch, prefilled, hidden_PD)
            size, max_tokens = self.request.num_samples, self.sampling.max_tokens
            started = self.policy.continuation(prefilled, size, max_tokens)
            if self.continuation is None:
                self.continuation = started
            else:
                self.continuation.join(started)
            slots = [i * size + sample for i in indices for sample in range(size)]
            self.rows = self.rows.joined(_Rows.starting(torch.tensor(slots, device=self.policy.device)))
            self.deadlines.add(self.tick + max_tokens)
            self.unfinished.update(dict.fromkeys(indices, size))
            self.padded.update(dict.fromkeys(indices, max(len(prompt) for prompt in batch)))
            new_ND = hidden_PD.repeat_interleave(size, 0)
            hidden_ND = new_ND if hidden_ND is None else torch.cat([hidden_ND, new_ND])
        return hidden_ND

    def _next_cohort(self) -> list[int]:
        """Waiting prompts that fit; at least one where nothing is being decoded."""
        room = self.batch_tokens - self._held_tokens()
        if self.continuation is not None and room < LEAVE_SHARE * self.batch_tokens:
            return []
        chosen: list[int] = []
        while self.waiting:
            lengths = [len(self.prompts[i]) for i in (*chosen, self.waiting[0])]
            fits = cache_tokens(self.policy, lengths, self.request) <= room
            fits &= not chosen or sum(lengths) <= PREFILL_TOKENS
            if not fits and (chosen or self.continuation is not None):
                break
            chosen.append(self.waiting.popleft())
        return chosen

    def _held_tokens(self) -> int:
        copies = 1 if self.policy.family.shares_prefixes else self.request.num_samples
        prompts = sum(copies * self.padded[i] for i in self.unfinished)
        return prompts + self.unfinished.total() * self.sampling.max_tokens

    def _compacted(self, tokens_N: Tensor) -> Tensor:
        """Drop the sequences that have ended if they are many, or if a cohort has no room for more tokens."""
        staying = self.rows.running_N.nonzero().squeeze(-1)
        if self.tick not in self.deadlines and len(staying) > (1 - LEAVE_SHARE) * len(self.rows):
            return tokens_N
        left = self.rows.slot_N[~self.rows.running_N] // self.request.num_samples
        self.unfinished.subtract(Counter(left.tolist()))
        self.rows = self.rows.select(staying)
        if len(staying):
            assert self.continuation is not None
            self.continuation.keep(staying)
        else:
            self.continuation = None
        return tokens_N[staying]

    def _finished(self) -> Iterator[tuple[int, list[Response]]]:
        size = self.request.num_samples
        for index in [i for i, count in self.unfinished.items() if count == 0]:
            del self.unfinished[index]
            yield index, self.record.responses(slice(index * size, (index + 1) * size), self.policy.tokenizer)

    # One token ---------------------------------------------------------------------------------------------

    def _draw(self, hidden_ND: Tensor) -> Tensor:
        """Draw and record the next token of every sequence, a few rows of logits at a time; nothing waits for a GPU."""
        rows = self.rows
        size = max(1, HEAD_CHUNK_ELEMENTS // self.policy.head_weight_VD.shape[0])
        parts = zip(*(x.split(size) for x in (hidden_ND, rows.slot_N, rows.t_N)), strict=True)
        tokens_N = torch.cat([self._draw_rows(*part) for part in parts])
        self.record.lengths_N.index_add_(0, rows.slot_N, rows.running_N.long())
        ended_N = torch.isin(tokens_N, self.end_ids) & rows.running_N
        self.record.ended_N[rows.slot_N] = self.record.ended_N[rows.slot_N] | ended_N
        t_N = rows.t_N + 1
        running_N = rows.running_N & ~ended_N & (t_N < self.sampling.max_tokens)
        self.rows = replace(rows, t_N=t_N, running_N=running_N)
        return tokens_N

    def _draw_rows(self, hidden_ND: Tensor, slot_N: Tensor, t_N: Tensor) -> Tensor:
        logits_NV = product(hidden_ND, self.policy.head_weight_VD).float()
        allowed_NV = logits_NV.index_fill(-1, self.banned, -torch.inf)
        if self.sampling.min_tokens:
            early_NV = allowed_NV.index_fill(-1, self.end_ids, -torch.inf)
            allowed_NV = torch.where((t_N < self.sampling.min_tokens)[:, None], early_NV, allowed_NV)
        drawn_N = draw_tokens(allowed_NV, self.uniform_NT[slot_N, t_N], self.sampling)
        if self.policy.temperature != 1:
            logits_NV = logits_NV / self.policy.temperature
        logprobs_NV = logits_NV.log_softmax(-1)
        self.record.tokens_NT[slot_N, t_N] = drawn_N
        self.record.logprobs_NT[slot_N, t_N] = logprobs_NV.gather(-1, drawn_N[:, None]).squeeze(-1)
        self.record.entropy_NT[slot_N, t_N] = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
        return drawn_N
