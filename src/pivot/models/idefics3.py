"""Idefics3 and SmolVLM: square tiles and a view of the whole image, through Hugging Face's own forward.

The image processor scales an image, cuts it into tiles of the vision tower's size, and appends the whole image as one
more tile. Every tile has the same number of tokens.
"""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from torch import Tensor
from transformers import Idefics3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import get_resize_output_image_size

from pivot.models.family import EncodedImage
from pivot.models.published import SO400M, text_settings
from pivot.models.tiles import TiledFamily

AROUND, WHOLE = "<fake_token_around_image>", "<global-img>"
MARKS = re.compile(rf"{AROUND}|{WHOLE}|<row_\d+_col_\d+>")


class Idefics3(TiledFamily):
    """The whole image is the last tile."""

    image_mark = "<image>"
    image_processor_class: ClassVar[Any] = Idefics3ImageProcessorPil
    text_name: ClassVar[str] = "text_model"
    vision_names: ClassVar[tuple[str, ...]] = ("vision_model", "connector")

    # Text ------------------------------------------------------------------------------------------------

    def placeholder_ids(self, grid: tuple[int, ...]) -> list[int]:
        rows, columns = grid
        tile = "<image>" * self.tokens_per_tile
        lines = [
            "".join(f"{AROUND}<row_{row + 1}_col_{column + 1}>{tile}" for column in range(columns)) + "\n"
            for row in range(rows)
        ]
        text = "".join(lines) + ("\n" if lines else "") + f"{AROUND}{WHOLE}{tile}{AROUND}"
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def banned_ids(self) -> list[int]:
        added = self.tokenizer.get_added_vocab()
        return sorted({self.image_token_id, *(i for text, i in added.items() if MARKS.fullmatch(text))})

    # Images ----------------------------------------------------------------------------------------------

    @staticmethod
    def image_limits(image_processor: Any) -> tuple[int, int]:
        """Every image is scaled to the same longest edge: there is no lower limit of its own."""
        return 1, image_processor.size["longest_edge"] ** 2

    @staticmethod
    def limit_images(image_processor: Any, min_pixels: int | None, max_pixels: int | None) -> None:
        """As many tiles per side as fit into `max_pixels`, at least one."""
        if max_pixels is not None:
            side = image_processor.max_image_size["longest_edge"]
            tiles = max(1, math.isqrt(max_pixels) // side)
            longest = min(image_processor.size["longest_edge"], tiles * side)
            image_processor.size = {"longest_edge": longest}

    def encode_image(self, image: Image.Image) -> EncodedImage:
        out = self.image_processor(images=[[image]], return_tensors="pt", return_row_col_info=True)
        grid = (out["rows"][0][0], out["cols"][0][0])
        return EncodedImage(self.pixel_values(out["pixel_values"][0]), grid, self)

    def grid_of(self, width: int, height: int) -> tuple[int, ...]:
        """By the processor's own rules, without an image: longest edge first, then up to whole tiles."""
        processor, side = self.image_processor, self.image_processor.max_image_size["longest_edge"]
        if not processor.do_image_splitting:
            return 0, 0
        shape = np.broadcast_to(np.uint8(0), (3, height, width))
        height, width = get_resize_output_image_size(shape, processor.size["longest_edge"])
        ratio = width / height
        if width >= height:
            columns = math.ceil(width / side)
            rows = math.ceil(int(columns * side / ratio) / side)
        else:
            rows = math.ceil(height / side)
            columns = math.ceil(int(rows * side * ratio) / side)
        return (rows, columns) if max(rows, columns) > 1 else (0, 0)

    # Weights and sizes -----------------------------------------------------------------------------------

    def tile_features(self, model: Any, pixels: Tensor) -> Tensor:
        """Hugging Face takes [images, tiles, ...] and returns one row per tile."""
        return super().tile_features(model, pixels[None])

    @classmethod
    def patches_per_token(cls, config: Any) -> int:
        return config.scale_factor**2

    published: ClassVar = {
        "SmolVLM-256M": lambda: _smolvlm(576, 1536, 30, 9, 3, model_type="idefics3"),
        "SmolVLM2-256M": lambda: _smolvlm(576, 1536, 30, 9, 3),
        "SmolVLM-500M": lambda: _smolvlm(960, 2560, 32, 15, 5, model_type="idefics3"),
        "SmolVLM2-500M": lambda: _smolvlm(960, 2560, 32, 15, 5),
        "SmolVLM-Instruct": lambda: _smolvlm(
            2048, 8192, 24, 32, 32, SO400M, scale_factor=3, model_type="idefics3"
        ),
        "SmolVLM2-2.2B": lambda: _smolvlm(2048, 8192, 24, 32, 32, SO400M, scale_factor=3),
    }


BASE_VISION = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
}
BASE_VISION |= {"image_size": 512, "patch_size": 16}


def _smolvlm(
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    key_heads: int,
    vision: dict[str, int] = BASE_VISION,
    scale_factor: int = 4,
    model_type: str = "smolvlm",
) -> dict[str, Any]:
    text = text_settings("llama", hidden, intermediate, layers, heads, key_heads, vocab_size=49280)
    return {
        "model_type": model_type,
        "text_config": text,
        "vision_config": vision,
        "scale_factor": scale_factor,
        "tie_word_embeddings": False,
    }
