"""Attention for a packed row that holds each prompt once, whatever the number of its responses.

All layers except attention act on single tokens, so the order of tokens does not matter to them. On a CPU attention is
computed here in a few calls: every prompt over itself, and every response over [its prompt | itself]. Siblings never
see each other, so there is no [L, L] mask over the whole row and no score that is masked out afterwards. On a GPU with
Triton one FlexAttention kernel does the same: it skips blocks that nobody sees, and no mask exists in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.utils.rnn import pad_sequence
from torch.utils._triton import has_triton
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from pivot.errors import UserError

NAME = "shared_prefix"
SEGMENT_GROWTH = 1.25
"""Responses that attend in one call differ in length by this factor at most; padding wastes compute."""


@dataclass(frozen=True)
class Segment:
    """Responses of similar length, B of at most T tokens. Padding points at token 0 and is never read."""

    response_BT: Tensor
    """Index in the row of each response token; siblings that begin alike name the same tokens."""
    prompt_B: Tensor
    """The prompt of each response."""
    prompt_lengths_B: Tensor
    """Their lengths; one number if all are equal."""
    longest_prompt: int
    """L."""

    @cached_property
    def visible(self) -> Tensor:
        """bool [B or 1, 1, T, L + T]: what a response token sees of [its prompt | its response]."""
        num_tokens, lengths = self.response_BT.shape[1], self.prompt_lengths_B
        places = torch.arange(self.longest_prompt, device=lengths.device)
        in_prompt = (places < lengths[:, None])[:, None, None].expand(-1, 1, num_tokens, -1)
        so_far = _causal(num_tokens, lengths.device).expand(len(lengths), 1, -1, -1)
        return torch.cat([in_prompt, so_far], dim=-1)

    def to(self, device: torch.device) -> Segment:
        return Segment(
            self.response_BT.to(device),
            self.prompt_B.to(device),
            self.prompt_lengths_B.to(device),
            self.longest_prompt,
        )


class SharedPrefix:
    """The tokens of a packed row: P prompts of at most L tokens, and their responses.

    Not a dataclass: FSDP2 copies those at every layer, and masks would be built as often.
    """

    def __init__(
        self, prompt_PL: Tensor, segments: tuple[Segment, ...], result_M: Tensor, seen_from_M3: Tensor
    ) -> None:
        self.prompt_PL = prompt_PL
        """Index in the row of each prompt token; 0 for padding."""
        self.segments = segments
        self.result_M = result_M
        """Index of each token's result in [prompts | segment | segment ...], all flat."""
        self.seen_from_M3 = seen_from_M3
        """Token k is seen by tokens k <= q < seen_from[k, 0] and seen_from[k, 1] <= q < seen_from[k, 2]."""
        self.reached: set[int] = set()
        """`id()` of the attention modules that have used it in this forward pass."""

    def check_reached(self, num_layers: int) -> None:
        """After a forward pass: no attention may have ignored this argument."""
        ignored = num_layers - len(self.reached)
        self.reached.clear()
        if ignored:
            raise UserError(
                f"{ignored} of {num_layers} attention layers ignored the shared prefix, so that "
                "sibling responses would see each other: something has replaced the attention's forward, such as "
                "padding removal, fused kernels or sequence parallelism; turn it off"
            )

    @cached_property
    def causal(self) -> Tensor:
        """bool [1, 1, L, L]: what a prompt token sees of its prompt."""
        return _causal(self.prompt_PL.shape[1], self.prompt_PL.device)

    @cached_property
    def block_mask(self) -> BlockMask:
        """For FlexAttention: which blocks of tokens see which others."""
        until_M, first_M, last_M = self.seen_from_M3.unbind(1)

        def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return ((k <= q) & (q < until_M[k])) | ((first_M[k] <= q) & (q < last_M[k]))

        size = len(until_M)
        return create_block_mask(sees, None, None, size, size, device=str(until_M.device))

    def to(self, device: torch.device) -> SharedPrefix:
        segments = tuple(segment.to(device) for segment in self.segments)
        return SharedPrefix(
            self.prompt_PL.to(device), segments, self.result_M.to(device), self.seen_from_M3.to(device)
        )


def share(prompts: Sequence[Tensor], responses: Sequence[Tensor], prompt_of: Sequence[int]) -> SharedPrefix:
    """From the indices in the row of each prompt's and each response's tokens.

    Tokens that several responses share are computed with each and read from the last.
    """
    prompt_PL = pad_sequence(list(prompts), batch_first=True)
    num_tokens = 1 + max(int(places.max()) for places in (*prompts, *responses))
    result_M = torch.zeros(num_tokens, dtype=torch.int64)
    for row, places in enumerate(prompts):
        result_M[places] = row * prompt_PL.shape[1] + torch.arange(len(places))
    segments, first = [], prompt_PL.numel()
    for members in _alike([len(y) for y in responses]):
        response_BT = pad_sequence([responses[i] for i in members], batch_first=True)
        width = response_BT.shape[1]
        for row, i in enumerate(members):
            result_M[responses[i]] = first + row * width + torch.arange(len(responses[i]))
        first += response_BT.numel()
        prompt_B = torch.tensor([prompt_of[i] for i in members])
        lengths_B = torch.tensor([len(prompts[prompt_of[i]]) for i in members])
        if bool((lengths_B == lengths_B[0]).all()):
            lengths_B = lengths_B[:1]
        segments.append(Segment(response_BT, prompt_B, lengths_B, prompt_PL.shape[1]))
    return SharedPrefix(prompt_PL, tuple(segments), result_M, _seen_from(prompts, responses, prompt_of))


