"""LLaVA-OneVision: the whole image first, then tiles of a padded copy, whose padding is cut off among the features.

A prompt's only image is cut into tiles. Several images of one prompt are a padded square each, as in the model's own
processor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from PIL import Image
from transformers import LlavaOnevisionImageProcessorPil
from transformers.models.llava_onevision.modeling_llava_onevision import (
    get_anyres_image_grid_shape,
    unpad_image,
)

from pivot.models.family import EncodedImage, ImageFeatures
from pivot.models.published import SO400M, text_settings
from pivot.models.tiles import TiledFamily


class LlavaOnevision(TiledFamily):
    """`grid` is (rows, columns, height, width) with the size of the original image; rows are 0 if it is not cut."""

    image_mark = "<image>"
    image_processor_class: ClassVar[Any] = LlavaOnevisionImageProcessorPil
    whole: ClassVar[int] = 0

    def __init__(self, model: Any, tokenizer: Any, image_processor: Any) -> None:
        super().__init__(model, tokenizer, image_processor)
        # The model finds the tiles of an image among these sizes on its own; `limit_images` may have removed some.
        self.config.image_grid_pinpoints = [list(size) for size in image_processor.image_grid_pinpoints]

    # Text ------------------------------------------------------------------------------------------------

    def placeholder_ids(self, grid: tuple[int, ...]) -> list[int]:
        return [self.image_token_id] * self._num_tokens(grid)

    def _num_tokens(self, grid: tuple[int, ...]) -> int:
        """The whole image, then the tiles' rows without padding, each with a line break."""
        rows, columns, *original = grid
        side = math.isqrt(self.tokens_per_tile)
        if not rows:
            return side**2 + 1
        canvas = torch.empty(1, rows * side, columns * side, device="meta")
        height, width = unpad_image(canvas, original).shape[1:]
        most = int(self.config.vision_aspect_ratio.removeprefix("anyres_max_"))
        ratio = math.sqrt(height * width / (most * side**2))
        if ratio > 1.1:
            height, width = int(height // ratio), int(width // ratio)
        return side**2 + height * (width + 1)

    def banned_ids(self) -> list[int]:
        return sorted({self.image_token_id, self.config.video_token_id})

    # Images ----------------------------------------------------------------------------------------------

    @staticmethod
    def image_limits(image_processor: Any) -> tuple[int, int]:
        areas = [height * width for height, width in image_processor.image_grid_pinpoints]
        return min(areas), max(areas)

    @staticmethod
    def limit_images(image_processor: Any, min_pixels: int | None, max_pixels: int | None) -> None:
        """The sizes between the limits; the smallest is always there."""
        sizes = sorted(image_processor.image_grid_pinpoints, key=math.prod)
        low, high = min_pixels or 0, max_pixels or math.prod(sizes[-1])
        fitting = [size for size in sizes if low <= math.prod(size) <= high]
        image_processor.image_grid_pinpoints = fitting or sizes[:1]

    def encode_image(self, image: Image.Image) -> EncodedImage:
        out = self.image_processor(images=[[image]], return_tensors="pt")
        return EncodedImage(self.pixel_values(out["pixel_values"][0]), self.grid_of(*image.size), self)

    def encode_beside_others(self, image: Image.Image) -> EncodedImage:
        out = self.image_processor(images=[[image, image]], return_tensors="pt")
        grid = self.grid_beside_others(*image.size)
        return EncodedImage(self.pixel_values(out["pixel_values"][0]), grid, self)

    def grid_of(self, width: int, height: int) -> tuple[int, ...]:
        config = self.config
        sides = get_anyres_image_grid_shape(
            (height, width), config.image_grid_pinpoints, config.vision_config.image_size
        )
        return *sides, height, width

    def grid_beside_others(self, width: int, height: int) -> tuple[int, ...]:
        return 0, 0, height, width

    # Weights ---------------------------------------------------------------------------------------------

    def image_features(self, model: Any, images: Sequence[EncodedImage]) -> list[ImageFeatures]:
        """In two calls: images that are cut, and images that are not."""
        found: dict[int, ImageFeatures] = {}
        for is_cut in (True, False):
            places = [place for place, image in enumerate(images) if bool(image.grid[0]) is is_cut]
            if places:
                features = self._features(model, [images[place] for place in places])
                found.update(zip(places, features, strict=True))
        return [found[place] for place in range(len(images))]

    def _features(self, model: Any, images: Sequence[EncodedImage]) -> list[ImageFeatures]:
        pixels = torch.cat([image.pixels for image in images]).to(model.device, model.dtype)
        sizes = torch.tensor([image.grid[2:] for image in images], device=model.device)
        # Numbers of images per prompt, as Hugging Face knows which are cut: those of prompts with one image.
        counts = [1] * len(images) if images[0].grid[0] else [len(images)]
        out = model.model.get_image_features(pixels, sizes, batch_num_images=counts, return_dict=True)
        return [ImageFeatures(tokens) for tokens in out.pooler_output]

    @classmethod
    def patches_per_token(cls, config: Any) -> int:
        return 1

    published: ClassVar = {
        "llava-onevision-qwen2-0.5b": lambda: _llava(896, 4864, 24, 14, 2, vocab_size=152000, tied=True),
        "llava-onevision-qwen2-7b": lambda: _llava(3584, 18944, 28, 28, 4, vocab_size=152128),
        "llava-onevision-qwen2-72b": lambda: _llava(8192, 29568, 80, 64, 8, vocab_size=152128),
    }


def _llava(*sizes: int, vocab_size: int, tied: bool = False) -> dict[str, Any]:
    text = text_settings("qwen2", *sizes, vocab_size=vocab_size, tie_word_embeddings=tied)
    vision = {
        **SO400M,
        "model_type": "siglip_vision_model",
        "num_hidden_layers": 26,
        "vision_use_head": False,
    }
    return {
        "model_type": "llava_onevision",
        "text_config": text,
        "vision_config": vision,
        "tie_word_embeddings": tied,
    }
