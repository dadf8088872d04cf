"""Log-probability, entropy and KL of tokens straight from hidden states, one chunk of tokens at a time.

Whole logits of 4,096 tokens over 151,936 words take 2.3 GiB per copy in float32, and autograd keeps several.
Here neither forward nor backward holds more than a few [chunk, V] buffers; backward computes logits again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pivot.method.head import ChunkedHead, HeadPlan
from pivot.method.shapes import check_floating, check_index

CHUNK_BYTES = 256 * 2**20
"""Size of a [chunk, V] buffer; forward and backward hold two or three of them."""


class TokenStatistics(NamedTuple):
    """Statistics of each token, all [N] in float32 or better."""

    logprobs_N: Tensor
    """log p(y_t)."""
    entropy_N: Tensor | None
    """H_t over the whole vocabulary; None if not asked for."""
    corrupted_logprobs_N: Tensor | None = None
    """log q(y_t) under the corrupted image; no gradient."""
    divergence_N: Tensor | None = None
    """KL(p||q) over the whole vocabulary; no gradient."""


def token_statistics(
    hidden_ND: Tensor,
    head_weight_VD: Tensor,
    targets_N: Tensor,
    *,
    corrupted_hidden_ND: Tensor | None = None,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
    with_entropy: bool = True,
) -> TokenStatistics:
    """log softmax(W h / temperature)[y], the entropy and, with a second hidden state, log q and KL(p||q).

    Gradients flow to `hidden_ND` and `head_weight_VD` through log-probability and entropy. float32 inputs
    give float32 accuracy, also under autocast; the logits of bfloat16 inputs are rounded to bfloat16 by their
    matrix product and float32 from there on.

    Args:
        hidden_ND: [N, D], the last hidden states under the clean image.
        head_weight_VD: [V, D], of the same dtype.
        targets_N: [N], int32 or int64, the tokens y.
        corrupted_hidden_ND: [N, D], the same tokens' hidden states under the corrupted image; no gradient.
        temperature: divides the logits; above 0.
        chunk_tokens: tokens at a time; by default as many as CHUNK_BYTES allows, in equal chunks.
        with_entropy: False skips the entropy.
    """
    check_floating("hidden_ND", hidden_ND, ("N", "D"))
    num_tokens, size = hidden_ND.shape
    check_floating("head_weight_VD", head_weight_VD, ("V", size))
    check_index("targets_N", targets_N, (num_tokens,))
    if corrupted_hidden_ND is not None:
        check_floating("corrupted_hidden_ND", corrupted_hidden_ND, hidden_ND.shape)
        corrupted_hidden_ND = corrupted_hidden_ND.detach()
    for name, value in (("head_weight_VD", head_weight_VD), ("corrupted_hidden_ND", corrupted_hidden_ND)):
        if value is not None and value.dtype != hidden_ND.dtype:
            raise ValueError(f"{name} must have hidden_ND's dtype {hidden_ND.dtype}, got {value.dtype}")
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature!r}")
    if chunk_tokens is None:
        chunk_tokens = _equal_chunks(num_tokens, head_weight_VD)
    elif chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens!r}")
    plan = HeadPlan(chunk_tokens, 1.0 / temperature, with_entropy)
    with torch.autocast(hidden_ND.device.type, enabled=False):
        columns = ChunkedHead.apply(hidden_ND, head_weight_VD, targets_N.long(), corrupted_hidden_ND, plan)
    return TokenStatistics(*columns)


def _equal_chunks(num_tokens: int, head_weight_VD: Tensor) -> int:
    """The largest chunk that fits CHUNK_BYTES, evened out so that the last one is about as large."""
    itemsize = max(head_weight_VD.element_size(), torch.float32.itemsize)
    limit = max(1, CHUNK_BYTES // max(1, head_weight_VD.shape[0] * itemsize))
    num_chunks = max(1, math.ceil(num_tokens / limit))
    return max(1, math.ceil(num_tokens / num_chunks))