def _seen_from(prompts: Sequence[Tensor], responses: Sequence[Tensor], prompt_of: Sequence[int]) -> Tensor:
    """[M, 3]: a prompt is seen by itself and by its tree, a response token by all tokens that continue it.

    A tree lies depth first, so that the tokens that continue one of its tokens follow it without a gap.
    """
    num_tokens = 1 + max(int(places.max()) for places in (*prompts, *responses))
    seen_from_M3 = torch.zeros(num_tokens, 3, dtype=torch.int64)
    for places in (*prompts, *responses):
        seen_from_M3[places, 0] = seen_from_M3[places, 0].clamp(min=int(places[-1]) + 1)
    for number, places in enumerate(prompts):
        own = [y for y, prompt in zip(responses, prompt_of, strict=True) if prompt == number]
        if own:
            seen_from_M3[places, 1] = min(int(y[0]) for y in own)
            seen_from_M3[places, 2] = max(int(y[-1]) for y in own) + 1
    return seen_from_M3


def _alike(lengths: Sequence[int]) -> list[list[int]]:
    """Indices by length, in runs of similar length."""
    runs: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if not runs or lengths[index] > SEGMENT_GROWTH * lengths[runs[-1][0]]:
            runs.append([])
        runs[-1].append(index)
    return runs


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    shared_prefix: SharedPrefix | None = None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Hugging Face's attention interface; without a `shared_prefix` it is plain sdpa.

    query [1, heads, M, d], key and value [1, key heads, M, d] -> [1, M, heads, d].
    """
    if shared_prefix is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    shared_prefix.reached.add(id(module))
    if has_flex_kernel(query.device):
        kernel = _flex_kernel(query.device.type)
        mask = shared_prefix.block_mask
        return kernel(query, key, value, block_mask=mask, scale=scaling, enable_gqa=True).transpose(
            1, 2
        ), None
    q_MHd, k_MKd, v_MKd = (x[0].transpose(0, 1) for x in (query, key, value))
    num_heads, num_keys, size = query.shape[1], key.shape[1], query.shape[3]
    repeats = num_heads // num_keys

    def keys_of(x_MKd: Tensor, places: Tensor) -> Tensor:
        """[rows, key heads, tokens, d]"""
        return _take(x_MKd, places).transpose(1, 2)

    def queries_of(places: Tensor) -> Tensor:
        """[rows, key heads, repeats * tokens, d]: query heads that share keys are adjacent."""
        q = _take(q_MHd, places).view(*places.shape, num_keys, repeats, size)
        return q.permute(0, 2, 3, 1, 4).reshape(len(places), num_keys, -1, size)

    def attended(places: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
        """[rows * tokens, heads, d]"""
        out = F.scaled_dot_product_attention(
            queries_of(places), keys, values, attn_mask=visible.repeat(1, 1, repeats, 1), scale=scaling
        )
        out = out.view(len(places), num_keys, repeats, -1, size).permute(0, 3, 1, 2, 4)
        return out.reshape(-1, num_heads, size)

    places_PL = shared_prefix.prompt_PL
    before_k, before_v = keys_of(k_MKd, places_PL), keys_of(v_MKd, places_PL)
    results = [attended(places_PL, before_k, before_v, shared_prefix.causal)]
    for segment in shared_prefix.segments:
        places_BT, prompt_B = segment.response_BT, segment.prompt_B
        keys = torch.cat([before_k.index_select(0, prompt_B), keys_of(k_MKd, places_BT)], dim=2)
        values = torch.cat([before_v.index_select(0, prompt_B), keys_of(v_MKd, places_BT)], dim=2)
        results.append(attended(places_BT, keys, values, segment.visible))
    return torch.cat(results).index_select(0, shared_prefix.result_M)[None], None


def has_flex_kernel(device: torch.device) -> bool:
    """FlexAttention needs Triton for its kernels; without them it would write down all scores."""
    return device.type == "cuda" and has_triton()


@cache
def _flex_kernel(device: str) -> Callable[..., Any]:
    # Rows differ in length: with dynamic shapes one kernel serves them all.
    return torch.compile(flex_attention, dynamic=True) if device == "cuda" else flex_attention


def _causal(size: int, device: torch.device) -> Tensor:
    return torch.ones(size, size, dtype=torch.bool, device=device).tril()[None, None]


def _take(x_M: Tensor, places: Tensor) -> Tensor:
    """x[places], with a much faster backward than plain indexing."""
    return x_M.index_select(0, places.flatten()).view(*places.shape, *x_M.shape[1:])


def share_prefixes(text_model: Any) -> None:
    """Let a language model that uses sdpa attend over packed rows, in place; other kernels are left alone."""
    if text_model.config._attn_implementation == "sdpa":
        text_model.config._attn_implementation = NAME


def shares_prefixes(text_model: Any) -> bool:
    """Whether the language model takes `shared_prefix`; others would ignore it and mix siblings."""
    return text_model.config._attn_implementation == NAME


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
