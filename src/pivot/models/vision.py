"""The vision tower, once an image: batched attention over images of equal size, features to reuse.

Hugging Face's Qwen vision attention loops over images (and windows) one by one unless flash attention is
there. Segments of equal length are independent and can go through one kernel call; the result is the same.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VLVisionAttention,
    apply_rotary_pos_emb_vision,
)
from transformers.models.qwen2_vl.modeling_qwen2_vl import VisionAttention as Qwen2VLVisionAttention
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionAttention

from pivot.models.encoding import EncodedImage

SEGMENTED_ATTENTION = (Qwen2VLVisionAttention, Qwen2_5_VLVisionAttention, Qwen3VLVisionAttention)


@dataclass(frozen=True)
class ImageFeatures:
    """What the language model receives for one image."""

    tokens_ND: Tensor
    deepstack_ND: tuple[Tensor, ...] = ()
    """Features that Qwen3-VL adds to its first layers; empty for other families."""

    @property
    def num_bytes(self) -> int:
        return self.tokens_ND.nbytes + sum(layer.nbytes for layer in self.deepstack_ND)


def batch_vision_attention(model: PreTrainedModel) -> None:
    """Let segments of equal length share one attention call, in place. Weights and results stay the same."""
    if "flash" in (model.config.vision_config._attn_implementation or ""):
        return
    for module in model.modules():
        if isinstance(module, SEGMENTED_ATTENTION):
            module.forward = types.MethodType(_segmented_attention, module)


def _segmented_attention(
    self: Any,
    hidden_states: Tensor,
    cu_seqlens: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    **_: object,
) -> Tensor:
    num_patches = hidden_states.shape[0]
    query, key, value = self.qkv(hidden_states).view(num_patches, 3, self.num_heads, -1).unbind(1)
    query, key = apply_rotary_pos_emb_vision(query, key, *position_embeddings)
    attended = torch.empty_like(query)
    lengths = cu_seqlens.diff()
    for length in lengths.unique().tolist():
        first = cu_seqlens[:-1][lengths == length].long()
        rows = (first[:, None] + torch.arange(length, device=first.device)).flatten()
        # [segments, heads, length, head size]; all images alike (the usual case) need no gathering.
        whole = rows.numel() == num_patches
        parts = (x if whole else x[rows] for x in (query, key, value))
        q, k, v = (x.view(first.numel(), length, self.num_heads, -1).transpose(1, 2) for x in parts)
        out = F.scaled_dot_product_attention(q, k, v, scale=self.scaling).transpose(1, 2)
        out = out.reshape(rows.numel(), self.num_heads, -1)
        attended = out if whole else attended.index_copy(0, rows, out)
    return self.proj(attended.reshape(num_patches, -1))


def linear_patch_embedding(model: PreTrainedModel) -> None:
    """Compute the patch embedding as the matrix product that it is; Conv3d is slow on CPU."""
    for module in model.modules():
        if isinstance(dict(module.named_children()).get("proj"), nn.Conv3d):
            module.forward = types.MethodType(_patch_product, module)


def _patch_product(self: Any, hidden_states: Tensor) -> Tensor:
    weight = self.proj.weight
    return F.linear(hidden_states.to(weight.dtype), weight.flatten(1), self.proj.bias)


def encode_images(model: PreTrainedModel, images: list[EncodedImage]) -> list[ImageFeatures]:
    """All images through the vision tower in one call; differentiable where gradients are on."""
    if not images:
        return []
    device = model.device
    patches = torch.cat([image.patches_NC for image in images]).to(device)
    grids = torch.tensor([image.grid_thw for image in images], device=device)
    out = model.model.get_image_features(patches, grids, return_dict=True)
    deepstack = out.deepstack_features if "deepstack_features" in out else []
    layers = [list(layer) for layer in deepstack or []]
    return [
        ImageFeatures(tokens, tuple(layer[index] for layer in layers))
        for index, tokens in enumerate(out.pooler_output)
    ]
