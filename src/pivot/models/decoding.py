"""One more token for N responses to P prompts: who holds keys and values, and how they are attended to.

Responses that start together form a cohort; cohorts join while others are still being decoded. `RepeatedContinuation`
runs any model through Hugging Face's forward, with the prompts' cache repeated per response. `SharedContinuation` holds
each prompt's keys and values once: they are multiplied with the queries of all its responses together, and only the
responses' own are kept apart. Its matrix products with weights take the rows of all cohorts at once. It supports
Llama-like decoders: RMS norms, rotary positions, gated MLP.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    cohorts: list[Any]

    def advance(self, tokens_N: Tensor) -> Tensor:
        """Append one token to each response; the hidden states [N, D] after it."""
        ...

    def join(self, other: Any) -> None:
        """Decode the responses of another continuation of the same model too, behind one's own."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Continue with these responses alone; in this order within each cohort."""
        ...


class _Cohorts:
    """What both kinds of continuation do with their cohorts."""

    def __init__(self, first: Any) -> None:
        self.cohorts: list[Any] = [first]

    def join(self, other: _Cohorts) -> None:
        self.cohorts += other.cohorts

    def keep(self, rows: Tensor) -> None:
        left, first = [], 0
        for cohort in self.cohorts:
            own = rows[(rows >= first) & (rows < first + len(cohort))] - first
            first += len(cohort)
            if len(own):
                cohort.keep(own)
                left.append(cohort)
        self.cohorts = left

    @property
    def _sizes(self) -> list[int]:
        return [len(cohort) for cohort in self.cohorts]


class RepeatedContinuation(_Cohorts):
    """Hugging Face's forward on one row per response."""

    def __init__(self, family: Family, model: Any, prompts: PrefilledPrompts, num_samples: int) -> None:
        super().__init__(_RepeatedCohort(family, model, prompts, num_samples))

    def advance(self, tokens_N: Tensor) -> Tensor:
        parts = zip(self.cohorts, tokens_N.split(self._sizes), strict=True)
        return _joined([cohort.advance(tokens) for cohort, tokens in parts])


class _RepeatedCohort:
    def __init__(self, family: Family, model: Any, prompts: PrefilledPrompts, num_samples: int) -> None:
        self._family, self._model, self._cache = family, model, prompts.cache
        num_prompts = len(prompts.next_position_P)
        # `reorder_cache` moves the state of recurrent layers too, which `batch_repeat_interleave` leaves alone.
        self._cache.reorder_cache(torch.arange(num_prompts).repeat_interleave(num_samples))
        self._seen_NL = prompts.seen_PL.repeat_interleave(num_samples, 0)
        self._position_N = prompts.next_position_P.repeat_interleave(num_samples)

    def __len__(self) -> int:
        return len(self._position_N)

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
        self._cache.reorder_cache(rows)
        self._seen_NL, self._position_N = self._seen_NL[rows], self._position_N[rows]


