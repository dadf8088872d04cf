"""Builds a Qwen2.5-VL of about 1.6M parameters from its config, and saves it as a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)
from transformers.utils import logging as transformers_logging

from pivot.tiny.procedural.canvas import SIZE

PATCH, MERGE = 14, 2
LARGEST = 112
"""Pixels per side of the largest image that the shipped checkpoints' processor does not shrink."""
IMAGE_MEAN, IMAGE_STD = 0.9, 0.35
"""A white background becomes nearly zero, with which the model learns faster than with the usual means."""
INITIALIZER_RANGE = 0.06
"""Three times Hugging Face's default; with 0.02 a model of this size hardly learns."""


def build_model(
    tokenizer: PreTrainedTokenizerFast,
    *,
    hidden: int = 128,
    layers: int = 3,
    vision_layers: int = 2,
    seed: int = 0,
) -> Qwen2_5_VLForConditionalGeneration:
    """An untrained model for the tokenizer's vocabulary; the seed fixes all weights."""
    ids = tokenizer.get_vocab()
    config = Qwen2_5_VLConfig(
        text_config=_text_config(ids, hidden, layers),
        vision_config=_vision_config(hidden, vision_layers),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        bos_token_id=ids["<|endoftext|>"],
        eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]],
        pad_token_id=ids["<|endoftext|>"],
    )
    return model.eval()


def _text_config(ids: dict[str, int], hidden: int, layers: int) -> dict[str, Any]:
    return {
        "vocab_size": len(ids),
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": hidden // 64,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "initializer_range": INITIALIZER_RANGE,
    }


def _vision_config(hidden: int, layers: int) -> dict[str, Any]:
    return {
        "depth": layers,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_heads": hidden // 32,
        "out_hidden_size": hidden,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "window_size": 8 * PATCH,
        # Images this small fit one window, so every block attends to all patches.
        "fullatt_block_indexes": list(range(layers)),
        "initializer_range": INITIALIZER_RANGE,
    }


def build_image_processor(largest: int = LARGEST) -> Qwen2VLImageProcessorPil:
    """Qwen's processor for images of 56 to `largest` pixels per side; the tasks' images are not resized."""
    assert SIZE % (PATCH * MERGE) == 0
    return Qwen2VLImageProcessorPil(
        min_pixels=56 * 56,
        max_pixels=largest * largest,
        patch_size=PATCH,
        merge_size=MERGE,
        temporal_patch_size=2,
        image_mean=[IMAGE_MEAN] * 3,
        image_std=[IMAGE_STD] * 3,
    )


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Saving takes milliseconds; transformers' bar would break the caller's own display."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def save(
    model: Qwen2_5_VLForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    *,
    largest: int = LARGEST,
) -> None:
    """An ordinary Hugging Face folder; weights are stored in float16 and load as float32.

    Images of up to `largest` pixels per side are not resized.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The output layer is the embedding; loading ties them again.
    half = {name: w.half() for name, w in model.state_dict().items() if name != "lm_head.weight"}
    with _no_progress_bar():
        model.save_pretrained(folder, state_dict=half)
    config_file = folder / "config.json"
    config = json.loads(config_file.read_text())
    for part in (config, config["text_config"], config["vision_config"]):
        part["dtype"] = "float32"
    config_file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    tokenizer.save_pretrained(folder)
    build_image_processor(largest).save_pretrained(folder)
