"""One more token for N responses to P prompts: who holds keys and values, and how they are attended to.

`RepeatedContinuation` runs any model through Hugging Face's forward, with the prompts' cache repeated per response.
`SharedContinuation` holds each prompt's keys and values once. The prompt's keys are multiplied with the queries of all
its responses together; only the responses' own are kept apart. It also avoids Hugging Face's overhead per token, which
exceeds the computation for small models. It supports Llama-like decoders: RMS norms, rotary positions, gated MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from pivot.models.family import Family

ROOM = 64
"""Tokens that the responses' caches hold at first; full caches grow by half."""


@dataclass
class PrefilledPrompts:
    """P prompts after their forward pass, left-padded to L tokens."""

    cache: Any
    """Hugging Face's: keys and values [P, key heads, L, d] of every layer."""
    seen_PL: Tensor
    """bool, False where padded."""
    next_position_P: Tensor
    """Position of the first response token."""


class Continuation(Protocol):
    """Unfinished responses."""

    def advance(self, tokens_N: Tensor) -> Tensor:
        """Append one token to each response; the hidden states [N, D] after it."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Continue with these responses alone, in this order."""
        ...


class RepeatedContinuation:
    """Hugging Face's forward on one row per response."""

    def __init__(self, family: Family, model: Any, prompts: PrefilledPrompts, num_samples: int) -> None:
        self._family, self._model, self._cache = family, model, prompts.cache
        self._cache.batch_repeat_interleave(num_samples)
        self._seen_NL = prompts.seen_PL.repeat_interleave(num_samples, 0)
        self._position_N = prompts.next_position_P.repeat_interleave(num_samples)

    def advance(self, tokens_N: Tensor) -> Tensor:
        self._seen_NL = F.pad(self._seen_NL, (0, 1), value=True)
        inputs = self._family.embed(self._model, tokens_N[:, None], [])
        positions_AN1 = self._position_N[None, :, None]
        hidden_N1D = self._family.hidden(
            self._model, inputs, positions_AN1, self._seen_NL.long(), self._cache
        )
        self._position_N = self._position_N + 1
        return hidden_N1D[:, -1]

    def keep(self, rows: Tensor) -> None:
        self._cache.batch_select_indices(rows)
        self._seen_NL, self._position_N = self._seen_NL[rows], self._position_N[rows]


