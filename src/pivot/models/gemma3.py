"""Gemma 3: every image is one square tile, its tokens see each other, and most layers have a sliding window.

Every forward over a prompt tells Hugging Face's model which tokens belong to an image; it builds the masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from PIL import Image
from torch import Tensor
from transformers import Gemma3ImageProcessorPil
from transformers.cache_utils import Cache

from pivot.data.template import ImagePlace, Segment
from pivot.models.family import EncodedImage, ImageFeatures
from pivot.models.published import SO400M, text_settings
from pivot.models.tiles import TiledFamily
from pivot.models.turns import Trusted

AROUND = Trusted("\n\n")
"""What the model's processor writes on both sides of an image, as part of the text."""


class Gemma3(TiledFamily):
    """One tile per image. Further crops ("pan and scan") are off, as in the model's own processor."""

    image_mark = "<start_of_image>"
    image_processor_class: ClassVar[Any] = Gemma3ImageProcessorPil

    # Text ------------------------------------------------------------------------------------------------

    def arrange(self, segments: Sequence[Segment], expanded: bool) -> Sequence[Segment]:
        parts: list[Segment] = []
        for part in super().arrange(segments, expanded):
            parts += [AROUND, part, AROUND] if expanded and isinstance(part, ImagePlace) else [part]
        return parts

    def placeholder_ids(self, grid: tuple[int, ...]) -> list[int]:
        start, end = self._marks()
        return [start, *[self.image_token_id] * self.config.mm_tokens_per_image, end]

    def engine_placeholder_ids(self) -> list[int]:
        return [self._marks()[0]]

    def banned_ids(self) -> list[int]:
        return sorted({self.image_token_id, *self._marks()})

    def _marks(self) -> tuple[int, int]:
        return self.config.boi_token_index, self.config.eoi_token_index

    # Images ----------------------------------------------------------------------------------------------

    @staticmethod
    def image_limits(image_processor: Any) -> tuple[int, int]:
        """Every image has the same size."""
        area = image_processor.size["height"] * image_processor.size["width"]
        return area, area

    @staticmethod
    def limit_images(image_processor: Any, min_pixels: int | None, max_pixels: int | None) -> None:
        """Nothing to limit."""

    def encode_image(self, image: Image.Image) -> EncodedImage:
        out = self.image_processor(images=[image], return_tensors="pt", do_pan_and_scan=False)
        return EncodedImage(self.pixel_values(out["pixel_values"]), (0, 0), self)

    def grid_of(self, width: int, height: int) -> tuple[int, ...]:
        return 0, 0

    # Weights ---------------------------------------------------------------------------------------------

    def body(self, model: Any) -> Any:
        """The language model within the one that builds the masks."""
        return model.model

    def embed(self, model: Any, input_ids_RL: Tensor, images: Sequence[ImageFeatures]) -> dict[str, Any]:
        inputs = super().embed(model, input_ids_RL, images)
        return {**inputs, "token_type_ids": (input_ids_RL == self.image_token_id).long()}

    def hidden(
        self,
        model: Any,
        inputs: dict[str, Any],
        position_ids_ARL: Tensor,
        attention_mask: Tensor | None,
        cache: Cache | None = None,
    ) -> Tensor:
        continues = cache is not None and cache.get_seq_length() > 0
        if continues:  # response tokens belong to no image, and the prompt's masks are in the cache
            inputs = {**inputs, "token_type_ids": None}
        return super().hidden(model, inputs, position_ids_ARL, attention_mask, cache)

    # Sizes -----------------------------------------------------------------------------------------------

    @classmethod
    def patches_per_token(cls, config: Any) -> int:
        vision = config.vision_config
        return (vision.image_size // vision.patch_size) ** 2 // config.mm_tokens_per_image

    published: ClassVar = {
        "gemma-3-4b": lambda: _gemma3(2560, 10240, 34, 8, 4, head_dim=256),
        "gemma-3-12b": lambda: _gemma3(3840, 15360, 48, 16, 8, head_dim=256),
        "gemma-3-27b": lambda: _gemma3(5376, 21504, 62, 32, 16, head_dim=128),
    }


def _gemma3(*sizes: int, head_dim: int) -> dict[str, Any]:
    text = text_settings("gemma3_text", *sizes, head_dim=head_dim, vocab_size=262208, sliding_window=1024)
    vision = {**SO400M, "image_size": 896, "vision_use_head": False}
    return {"model_type": "gemma3", "text_config": text, "vision_config": vision}
