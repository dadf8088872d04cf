"""The sizes of a model that memory depends on, from its config.json; no weights are loaded.

The model is built on torch's meta device, so its parameters are counted exactly, whatever its family.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from huggingface_hub import try_to_load_from_cache
from transformers import AutoModelForImageTextToText, PretrainedConfig

from pivot.errors import UserError
from pivot.models.family import FAMILIES, Family, Stack, find_family
from pivot.models.loading import file_limits, resolve_model
from pivot.models.model_config import read_config


@dataclass(frozen=True)
class Architecture:
    """The sizes that a memory estimate needs."""

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
    """Largest image of the model's own processor; None: its files are not on this machine."""


def find_architecture(model: str) -> Architecture:
    """From the model's folder, its cached config.json, or the published sizes that a family knows."""
    path = resolve_model(model)
    config_file = _local_file(path, "config.json")
    if config_file is not None:
        try:
            return _measure(read_config(str(config_file.parent)), str(config_file), _max_pixels(path))
        except (OSError, ValueError) as cause:
            reason = str(cause).strip().splitlines()[0].rstrip(".:")
            raise UserError(f"cannot read the model's {config_file} ({reason})") from cause
    for family in dict.fromkeys(map(find_family, FAMILIES)):
        published = _measure_published(family, model)
        if published is not None:
            return published
    raise UserError(
        f"The sizes of {model!r} are unknown, because its config.json is neither a local file nor in the hub's cache: "
        "download the model first."
    )


@cache
def _measure_published(family: type[Family], model: str) -> Architecture | None:
    """The sizes that a family knows by the model's name, which never change."""
    published = family.published_config(model)
    if published is None:
        return None
    name, config = published
    return _measure(config, f"published sizes of {name}", None)


def _measure(config: PretrainedConfig, source: str, max_pixels: int | None) -> Architecture:
    family = find_family(config.model_type)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    projections = [
        module
        for name, module in family.text_model(model).named_modules()
        if isinstance(module, torch.nn.Linear) and name.endswith("_proj")
    ]
    patches_per_token = family.patches_per_token(config)
    return Architecture(
        source=source,
        parameters=sum(p.numel() for p in model.parameters()),
        vision_parameters=sum(p.numel() for p in family.vision_parameters(model)),
        adapter_parameters=sum(p.in_features + p.out_features for p in projections),
        text=family.text_stack(config),
        vision=family.vision_stack(config),
        vocabulary=config.get_text_config().vocab_size,
        pixels_per_token=family.patch_side(config) ** 2 * patches_per_token,
        patches_per_token=patches_per_token,
        max_pixels=max_pixels,
    )


def _local_file(path: str, name: str) -> Path | None:
    """The file in the model's folder or in the hub's cache; nothing is downloaded."""
    if Path(path).is_dir():
        file = Path(path) / name
        return file if file.is_file() else None
    cached = try_to_load_from_cache(path, name)
    return Path(cached) if isinstance(cached, str) else None


def _max_pixels(path: str) -> int | None:
    file = _local_file(path, "preprocessor_config.json")
    return None if file is None else file_limits(file.parent)[1]
