"""Families that cut an image into square tiles beside a view of the whole image."""

from __future__ import annotations

from typing import ClassVar

import torch
from PIL import Image
from torch import Tensor

from pivot.models.corruption import Canvas
from pivot.models.family import EncodedImage, Family, side_of


class TiledFamily(Family):
    """`EncodedImage.values` are tiles [T, channels, side, side]; `grid` begins with (rows, columns), 0 if not cut."""

    vision_names: ClassVar[tuple[str, ...]] = ("vision_tower", "multi_modal_projector")
    whole: ClassVar[int] = -1
    """Index of the tile that shows the whole image: 0 or -1."""

    @property
    def tokens_per_tile(self) -> int:
        vision = self.config.vision_config
        patches = (side_of(vision.image_size) // side_of(vision.patch_size)) ** 2
        return patches // self.patches_per_token(self.config)

    def canvas(self, image: EncodedImage) -> Canvas:
        """Tiles know where they are in the image."""
        canvas, (rows, columns) = super().canvas(image), image.grid[:2]
        centre_TN2 = canvas.centre_N2.view(len(image.values), -1, 2)
        corner_T2 = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).view(-1, 1, 2)
        scale_2 = torch.tensor([max(rows, 1), max(columns, 1)])
        tiles_TN2 = (self._cut(centre_TN2) + corner_T2) / scale_2
        parts = [tiles_TN2, centre_TN2[[self.whole]]]
        centre_N2 = torch.cat(parts if self.whole else parts[::-1]).flatten(0, 1)
        return Canvas(canvas.values, canvas.patch, centre_N2)

    def picture(self, image: EncodedImage) -> Image.Image:
        """The tiles put together, or the whole image if it was not cut."""
        values_TCHW, (rows, columns) = self.canvas(image).values, image.grid[:2]
        if len(values_TCHW) == 1:
            return self._to_picture(values_TCHW[0])
        _, channels, height, width = values_TCHW.shape
        tiles = self._cut(values_TCHW).view(rows, columns, channels, height, width).permute(2, 0, 3, 1, 4)
        return self._to_picture(tiles.reshape(channels, rows * height, columns * width))

    def _cut(self, tiles_T: Tensor) -> Tensor:
        """All tiles but the whole image."""
        return tiles_T[:-1] if self.whole else tiles_T[1:]
