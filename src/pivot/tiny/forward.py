"""A fast forward for pretraining, for rows with one square image of the same size in the same place.

It runs the model's own modules on a batch of images at once, with precomputed M-RoPE positions. A test compares it with
Hugging Face's forward.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision

from pivot.tiny.model import IMAGE_MEAN, IMAGE_STD, MERGE, PATCH
from pivot.tiny.procedural.canvas import SIZE

SIDE = SIZE // (PATCH * MERGE)
NUM_IMAGE_TOKENS = SIDE * SIDE
NUM_PATCHES = NUM_IMAGE_TOKENS * MERGE * MERGE
GRID = (1, SIDE * MERGE, SIDE * MERGE)


def patches(image: Image.Image) -> np.ndarray:
    """uint8 [patches, 3*14*14] in Qwen's merge-block order."""
    side = image.width // (PATCH * MERGE)
    pixels = np.asarray(image).reshape(side, MERGE, PATCH, side, MERGE, PATCH, 3)
    return pixels.transpose(0, 3, 1, 4, 6, 2, 5).reshape(-1, 3 * PATCH * PATCH)


def side_of(num_patches: int) -> int:
    """Image tokens per side of a square image with so many patches."""
    return math.isqrt(num_patches) // MERGE


def encode_images(model: Qwen2_5_VLForConditionalGeneration, patches_PNX: torch.Tensor) -> torch.Tensor:
    """uint8 patches of P images -> features [P, image tokens, D]."""
    tower = model.model.visual
    num_images, side = patches_PNX.shape[0], side_of(patches_PNX.shape[1])
    pixels = (patches_PNX.float() / 255 - IMAGE_MEAN) / IMAGE_STD
    # A still image fills both frames of the temporal patch with the same pixels, so their weights add up.
    weight = tower.patch_embed.proj.weight.sum(dim=2).flatten(1)
    hidden = F.linear(pixels, weight)
    cos, sin = _rotary(model, side)
    block: Any
    for block in tower.blocks:
        hidden = hidden + _attend(block.attn, block.norm1(hidden), cos, sin)
        hidden = hidden + block.mlp(block.norm2(hidden))
    return tower.merger(hidden.flatten(0, 1)).view(num_images, side * side, -1)


def _attend(attention: Any, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    num_images, num_patches, _ = hidden.shape
    query, key, value = (
        part.flatten(0, 1)
        for part in attention.qkv(hidden).view(num_images, num_patches, 3, attention.num_heads, -1).unbind(2)
    )
    query, key = apply_rotary_pos_emb_vision(query, key, cos.repeat(num_images, 1), sin.repeat(num_images, 1))
    query, key, value = (
        part.view(num_images, num_patches, attention.num_heads, -1).transpose(1, 2)
        for part in (query, key, value)
    )
    mixed = F.scaled_dot_product_attention(query, key, value, scale=attention.scaling)
    return attention.proj(mixed.transpose(1, 2).flatten(2))


def _rotary(model: Qwen2_5_VLForConditionalGeneration, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    block = torch.arange(side * MERGE)
    rows, columns = torch.meshgrid(block, block, indexing="ij")

    def merged(places: torch.Tensor) -> torch.Tensor:
        return places.reshape(side, MERGE, side, MERGE).permute(0, 2, 1, 3).flatten()

    positions = torch.stack([merged(rows), merged(columns)], dim=-1)
    return model.model.visual.rotary_pos_emb(torch.zeros(1), positions)


def positions(image_start: int, length: int, side: int = SIDE) -> torch.Tensor:
    """M-RoPE positions [3, length] of a row whose image tokens start at `image_start`."""
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    image = torch.stack([torch.zeros_like(rows), rows, columns]).flatten(1) + image_start
    after = length - image_start - side * side
    before = torch.arange(image_start).expand(3, -1)
    return torch.cat([before, image, torch.arange(after).expand(3, -1) + image_start + side], dim=1)


def hidden_states(
    model: Qwen2_5_VLForConditionalGeneration,
    patches_BNX: torch.Tensor,
    ids_BL: torch.Tensor,
    image_start: int,
) -> torch.Tensor:
    """Last hidden states [B, L, D] of right-padded rows; attention is causal, so padding needs no mask."""
    text = model.model.language_model
    embedded = text.embed_tokens(ids_BL)
    features, side = encode_images(model, patches_BNX), side_of(patches_BNX.shape[1])
    embedded = torch.cat(
        [embedded[:, :image_start], features, embedded[:, image_start + side * side :]], dim=1
    )
    position_ids = positions(image_start, ids_BL.shape[1], side)[:, None].expand(3, len(ids_BL), -1)
    return text(inputs_embeds=embedded, position_ids=position_ids, use_cache=False).last_hidden_state
