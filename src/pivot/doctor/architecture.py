"""The sizes of a model that memory depends on, from its config.json; no weights are loaded.

The model is built on torch's meta device, so its parameters are counted and not guessed, whatever its family.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from transformers import AutoConfig, AutoModelForImageTextToText, PretrainedConfig

from pivot.errors import UserError
from pivot.models.loading import resolve_model

_QWEN2_5_VISION = {
    "depth": 32,
    "hidden_size": 1280,
    "num_heads": 16,
    "patch_size": 14,
    "spatial_merge_size": 2,
}
_QWEN2_5_SIZES = {
    "3B": {"hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2}
    | {"intermediate_size": 11008, "vocab_size": 151936, "tie_word_embeddings": True},
    "7B": {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4}
    | {"intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False},
    "32B": {"hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8}
    | {"intermediate_size": 27648, "vocab_size": 152064, "tie_word_embeddings": False},
}
_VISION_INTERMEDIATE = {"3B": 3420, "7B": 3420, "32B": 3456}


@dataclass(frozen=True)
class Stack:
    """Equal transformer layers."""

    layers: int
    hidden: int
    intermediate: int
    query_width: int
    """Heads times head size."""
    key_width: int
    """Key heads times head size; keys and values have one each."""


@dataclass(frozen=True)
class Architecture:
    """What the memory estimate needs to know of a model."""

    source: str
    """Where the sizes come from."""
    parameters: int
    vision_parameters: int
    adapter_parameters: int
    """Weights of low-rank adapters of rank 1 on the language model's projections."""
    text: Stack
    vision: Stack
    vocabulary: int
    pixels_per_token: int
    """Image area that one image token of the language model stands for (28 x 28 in Qwen2.5-VL)."""
    patches_per_token: int
    max_pixels: int | None
    """Largest image of the model's own processor; None: its files are not here."""


def find_architecture(model: str) -> Architecture:
    """From the model's folder, its cached config.json, or the published sizes of Qwen2.5-VL."""
    path = resolve_model(model)
    config_file = _local_file(path, "config.json")
    if config_file is not None:
        config = AutoConfig.from_pretrained(config_file.parent)
        return _measure(config, str(config_file), _max_pixels(path))
    for size in _QWEN2_5_SIZES:
        if f"qwen2.5-vl-{size}".lower() in model.lower():
            return _measure(published_config(size), f"published sizes of Qwen2.5-VL-{size}", None)
    raise UserError(
        f"The sizes of {model!r} are unknown, as its config.json is neither here nor in the hub's cache: "
        f"download the model first, or give one of Qwen2.5-VL {', '.join(_QWEN2_5_SIZES)}."
    )


def published_config(size: str) -> PretrainedConfig:
    """Qwen2.5-VL's configuration as published with its 3B, 7B and 32B weights."""
    text = _QWEN2_5_SIZES[size]
    sections = {"mrope_section": [16, 24, 24], "rope_type": "default"}
    vision = {
        **_QWEN2_5_VISION,
        "intermediate_size": _VISION_INTERMEDIATE[size],
        "out_hidden_size": text["hidden_size"],
    }
    return AutoConfig.for_model(
        "qwen2_5_vl",
        text_config={**text, "rope_scaling": sections},
        vision_config=vision,
        tie_word_embeddings=text["tie_word_embeddings"],
    )


def _measure(config: PretrainedConfig, source: str, max_pixels: int | None) -> Architecture:
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    projections = [
        module
        for name, module in model.model.language_model.named_modules()
        if isinstance(module, torch.nn.Linear) and name.endswith("_proj")
    ]
    text, vision = config.text_config, config.vision_config
    merged = vision.spatial_merge_size**2
    return Architecture(
        source=source,
        parameters=sum(p.numel() for p in model.parameters()),
        vision_parameters=sum(p.numel() for p in model.model.visual.parameters()),
        adapter_parameters=sum(p.in_features + p.out_features for p in projections),
        text=_text_stack(text),
        vision=_vision_stack(vision),
        vocabulary=text.vocab_size,
        pixels_per_token=vision.patch_size**2 * merged,
        patches_per_token=merged,
        max_pixels=max_pixels,
    )


def _text_stack(text: Any) -> Stack:
    # Qwen3-VL names its head size; the others divide the width by the heads.
    head = text.to_dict().get("head_dim") or text.hidden_size // text.num_attention_heads
    return Stack(
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        query_width=text.num_attention_heads * head,
        key_width=text.num_key_value_heads * head,
    )


def _vision_stack(vision: Any) -> Stack:
    # Qwen2-VL calls the tower's width embed_dim and its hidden_size the language model's width.
    values = vision.to_dict()
    width = values.get("embed_dim", values["hidden_size"])
    intermediate = values.get("intermediate_size", int(width * values.get("mlp_ratio", 4)))
    return Stack(values["depth"], width, intermediate, query_width=width, key_width=width)


def _local_file(path: str, name: str) -> Path | None:
    """The file in the model's folder, or in the hub's cache; nothing is downloaded."""
    if Path(path).is_dir():
        file = Path(path) / name
        return file if file.is_file() else None
    cached = try_to_load_from_cache(path, name)
    return Path(cached) if isinstance(cached, str) else None


def _max_pixels(path: str) -> int | None:
    file = _local_file(path, "preprocessor_config.json")
    if file is None:
        return None
    values = json.loads(file.read_text(encoding="utf-8"))
    return values.get("max_pixels") or values.get("size", {}).get("longest_edge")