class SharedContinuation:
    """Each prompt's keys and values once, `num_samples` responses per prompt at first."""

    def __init__(
        self, family: Family, model: Any, prompts: PrefilledPrompts, num_samples: int, max_tokens: int
    ) -> None:
        self._text: Any = family.text_model(model)
        self._norms_heads = "q_norm" in dict(self._text.layers[0].self_attn.named_children())
        num_prompts, device = len(prompts.next_position_P), prompts.next_position_P.device
        positions_PT = prompts.next_position_P[:, None] + torch.arange(max_tokens, device=device)
        self._cos_PTd, self._sin_PTd = _rotations(self._text, family.text_positions(positions_PT[None]))
        self._places = _Places(
            prompt_N=torch.arange(num_prompts, device=device).repeat_interleave(num_samples),
            num_prompts=num_prompts,
            width=num_samples,
        )
        size = num_prompts * num_samples
        self._layers = [_LayerMemory(cached.keys, cached.values, size) for cached in prompts.cache.layers]
        self._bias_PK1L = _bias(prompts.seen_PL, self._layers[0].prompt_keys)
        self._length = 0

    def advance(self, tokens_N: Tensor) -> Tensor:
        prompt_N, t = self._places.prompt_N, self._length
        # [N, 1, d]: the same for all heads.
        cos, sin = self._cos_PTd[prompt_N, t, None], self._sin_PTd[prompt_N, t, None]
        hidden_ND = self._text.embed_tokens(tokens_N)
        for layer, memory in zip(self._text.layers, self._layers, strict=True):
            attention, normed_ND = layer.self_attn, _normed(layer.input_layernorm, hidden_ND)
            query, key, value = self._projected(attention, normed_ND, cos, sin)
            memory.append(key, value, t)
            attended_ND = memory.attend(query, t + 1, self._places, self._bias_PK1L, attention.scaling)
            hidden_ND = hidden_ND + attention.o_proj(attended_ND)
            hidden_ND = hidden_ND + layer.mlp(_normed(layer.post_attention_layernorm, hidden_ND))
        self._length = t + 1
        return _normed(self._text.norm, hidden_ND)

    def keep(self, rows: Tensor) -> None:
        """Also drops prompts that have no response left."""
        left_P, prompt_N = self._places.prompt_N[rows].unique(return_inverse=True)
        self._places = _Places.of(prompt_N, len(left_P))
        self._cos_PTd, self._sin_PTd = self._cos_PTd[left_P], self._sin_PTd[left_P]
        self._bias_PK1L = self._bias_PK1L[left_P]
        for memory in self._layers:
            memory.keep(rows, left_P)

    def _projected(
        self, attention: Any, x_ND: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query [N, heads, d] and key [N, key heads, d], rotated by their position, and value."""
        heads = (len(x_ND), -1, attention.head_dim)
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        query, key, value = (projection(x_ND).view(heads) for projection in projections)
        if self._norms_heads:
            query, key = _normed(attention.q_norm, query), _normed(attention.k_norm, key)
        both = torch.cat([query, key], 1)
        rotated = torch.addcmul(both * cos, both.roll(attention.head_dim // 2, -1), sin)
        query, key = rotated.split([query.shape[1], key.shape[1]], 1)
        return query, key, value


@dataclass(frozen=True)
class _Places:
    """Slots of N responses in a [prompt, width] table, as wide as the prompt with the most responses needs."""

    prompt_N: Tensor
    num_prompts: int
    width: int
    slot_N: Tensor | None = None
    """Place in the flat table; None: the table is full and in order."""

    @staticmethod
    def of(prompt_N: Tensor, num_prompts: int) -> _Places:
        counts_P = prompt_N.bincount(minlength=num_prompts)
        width = int(counts_P.max())
        if bool((counts_P == width).all()) and bool((prompt_N.diff() >= 0).all()):
            return _Places(prompt_N, num_prompts, width)
        order_N = prompt_N.argsort(stable=True)
        first_P = counts_P.cumsum(0) - counts_P
        rank_N = torch.empty_like(prompt_N)
        rank_N[order_N] = torch.arange(len(prompt_N), device=prompt_N.device) - first_P[prompt_N[order_N]]
        return _Places(prompt_N, num_prompts, width, prompt_N * width + rank_N)

    def by_prompt(self, x_NKRd: Tensor) -> Tensor:
        """[P * key heads, width * R, d]: all rows that are multiplied with one prompt's keys."""
        num_keys, repeats, size = x_NKRd.shape[1:]
        if self.slot_N is not None:
            table = x_NKRd.new_zeros(self.num_prompts * self.width, num_keys, repeats, size)
            x_NKRd = table.index_copy_(0, self.slot_N, x_NKRd)
        table = x_NKRd.reshape(self.num_prompts, self.width, num_keys, repeats, size)
        return table.transpose(1, 2).reshape(-1, self.width * repeats, size)

    def by_response(self, x: Tensor, num_keys: int) -> Tensor:
        """[P * key heads, width * R, d] -> [N * key heads, R, d]"""
        size = x.shape[-1]
        table = x.view(self.num_prompts, num_keys, self.width, -1, size).transpose(1, 2)
        table = table.reshape(self.num_prompts * self.width, num_keys, -1, size)
        chosen = table if self.slot_N is None else table.index_select(0, self.slot_N)
        return chosen.reshape(-1, chosen.shape[2], size)


class _LayerMemory:
    """Keys and values of one layer: the prompts', and the responses' in buffers that grow."""

    def __init__(self, prompt_keys: Tensor, prompt_values: Tensor, num_responses: int) -> None:
        self.prompt_keys, self.prompt_values = prompt_keys, prompt_values
        _, self.num_keys, _, size = prompt_keys.shape
        shape = (num_responses, self.num_keys, ROOM, size)
        self.keys, self.values = prompt_keys.new_empty(shape), prompt_keys.new_empty(shape)
        self._no_bias = prompt_keys.new_zeros(1, 1, 1)

    def append(self, key_NKd: Tensor, value_NKd: Tensor, t: int) -> None:
        if t == self.keys.shape[2]:
            self.keys, self.values = (F.pad(x, (0, 0, 0, t // 2)) for x in (self.keys, self.values))
        self.keys[:, :, t], self.values[:, :, t] = key_NKd, value_NKd

    def attend(
        self, query_NHd: Tensor, length: int, places: _Places, bias_PK1L: Tensor, scaling: float
    ) -> Tensor:
        """One query of each response over its prompt and itself -> [N, heads * d]"""
        num_rows, _, size = query_NHd.shape
        # Query heads that share keys are adjacent: [N, key heads, R, d].
        query = query_NHd.view(num_rows, self.num_keys, -1, size)
        keys, values = self.keys[:, :, :length].flatten(0, 1), self.values[:, :, :length].flatten(0, 1)
        before_k, before_v = self.prompt_keys.flatten(0, 1), self.prompt_values.flatten(0, 1)
        asked, bias = places.by_prompt(query), bias_PK1L.flatten(0, 1)
        before = torch.baddbmm(bias, asked, before_k.transpose(1, 2), alpha=scaling)
        so_far = torch.baddbmm(
            self._no_bias, query.flatten(0, 1), keys.transpose(1, 2), beta=0, alpha=scaling
        )
        scores = torch.cat([places.by_response(before, self.num_keys), so_far], -1)
        weights = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
        split = before_k.shape[1]
        own = torch.bmm(weights[..., split:], values)
        of_prompt = places.by_prompt(weights[..., :split].unflatten(0, (num_rows, self.num_keys)))
        shared = places.by_response(torch.bmm(of_prompt, before_v), self.num_keys)
        return (own + shared).view(num_rows, -1)

    def keep(self, rows: Tensor, left_P: Tensor) -> None:
        self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)
        if len(left_P) < len(self.prompt_keys):
            self.prompt_keys = self.prompt_keys.index_select(0, left_P)
            self.prompt_values = self.prompt_values.index_select(0, left_P)


def _normed(norm: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _rotations(text: Any, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [P, T, d] of text positions; sin has the sign of the half that `roll` moves to its place."""
    like = text.embed_tokens.weight[:0]
    cos, sin = text.rotary_emb(like, positions)
    if cos.ndim == 4:  # transformers before 5.10 keep position axes apart; for text they are equal
        cos, sin = cos[0], sin[0]
    half = sin.shape[-1] // 2
    return cos, torch.cat([-sin[..., :half], sin[..., half:]], -1)


def _bias(seen_PL: Tensor, like_PKLd: Tensor) -> Tensor:
    """[P, key heads, 1, L]: 0 where a prompt's token can be seen, minus infinity where it is padding."""
    bias_PL = torch.zeros_like(seen_PL, dtype=like_PKLd.dtype).masked_fill(~seen_PL, -torch.inf)
    return bias_PL[:, None, None].repeat(1, like_PKLd.shape[1], 1, 1)
