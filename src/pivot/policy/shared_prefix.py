"""Attention for a packed row that holds each prompt once, whatever the number of its responses.

Everything but attention acts on tokens one by one, so it does not mind how they are ordered. Attention is computed
here in two calls: every prompt over itself, and every response over [its prompt | itself]. Siblings never meet, so no
[L, L] mask over the whole row is made and no score is computed only to be thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "shared_prefix"


@dataclass(frozen=True)
class SharedPrefix:
    """Where the tokens of a packed row stand: P prompts of at most L tokens, B responses of at most T.

    Padding points at token 0; what is computed for it is never read.
    """

    prompt_PL: Tensor
    """Index in the row of each prompt token."""
    response_BT: Tensor
    """Index in the row of each response token; siblings that begin alike name the same tokens."""
    prompt_B: Tensor
    """The prompt of each response."""
    result_M: Tensor
    """Where the result of each token of the row stands in [prompts, flat | responses, flat]."""
    visible: Tensor
    """bool [B or 1, 1, T, L + T]: what a response token sees of [its prompt | its response]."""

    def to(self, device: torch.device) -> SharedPrefix:
        return SharedPrefix(*(value.to(device) for value in vars(self).values()))


def visible_keys(prompt_lengths_B: Sequence[int], num_tokens: int) -> Tensor:
    """The prompt's own tokens and, of the response, those up to the query; one mask for all where prompts are alike."""
    lengths = torch.tensor(prompt_lengths_B)
    longest = int(lengths.max())
    if bool((lengths == longest).all()):
        lengths = lengths[:1]
    in_prompt = torch.arange(longest) < lengths[:, None]
    in_prompt = in_prompt[:, None, None].expand(-1, 1, num_tokens, -1)
    so_far = torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril().expand(len(lengths), 1, -1, -1)
    return torch.cat([in_prompt, so_far], dim=-1)


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
    """Hugging Face's attention interface; without a `shared_prefix` it is sdpa as ever.

    query [1, heads, M, d], key and value [1, key heads, M, d] -> [1, M, heads, d].
    """
    if shared_prefix is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    layout = shared_prefix
    repeats = query.shape[1] // key.shape[1]
    q_MHd, k_MKd, v_MKd = (x[0].transpose(0, 1) for x in (query, key, value))
    num_prompts, num_responses = len(layout.prompt_PL), len(layout.response_BT)

    def heads_first(x: Tensor, times: int = 1) -> Tensor:
        x = x.transpose(1, 2)
        return x.repeat_interleave(times, 1) if times > 1 else x

    k_P, v_P = (heads_first(x[layout.prompt_PL], repeats) for x in (k_MKd, v_MKd))
    prompts = F.scaled_dot_product_attention(
        heads_first(q_MHd[layout.prompt_PL]), k_P, v_P, is_causal=True, scale=scaling
    )
    keys, values = (
        torch.cat([before[layout.prompt_B], heads_first(x[layout.response_BT], repeats)], dim=2)
        for before, x in ((k_P, k_MKd), (v_P, v_MKd))
    )
    responses = F.scaled_dot_product_attention(
        heads_first(q_MHd[layout.response_BT]), keys, values, attn_mask=layout.visible, scale=scaling
    )
    flat = [x.transpose(1, 2).reshape(-1, *q_MHd.shape[1:]) for x in (prompts, responses)]
    assert len(flat[0]) == num_prompts * layout.prompt_PL.shape[1]
    assert len(flat[1]) == num_responses * layout.response_BT.shape[1]
    return torch.cat(flat)[layout.result_M][None], None


def share_prefixes(model: Any) -> None:
    """Let the language model attend over packed rows where it uses sdpa; other kernels stay as they are."""
    if model.model.language_model.config._attn_implementation == "sdpa":
        model.model.language_model.config._attn_implementation = NAME


def shares_prefixes(model: Any) -> bool:
    """Whether the language model understands `shared_prefix`; others would ignore it and mix siblings up."""
    return model.model.language_model.config._attn_implementation == NAME


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
