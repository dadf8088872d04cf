"""Idefics3 and SmolVLM: square tiles and a view of the whole image, through Hugging Face's own forward.

The image processor scales an image, cuts it into tiles of the vision tower's size, and appends the whole image as one
more tile. Every tile has the same number of tokens.
"""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import Idefics3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import get_resize_output_image_size

from pivot.models.corruption import Canvas
from pivot.models.family import EncodedImage, Family

AROUND, WHOLE = "<fake_token_around_image>", "<global-img>"
MARKS = re.compile(rf"{AROUND}|{WHOLE}|<row_\d+_col_\d+>")


class Idefics3(Family):
    """`EncodedImage.values` are tiles [T, channels, side, side], the whole image last; `grid` is (rows, columns)."""

    image_processor_class: ClassVar[Any] = Idefics3ImageProcessorPil
    text_name: ClassVar[str] = "text_model"
    vision_names: ClassVar[tuple[str, ...]] = ("vision_model", "connector")

    # Text ------------------------------------------------------------------------------------------------

    def frame(self, starts_with_image: bool, with_system: bool = True) -> tuple[str, str]:
        """The chat templates print "User:" before an image and "User: " before text."""
        before, after = super().frame(starts_with_image, with_system)
        return (before.removesuffix(" ") if starts_with_image else before), after

    def placeholder_ids(self, grid: tuple[int, ...]) -> list[int]:
        rows, columns = grid
        tile = "<image>" * (self._patches_per_tile // self.patches_per_token(self.config))
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

    @property
    def _patches_per_tile(self) -> int:
        vision = self.config.vision_config
        return (vision.image_size // vision.patch_size) ** 2

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

    def canvas(self, image: EncodedImage) -> Canvas:
        """Tiles know where they are in the image; the last is the whole image."""
        canvas, (rows, columns) = super().canvas(image), image.grid
        centre_TN2 = canvas.centre_N2.view(len(image.values), -1, 2)
        corner_T2 = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).view(-1, 1, 2)
        scale_2 = torch.tensor([max(rows, 1), max(columns, 1)])
        tiles_TN2 = (centre_TN2[:-1] + corner_T2) / scale_2
        centre_N2 = torch.cat([tiles_TN2, centre_TN2[-1:]]).flatten(0, 1)
        return Canvas(canvas.values, canvas.patch, centre_N2)

    def picture(self, image: EncodedImage) -> Image.Image:
        """The tiles put together, or the whole image if it was not cut."""
        values_TCHW, (rows, columns) = self.canvas(image).values, image.grid
        if len(values_TCHW) == 1:
            return self._to_picture(values_TCHW[0])
        _, channels, height, width = values_TCHW.shape
        tiles = values_TCHW[:-1].view(rows, columns, channels, height, width).permute(2, 0, 3, 1, 4)
        return self._to_picture(tiles.reshape(channels, rows * height, columns * width))

    # Weights and sizes -----------------------------------------------------------------------------------

    def tile_features(self, model: Any, pixels: Tensor) -> Tensor:
        """Hugging Face takes [images, tiles, ...] and returns one row per tile."""
        return super().tile_features(model, pixels[None])

    @classmethod
    def patches_per_token(cls, config: Any) -> int:
        return config.scale_factor**2
