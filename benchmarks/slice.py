"""A slice of Qwen2.5-VL-3B: full width and vocabulary, few layers, random weights; its matrices are a real model's.

Nothing is downloaded. Without a tokenizer's folder the tiny model's tokenizer is used; the vocabulary keeps its size.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

LAYERS, VISION_LAYERS = 4, 4
"""Of 36 and 32."""


def add_options(parser: ArgumentParser) -> None:
    """What only a slice needs."""
    parser.add_argument("--data", default="tiny", help="of a slice: Geometry3K's train.parquet")
    parser.add_argument("--tokenizer", help="of a slice: the folder of Qwen2.5's; default: the tiny model's")


def write_for(case: str, folder: Path, args: Namespace) -> list[str]:
    """The case's settings; a slice is written into the folder first."""
    if not case.startswith("slice"):
        return []
    print(f"{write_slice(folder / 'model', args.tokenizer) / 1e6:.0f}M weights", flush=True)
    return slice_settings(folder / "model", args.data)


def slice_settings(model: Path, data: str) -> list[str]:
    """Changes to the recipe geo3k-3b: on a CPU, in float32, with the native sampler."""
    return [
        f"model.path={model}", "model.device=cpu", "model.dtype=float32", "sampling.engine=native",
        f"data.train={data}", "data.validation_split=null", "data.validation_size=1", "eval.every=0",
        "eval.final_prompts=0", "rollout.recompute_logprobs=false", "train.threads=null",
    ]  # fmt: skip


def write_slice(folder: Path, tokenizer_folder: str | None = None) -> int:
    """A folder as `save_pretrained` writes it. Returns the number of weights."""
    import torch
    from transformers import (
        AutoModelForImageTextToText,
        AutoTokenizer,
        GenerationConfig,
        Qwen2VLImageProcessorPil,
    )

    from pivot import recipes, tiny
    from pivot.models.loading import load_tokenizer_only
    from pivot.models.qwen_vl import VISION_TOKENS, published_config

    text = load_tokenizer_only(tiny.checkpoint_path("easy"))
    tokenizer: Any = text.tokenizer
    sizes, limits = published_config("3B"), recipes.get("geo3k-3b").model
    if tokenizer_folder is None:
        for name in VISION_TOKENS:
            setattr(sizes, name, getattr(text.family.config, name))
    else:
        template = tokenizer.chat_template
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
        tokenizer.chat_template = template  # the text models' own does not place images
    sizes.text_config.num_hidden_layers, sizes.vision_config.depth = LAYERS, VISION_LAYERS
    sizes.text_config.layer_types = sizes.text_config.layer_types[:LAYERS]
    sizes.vision_config.fullatt_block_indexes = [VISION_LAYERS - 1]
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(sizes, dtype=torch.float32)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = text.family.image_processor.to_dict()
    settings |= {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
    settings["size"] = {"shortest_edge": limits.min_pixels, "longest_edge": limits.max_pixels}
    Qwen2VLImageProcessorPil(**settings).save_pretrained(folder)
    return model.num_parameters()
