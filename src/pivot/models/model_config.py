"""Reads a model's config.json and refuses sizes that no model has, before anything is allocated.

A config.json is data from elsewhere: a width of a billion or a million layers would take the machine's memory while the
model is built, long before its weights are found not to fit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PretrainedConfig

from pivot.durable import read_json
from pivot.errors import UserError
from pivot.models.family import find_family

MAX_SIZE = 2**24
"""Of a width, a number of heads or a vocabulary; published vocabularies have about 2**18 tokens."""
MAX_LAYERS = 1_000
"""Published models have fewer than 200."""
_FILES = ("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json",
          "tokenizer_config.json", "tokenizer.json", "model.safetensors.index.json")  # fmt: skip
BROKEN = (ArithmeticError, AssertionError, AttributeError, LookupError, StrictDataclassError, TypeError)
"""What transformers raises at values that it does not check."""
_SIZE = re.compile(r"num_\w+|\w+_(size|dim|channels)|depth|embed_dim")
_LAYERS = re.compile(r"num_\w*layers|depth")


def read_config(path: str, **options: Any) -> PretrainedConfig:
    """The configuration of a model of a supported family, with plausible sizes; otherwise a UserError.

    A file that cannot be found or read raises transformers' OSError or ValueError.
    """
    for file in (Path(path) / name for name in _FILES):
        if file.exists():
            read_json(file, "restore it")
    raw, _ = PretrainedConfig.get_config_dict(path)
    # Before transformers sees it: some configurations expand to a list with one entry per layer.
    for name, value in _sizes(raw):
        most = MAX_LAYERS if _LAYERS.fullmatch(name.rpartition(".")[2]) else MAX_SIZE
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise UserError(
                f"the config.json of {path} sets {name} to {_shown(value)}, expected a whole number from 0 to {most:,}"
            )
    if "model_type" not in raw:
        raise UserError(f"the config.json of {path} names no model_type, so it does not describe a model")
    find_family(str(raw["model_type"]))
    try:
        config = AutoConfig.from_pretrained(path, **options)
        _fewest_parameters(config)
    except BROKEN as cause:
        reason = " ".join(str(cause).split())[:200]
        raise UserError(
            f"the config.json of {path} describes no model ({type(cause).__name__}: {reason})"
        ) from cause
    image, num_tokens = getattr(config, "image_token_id", 0), config.get_text_config().vocab_size
    if not isinstance(image, int) or not 0 <= image < num_tokens:
        raise UserError(
            f"the config.json of {path} sets image_token_id to {_shown(image)}, expected one of its {num_tokens:,} "
            "tokens"
        )
    return config


def check_memory(config: PretrainedConfig, dtype: torch.dtype) -> None:
    """A UserError if the weights alone are more than all memory of this machine."""
    parameters, memory = _fewest_parameters(config), _memory_bytes()
    if parameters * dtype.itemsize > memory:
        raise UserError(
            f"its config.json describes at least {parameters / 1e9:,.1f} billion parameters, which do not fit into the "
            f"{memory / 2**30:.0f} GiB of this machine"
        )


def _sizes(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of everything that is a size by its name; an absent one has its default."""
    for name, value in raw.items():
        if isinstance(value, Mapping):
            yield from _sizes(value, f"{prefix}{name}.")
        elif _SIZE.fullmatch(name) and value is not None and not isinstance(value, list):
            yield prefix + name, value


def _fewest_parameters(config: PretrainedConfig) -> int:
    """The weights of embeddings, attention and two of an MLP's matrices per layer."""
    text: Any = config.get_text_config()
    family = find_family(config.model_type)
    stacks = (family.text_stack(config), family.vision_stack(config))
    layers = sum(s.layers * s.hidden * 2 * (s.query_width + s.key_width + s.intermediate) for s in stacks)
    return layers + text.vocab_size * text.hidden_size


def _memory_bytes() -> int:
    """Of the machine and its GPUs together."""
    gpus = sum(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + gpus


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:30]}... ({len(text)} characters)"
