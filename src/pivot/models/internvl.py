"""InternVL3 and 3.5 in Hugging Face's own classes: square tiles in the shape of the image, the whole image last."""

from __future__ import annotations

from typing import Any, ClassVar

from PIL import Image
from transformers import GotOcr2ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

from pivot.models.family import EncodedImage
from pivot.models.published import text_settings
from pivot.models.tiles import TiledFamily

START, END = "<img>", "</img>"


class InternVL(TiledFamily):
    """An image that is not cut has one tile; otherwise the whole image is the last."""

    image_mark = "<IMG_CONTEXT>"
    image_processor_class: ClassVar[Any] = GotOcr2ImageProcessorPil

    def placeholder_ids(self, grid: tuple[int, ...]) -> list[int]:
        num_tiles = grid[0] * grid[1] + 1
        start, end = self._marks()
        return [start, *[self.image_token_id] * (num_tiles * self.tokens_per_tile), end]

    def banned_ids(self) -> list[int]:
        return sorted({self.image_token_id, *self._marks()})

    def _marks(self) -> list[int]:
        return self.tokenizer.convert_tokens_to_ids([START, END])

    # Images ----------------------------------------------------------------------------------------------

    @staticmethod
    def image_limits(image_processor: Any) -> tuple[int, int]:
        """One tile, and as many as an image is cut into at most."""
        area = image_processor.size["height"] * image_processor.size["width"]
        return area, area * image_processor.max_patches

    @staticmethod
    def limit_images(image_processor: Any, min_pixels: int | None, max_pixels: int | None) -> None:
        """As many tiles as fit into `max_pixels`, at least one."""
        if max_pixels is not None:
            area, _ = InternVL.image_limits(image_processor)
            image_processor.max_patches = min(image_processor.max_patches, max(1, max_pixels // area))

    def processor_settings(self) -> dict[str, Any]:
        return {"max_patches": self.image_processor.max_patches}

    def encode_image(self, image: Image.Image) -> EncodedImage:
        # The model's own processor asks for tiles, whatever the image processor's file says.
        out = self.image_processor(images=[image], return_tensors="pt", crop_to_patches=True)
        return EncodedImage(self.pixel_values(out["pixel_values"]), self.grid_of(*image.size), self)

    def grid_of(self, width: int, height: int) -> tuple[int, ...]:
        processor = self.image_processor
        side = processor.size["height"], processor.size["width"]
        most = processor.max_patches
        columns, rows = get_optimal_tiled_canvas(
            (height, width), side, min(processor.min_patches, most), most
        )
        return (rows, columns) if rows * columns > 1 else (0, 0)

    # Sizes -----------------------------------------------------------------------------------------------

    @classmethod
    def patches_per_token(cls, config: Any) -> int:
        return round(1 / config.downsample_ratio) ** 2

    published: ClassVar = {
        "InternVL3-1B": lambda: _internvl("qwen2", 896, 4864, 24, 14, 2),
        "InternVL3-2B": lambda: _internvl("qwen2", 1536, 8960, 28, 12, 2),
        "InternVL3-8B": lambda: _internvl("qwen2", 3584, 18944, 28, 28, 4),
        "InternVL3-14B": lambda: _internvl("qwen2", 5120, 13824, 48, 40, 8),
        "InternVL3_5-1B": lambda: _internvl("qwen3", 1024, 3072, 28, 16, 8, head_dim=128),
        "InternVL3_5-2B": lambda: _internvl("qwen3", 2048, 6144, 28, 16, 8, head_dim=128),
        "InternVL3_5-4B": lambda: _internvl("qwen3", 2560, 9728, 36, 32, 8, head_dim=128),
        "InternVL3_5-8B": lambda: _internvl("qwen3", 4096, 12288, 36, 32, 8, head_dim=128),
        "InternVL3_5-14B": lambda: _internvl("qwen3", 5120, 17408, 40, 40, 8, head_dim=128),
    }


def _internvl(*text: Any, **more: Any) -> dict[str, Any]:
    """Any size beside the vision tower of 300M weights."""
    return {
        "model_type": "internvl",
        "text_config": text_settings(*text, vocab_size=151674 if text[0] == "qwen2" else 151936, **more),
        "vision_config": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24},
        "tie_word_embeddings": False,
    }
