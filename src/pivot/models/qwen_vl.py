"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: M-RoPE positions, patches in merge blocks, and the fast forwards.

Hugging Face's vision attention loops over images (and windows) one by one unless flash attention is installed. Segments
of equal length are independent, so they go through one kernel call here; the result is the same. The language model
shares prompts between sibling responses, both in training (`shared_prefix.py`) and in decoding (`decoding.py`).
"""

from __future__ import annotations

import math
import types
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AutoConfig, PretrainedConfig, Qwen2VLImageProcessorPil
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VLVisionAttention,
    apply_rotary_pos_emb_vision,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen2_vl.modeling_qwen2_vl import VisionAttention as Qwen2VLVisionAttention
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionAttention
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeVisionAttention
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionAttention
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import (
    Qwen3VLMoeTextSparseMoeBlock,
    Qwen3VLMoeVisionAttention,
)

from pivot.errors import UserError
from pivot.models.corruption import GREY, Canvas
from pivot.models.decoding import Continuation, PrefilledPrompts, SharedContinuation
from pivot.models.family import EncodedImage, Family, ImageFeatures, Stack
from pivot.models.published import text_settings
from pivot.models.shared_prefix import share_prefixes, shares_prefixes

SEGMENTED_ATTENTION = (
    Qwen2VLVisionAttention,
    Qwen2_5_VLVisionAttention,
    Qwen3VLVisionAttention,
    Qwen3VLMoeVisionAttention,
    Qwen3_5VisionAttention,
    Qwen3_5MoeVisionAttention,
)
VISION_TOKENS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
VISION_PADDING = "<|vision_pad|>"


class QwenVL(Family):
    """`EncodedImage.values` are one frame's patches [N, colours, 1, pixels]; `grid` is (frames, rows, columns)."""

    image_processor_class: ClassVar[Any] = Qwen2VLImageProcessorPil
    vision_names: ClassVar[tuple[str, ...]] = ("visual",)
    shares_prefixes: ClassVar[bool] = True
    published: ClassVar = {
        "Qwen3-VL-2B": lambda: _qwen3_vl(2048, 6144, 28, 16, 8, tied=True, large_vision=False),
        "Qwen3-VL-4B": lambda: _qwen3_vl(2560, 9728, 36, 32, 8, tied=True, large_vision=False),
        "Qwen3-VL-8B": lambda: _qwen3_vl(4096, 12288, 36, 32, 8),
        "Qwen3-VL-32B": lambda: _qwen3_vl(5120, 25600, 64, 64, 8),
        "Qwen3-VL-30B-A3B": lambda: _qwen3_vl(
            2048, 6144, 48, 32, 4, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8
        ),
    }

    def __init__(self, model: Any, tokenizer: Any, image_processor: Any) -> None:
        super().__init__(model, tokenizer, image_processor)
        self._rope_index = model.model.get_rope_index
        self._merge: int = image_processor.merge_size
        self._num_frames: int = image_processor.temporal_patch_size

    @classmethod
    def load_image_processor(cls, path: str) -> Any:
        """Reports a damaged preprocessor_config.json, which would otherwise divide by zero."""
        processor = super().load_image_processor(path)
        sizes = (processor.patch_size, processor.merge_size, processor.temporal_patch_size)
        for name, value in zip(("patch_size", "merge_size", "temporal_patch_size"), sizes, strict=True):
            if not isinstance(value, int) or value < 1:
                raise UserError(
                    f"the preprocessor_config.json of {path} sets {name} to {value!r}, expected at least 1"
                )
        return processor

    # Text ------------------------------------------------------------------------------------------------

    def placeholder_ids(self, grid: tuple[int, ...]) -> list[int]:
        return self._marked(math.prod(grid) // self._merge**2)

    def engine_placeholder_ids(self) -> list[int]:
        return self._marked(1)

    def _marked(self, num_tokens: int) -> list[int]:
        config = self.config
        return [
            config.vision_start_token_id,
            *[self.image_token_id] * num_tokens,
            config.vision_end_token_id,
        ]

    def banned_ids(self) -> list[int]:
        settings = self.config.to_dict()
        ids = {settings[name] for name in VISION_TOKENS if settings.get(name) is not None}
        ids |= {i for text, i in self.tokenizer.get_added_vocab().items() if text == VISION_PADDING}
        return sorted(ids)

    def positions(self, input_ids_L: Tensor, images: Sequence[EncodedImage]) -> Tensor:
        """M-RoPE: temporal, height, width."""
        if not images:
            return torch.arange(input_ids_L.numel()).expand(3, -1)
        is_image_1L = (input_ids_L == self.image_token_id).int()[None]
        grids = torch.tensor([image.grid for image in images])
        positions_31L, _ = self._rope_index(
            input_ids_L[None], mm_token_type_ids=is_image_1L, image_grid_thw=grids
        )
        return positions_31L[:, 0]

    # Images ----------------------------------------------------------------------------------------------

    @property
    def patch_size(self) -> int:
        return self.image_processor.patch_size

    @staticmethod
    def image_limits(image_processor: Any) -> tuple[int, int]:
        size = image_processor.size
        return size["shortest_edge"], size["longest_edge"]

    @staticmethod
    def limit_images(image_processor: Any, min_pixels: int | None, max_pixels: int | None) -> None:
        limits = {"shortest_edge": min_pixels, "longest_edge": max_pixels}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        image_processor.size = {**dict(image_processor.size), **given}

    def processor_settings(self) -> dict[str, Any]:
        low, high = self.image_limits(self.image_processor)
        return {"size": {"shortest_edge": low, "longest_edge": high}}

    def encode_image(self, image: Image.Image) -> EncodedImage:
        out = self.image_processor(images=[image], return_tensors="pt")
        patches = out["pixel_values"].view(-1, self.mean.shape[1], self._num_frames, self.patch_size**2)
        # Both frames of a still image are the same picture.
        values = self.pixel_values(patches[:, :, :1])
        return EncodedImage(values, tuple(out["image_grid_thw"][0].tolist()), self)

    def model_pixels(self, image: EncodedImage) -> Tensor:
        """[patches, colours * frames * pixels]"""
        return super().model_pixels(image).expand(-1, -1, self._num_frames, -1).flatten(1)

    def grid_of(self, width: int, height: int) -> tuple[int, ...]:
        width, height = self._resized_size(width, height)
        return 1, height // self.patch_size, width // self.patch_size

    def resized(self, image: Image.Image) -> Image.Image:
        """At the size that `encode_image` resizes it to, with the same pixels."""
        return image.resize(self._resized_size(*image.size), self.image_processor.resample)

    def _resized_size(self, width: int, height: int) -> tuple[int, int]:
        low, high = self.image_limits(self.image_processor)
        factor = self.patch_size * self._merge
        height, width = smart_resize(height, width, factor=factor, min_pixels=low, max_pixels=high)
        return width, height

    def blank_image(self) -> EncodedImage:
        """The smallest there is: one token."""
        shape = (self._merge**2, self.mean.numel(), 1, self.patch_size**2)
        values = torch.full(shape, int(GREY), dtype=torch.uint8)
        return EncodedImage(values, (1, self._merge, self._merge), self)

    def canvas(self, image: EncodedImage) -> Canvas:
        _, rows, columns = image.grid
        row_N, column_N = (
            self._in_blocks(axis, rows, columns)
            for axis in torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        )
        return Canvas(
            values=image.values.float(),
            patch=torch.arange(len(image.values)).view(-1, 1, 1, 1),
            centre_N2=torch.stack([(row_N + 0.5) / rows, (column_N + 0.5) / columns], 1),
        )

    def picture(self, image: EncodedImage) -> Image.Image:
        _, rows, columns = image.grid
        merge, size = self._merge, self.patch_size
        blocks = self.canvas(image).values.view(rows // merge, columns // merge, merge, merge, -1, size, size)
        return self._to_picture(blocks.permute(4, 0, 2, 5, 1, 3, 6).reshape(-1, rows * size, columns * size))

    def _in_blocks(self, values: Tensor, rows: int, columns: int) -> Tensor:
        """[rows, columns] -> [patches] in the processor's order: merge block by merge block."""
        merge = self._merge
        return values.reshape(rows // merge, merge, columns // merge, merge).transpose(1, 2).flatten()

    # Weights ---------------------------------------------------------------------------------------------

    @classmethod
    def prepare(cls, model: Any) -> None:
        prepare_vision(model)
        share_prefixes(cls.text_model(model))
        for module in model.modules():
            if isinstance(module, Qwen3VLMoeTextSparseMoeBlock):
                module.forward = types.MethodType(_mixture_of_rows, module)

    def image_features(self, model: Any, images: Sequence[EncodedImage]) -> list[ImageFeatures]:
        if not images:
            return []
        patches = torch.cat([image.pixels for image in images]).to(model.device)
        grids = torch.tensor([image.grid for image in images], device=model.device)
        out = model.model.get_image_features(patches, grids, return_dict=True)
        # Qwen3-VL's deepstack: features of earlier vision layers for the first layers of the language model.
        deepstack = out.deepstack_features if "deepstack_features" in out else []
        layers = [list(layer) for layer in deepstack or []]
        return [
            ImageFeatures(tokens, tuple(layer[index] for layer in layers))
            for index, tokens in enumerate(out.pooler_output)
        ]

    def embed(self, model: Any, input_ids_RL: Tensor, images: Sequence[ImageFeatures]) -> dict[str, Any]:
        inputs = super().embed(model, input_ids_RL, images)
        layers = list(zip(*(image.layers_ND for image in images), strict=True))
        if layers:
            dtype = inputs["inputs_embeds"].dtype
            inputs["visual_pos_masks"] = input_ids_RL == self.image_token_id
            inputs["deepstack_visual_embeds"] = [torch.cat(layer).to(dtype) for layer in layers]
        return inputs

    def text_positions(self, position_ids_ARL: Tensor) -> Tensor:
        return position_ids_ARL.expand(3, -1, -1)

    def prefill_mask(self, model: Any, seen_PL: Tensor) -> Tensor:
        """For sdpa bool [P, 1, L, L]: causal over the real tokens; padding sees itself alone."""
        if not shares_prefixes(self.text_model(model)):
            return super().prefill_mask(model, seen_PL)  # other kernels take no boolean mask
        length = seen_PL.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        return (causal & seen_PL[:, None, :] | torch.eye(length, dtype=torch.bool))[:, None]

    def continuation(
        self, model: Any, prompts: PrefilledPrompts, num_samples: int, max_tokens: int
    ) -> Continuation:
        return SharedContinuation(self, model, prompts, num_samples, max_tokens)

    # Sizes -----------------------------------------------------------------------------------------------

    @classmethod
    def published_config(cls, name: str) -> tuple[str, PretrainedConfig] | None:
        """Also Qwen2.5-VL as published with its 3B, 7B and 32B weights."""
        for size in PUBLISHED:
            if f"qwen2.5-vl-{size}".lower() in name.lower():
                return f"Qwen2.5-VL-{size}", published_config(size)
        return super().published_config(name)

    @classmethod
    def vision_stack(cls, config: Any) -> Stack:
        # Qwen2-VL names the tower's width embed_dim; its hidden_size is the language model's width.
        values = config.vision_config.to_dict()
        width = values.get("embed_dim", values["hidden_size"])
        intermediate = values.get("intermediate_size", int(width * values.get("mlp_ratio", 4)))
        return Stack(values["depth"], width, intermediate, query_width=width, key_width=width)

    @classmethod
    def patches_per_token(cls, config: Any) -> int:
        return config.vision_config.spatial_merge_size**2


def prepare_vision(model: Any) -> None:
    """The vision tower's faster forwards, in place."""
    _batch_vision_attention(model)
    _linear_patch_embedding(model)


def _mixture_of_rows(self: Any, hidden_states: Tensor) -> Tensor:
    """The mixture of experts for [rows, tokens, D] as Hugging Face has it, and for [tokens, D], as decoding has it."""
    rows = hidden_states if hidden_states.ndim == 3 else hidden_states[None]
    return Qwen3VLMoeTextSparseMoeBlock.forward(self, rows).view(hidden_states.shape)


def _batch_vision_attention(model: Any) -> None:
    """One attention call for all segments of equal length, in place."""
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
    for length, rows in _segments(cu_seqlens, query.device):
        # [segments, heads, length, head size]; if all segments are equally long, nothing is gathered.
        whole = rows.numel() == num_patches
        parts = (x if whole else x[rows] for x in (query, key, value))
        q, k, v = (x.view(-1, length, self.num_heads, x.shape[-1]).transpose(1, 2) for x in parts)
        out = F.scaled_dot_product_attention(q, k, v, scale=self.scaling).transpose(1, 2)
        out = out.reshape(rows.numel(), self.num_heads, -1)
        attended = out if whole else attended.index_copy(0, rows, out)
    return self.proj(attended.reshape(num_patches, -1))


def _segments(cu_seqlens: Tensor, device: torch.device) -> list[tuple[int, Tensor]]:
    """Each length and the rows of all segments that have it; read once per forward, since a GPU is waited for."""
    if cu_seqlens not in _known_segments:
        first = cu_seqlens.cpu()[:-1].long()
        lengths = cu_seqlens.cpu().diff()
        found = []
        for length in lengths.unique().tolist():
            rows = (first[lengths == length][:, None] + torch.arange(length)).flatten()
            found.append((length, rows.to(device)))
        _known_segments[cu_seqlens] = found
    return _known_segments[cu_seqlens]


_known_segments: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""All layers of a forward get the same boundaries."""


def _linear_patch_embedding(model: Any) -> None:
    """Compute the patch embedding as a matrix product; Conv3d is slow on CPU."""
    for module in model.modules():
        if isinstance(dict(module.named_children()).get("proj"), nn.Conv3d):
            module.forward = types.MethodType(_patch_product, module)


def _patch_product(self: Any, hidden_states: Tensor) -> Tensor:
    weight = self.proj.weight
    return F.linear(hidden_states.to(weight.dtype), weight.flatten(1), self.proj.bias)


def _qwen3_vl(*sizes: int, tied: bool = False, large_vision: bool = True, **experts: int) -> dict[str, Any]:
    model_type = "qwen3_vl_moe" if experts else "qwen3_vl"
    text = text_settings(f"{model_type}_text", *sizes, head_dim=128, vocab_size=151936, **experts)
    vision, deepstack = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096}, [5, 11, 17]
    if large_vision:
        vision, deepstack = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304}, [8, 16, 24]
    return {
        "model_type": model_type,
        "text_config": {**text, "tie_word_embeddings": tied},
        "vision_config": {
            **vision,
            "deepstack_visual_indexes": deepstack,
            "out_hidden_size": text["hidden_size"],
        },
        "tie_word_embeddings": tied,
    }


PUBLISHED = {
    "3B": {"hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2}
    | {"intermediate_size": 11008, "vocab_size": 151936, "tie_word_embeddings": True},
    "7B": {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4}
    | {"intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False},
    "32B": {"hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8}
    | {"intermediate_size": 27648, "vocab_size": 152064, "tie_word_embeddings": False},
}
"""Language model sizes of Qwen2.5-VL, for machines without the model's files."""
PUBLISHED_VISION = {
    "depth": 32,
    "hidden_size": 1280,
    "num_heads": 16,
    "patch_size": 14,
    "spatial_merge_size": 2,
}
PUBLISHED_VISION_INTERMEDIATE = {"3B": 3420, "7B": 3420, "32B": 3456}


def published_config(size: str) -> PretrainedConfig:
    text = PUBLISHED[size]
    vision = {
        **PUBLISHED_VISION,
        "intermediate_size": PUBLISHED_VISION_INTERMEDIATE[size],
        "out_hidden_size": text["hidden_size"],
    }
    return AutoConfig.for_model(
        "qwen2_5_vl",
        text_config={**text, "rope_scaling": {"mrope_section": [16, 24, 24], "rope_type": "default"}},
        vision_config=vision,
        tie_word_embeddings=text["tie_word_embeddings"],
    )