class SharedContinuation(_Cohorts):
    """Each prompt's keys and values once, `num_samples` responses per prompt at first."""

    def __init__(
        self, family: Family, model: Any, prompts: PrefilledPrompts, num_samples: int, max_tokens: int
    ) -> None:
        self._text: Any = family.text_model(model)
        self._norms_heads = "q_norm" in dict(self._text.layers[0].self_attn.named_children())
        device = prompts.next_position_P.device
        positions_PT = prompts.next_position_P[:, None] + torch.arange(max_tokens, device=device)
        rotations = _rotations(self._text, family.text_positions(positions_PT[None]))
        super().__init__(_SharedCohort(prompts, num_samples, rotations))

    def advance(self, tokens_N: Tensor) -> Tensor:
        # [N, 1, 1, d]: the same for all heads.
        cos, sin = (_joined(parts) for parts in zip(*(c.rotation() for c in self.cohorts), strict=True))
        hidden_ND = self._text.embed_tokens(tokens_N)
        for index, layer in enumerate(self._text.layers):
            attention, normed_ND = layer.self_attn, _normed(layer.input_layernorm, hidden_ND)
            projected = self._projected(attention, normed_ND, cos, sin)
            attended_ND = self._attended(index, projected, attention.scaling)
            hidden_ND = hidden_ND + attention.o_proj(attended_ND)
            hidden_ND = hidden_ND + layer.mlp(_normed(layer.post_attention_layernorm, hidden_ND))
        for cohort in self.cohorts:
            cohort.length += 1
        return _normed(self._text.norm, hidden_ND)

    def _attended(self, layer: int, projected: Sequence[Tensor], scaling: float) -> Tensor:
        """Every cohort over its own keys and values -> [N, heads * d]"""
        parts = zip(*(x.split(self._sizes) for x in projected), strict=True)
        return _joined(
            [cohort.attend(layer, *part, scaling) for cohort, part in zip(self.cohorts, parts, strict=True)]
        )

    def _projected(
        self, attention: Any, x_ND: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query [N, key heads, R, d] and key [N, key heads, d], rotated by their position, and value.

        R query heads share a key: next to it they are one table, whose parts are views.
        """
        heads = (len(x_ND), -1, attention.head_dim)
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        query, key, value = (projection(x_ND).view(heads) for projection in projections)
        if self._norms_heads:
            query, key = _normed(attention.q_norm, query), _normed(attention.k_norm, key)
        repeats = query.shape[1] // key.shape[1]
        both = torch.cat([query.unflatten(1, (-1, repeats)), key[:, :, None]], 2)
        rotated = torch.addcmul(both * cos, both.roll(attention.head_dim // 2, -1), sin)
        return rotated[:, :, :-1], rotated[:, :, -1], value


class _SharedCohort:
    """Responses of equal length, their keys and values, and those of their prompts."""

    def __init__(self, prompts: PrefilledPrompts, num_samples: int, rotations: tuple[Tensor, Tensor]) -> None:
        num_prompts, device = len(prompts.next_position_P), prompts.next_position_P.device
        self._cos_PTd, self._sin_PTd = rotations
        self._num_keys = prompts.cache.layers[0].keys.shape[1]
        prompt_N = torch.arange(num_prompts, device=device).repeat_interleave(num_samples)
        self._places = _Places.of(prompt_N, num_prompts, self._num_keys, num_samples)
        self.layers = [
            _LayerMemory(cached.keys, cached.values, len(self), self._cos_PTd.shape[1])
            for cached in prompts.cache.layers
        ]
        self._bias_PK1L = _bias(prompts.seen_PL, self._num_keys)
        self.length = 0

    def __len__(self) -> int:
        return len(self._places.prompt_N)

    def rotation(self) -> tuple[Tensor, Tensor]:
        """cos and sin of the next token's position, each [N, 1, 1, d]."""
        prompt_N, t = self._places.prompt_N, self.length
        return self._cos_PTd[prompt_N, t, None, None], self._sin_PTd[prompt_N, t, None, None]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        memory = self.layers[layer]
        memory.append(key, value, self.length)
        return memory.attend(query, self.length + 1, self._places, self._bias_PK1L, scaling)

    def keep(self, rows: Tensor) -> None:
        """Also drops prompts that have no response left."""
        left_P, prompt_N = self._places.prompt_N[rows].unique(return_inverse=True)
        self._places = _Places.of(prompt_N, len(left_P), self._num_keys)
        self._cos_PTd, self._sin_PTd = self._cos_PTd[left_P], self._sin_PTd[left_P]
        self._bias_PK1L = self._bias_PK1L[left_P]
        for memory in self.layers:
            memory.keep(rows, left_P)


@dataclass(frozen=True)
class _Places:
    """N responses in a table of P prompts, as wide as the prompt with the most responses needs; for each key head."""

    prompt_N: Tensor
    width: int
    row_S: Tensor
    """For the slots [P, key heads, width], flat: which of the rows [N, key heads] is there; any where it is vacant."""
    slot_M: Tensor
    """For the rows [N, key heads], flat: its slot."""

    @staticmethod
    def of(prompt_N: Tensor, num_prompts: int, num_keys: int, width: int | None = None) -> _Places:
        """`width`: where it is known it need not be read from the device."""
        counts_P = prompt_N.new_zeros(num_prompts).index_add_(0, prompt_N, torch.ones_like(prompt_N))
        width = int(counts_P.max()) if width is None else width
        order_N = prompt_N.argsort(stable=True)
        first_P = counts_P.cumsum(0) - counts_P
        numbers_N = torch.arange(len(prompt_N), device=prompt_N.device)
        rank_N = torch.empty_like(prompt_N)
        rank_N[order_N] = numbers_N - first_P[prompt_N[order_N]]
        head_K = torch.arange(num_keys, device=prompt_N.device)
        slot_M = ((prompt_N[:, None] * num_keys + head_K) * width + rank_N[:, None]).flatten()
        row_S = slot_M.new_zeros(num_prompts * num_keys * width)
        row_S[slot_M] = torch.arange(len(slot_M), device=slot_M.device)
        return _Places(prompt_N, width, row_S, slot_M)

    def by_prompt(self, x_MRd: Tensor) -> Tensor:
        """[N * key heads, R, d] -> [P * key heads, width * R, d]: all that is multiplied with one prompt's keys."""
        table = x_MRd.index_select(0, self.row_S)
        return table.view(-1, self.width * x_MRd.shape[1], x_MRd.shape[2])

    def by_response(self, x: Tensor) -> Tensor:
        """[P * key heads, width * R, d] -> [N * key heads, R, d]"""
        return x.unflatten(1, (self.width, -1)).flatten(0, 1).index_select(0, self.slot_M)


class _LayerMemory:
    """Keys and values of one layer: the prompts', and the responses' in buffers that grow."""

    def __init__(
        self, prompt_keys: Tensor, prompt_values: Tensor, num_responses: int, max_tokens: int
    ) -> None:
        self.prompt_keys, self.prompt_values = prompt_keys, prompt_values
        _, num_keys, _, size = prompt_keys.shape
        self._most = max_tokens
        shape = (num_responses, num_keys, min(ROOM, max_tokens), size)
        self.keys, self.values = prompt_keys.new_empty(shape), prompt_keys.new_empty(shape)
        self._no_bias = prompt_keys.new_zeros(1, 1, 1, dtype=torch.float32)

    def append(self, key_NKd: Tensor, value_NKd: Tensor, t: int) -> None:
        if t == self.keys.shape[2]:
            more = min(t // 2, self._most - t)
            self.keys, self.values = (F.pad(x, (0, 0, 0, more)) for x in (self.keys, self.values))
        self.keys[:, :, t], self.values[:, :, t] = key_NKd, value_NKd

    def attend(
        self, query_NKRd: Tensor, length: int, places: _Places, bias_PK1L: Tensor, scaling: float
    ) -> Tensor:
        """One query of each response over its prompt and itself -> [N, heads * d]"""
        query = query_NKRd.flatten(0, 1)
        keys, values = self.keys[:, :, :length].flatten(0, 1), self.values[:, :, :length].flatten(0, 1)
        before_k, before_v = self.prompt_keys.flatten(0, 1), self.prompt_values.flatten(0, 1)
        before = _scores(places.by_prompt(query), before_k, bias_PK1L.flatten(0, 1), scaling)
        so_far = _scores(query, keys, self._no_bias, scaling)
        scores = torch.cat([places.by_response(before), so_far], -1)
        weights = scores.softmax(-1).to(values.dtype)
        split = before_k.shape[1]
        of_prompt = torch.bmm(places.by_prompt(weights[..., :split]), before_v)
        attended = places.by_response(of_prompt).baddbmm_(weights[..., split:], values)
        return attended.view(len(query_NKRd), -1)

    def keep(self, rows: Tensor, left_P: Tensor) -> None:
        self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)
        if len(left_P) < len(self.prompt_keys):
            self.prompt_keys = self.prompt_keys.index_select(0, left_P)
            self.prompt_values = self.prompt_values.index_select(0, left_P)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _scores(query_NRd: Tensor, key_NLd: Tensor, bias_N1L: Tensor, scaling: float) -> Tensor:
    """float32 whatever the model's dtype: a score rounded to bfloat16 changes its weight by several percent."""
    if query_NRd.is_cuda and query_NRd.dtype != torch.float32:
        scores = torch.bmm(query_NRd, key_NLd.transpose(1, 2), out_dtype=torch.float32)
        return torch.add(bias_N1L, scores, alpha=scaling)
    return torch.baddbmm(bias_N1L, query_NRd.float(), key_NLd.float().transpose(1, 2), alpha=scaling)


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


def _bias(seen_PL: Tensor, num_keys: int) -> Tensor:
    """float32 [P, key heads, 1, L]: 0 where a prompt's token can be seen, minus infinity where it is padding."""
    bias_PL = torch.zeros(seen_PL.shape, device=seen_PL.device).masked_fill(~seen_PL, -torch.inf)
    return bias_PL[:, None, None].repeat(1, num_keys, 1, 1)
