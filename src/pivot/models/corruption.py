"""Image interventions I -> I~ (Section 3.2, App. D.1): black patches, a grey canvas, Gaussian noise.

They act on the processor's output, where rows are the ViT's own patches: exact, cheap, no second image processing.
`raw` does the same on the original image, as PAPO does. One mask a prompt and step, from a hash of (seed, step,
prompt id, image index): independent of order, batch split and number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pivot.data.images import open_rgb
from pivot.models.encoding import EncodedImage, EncodedPrompt, PromptEncoder
from pivot.seeding import stable_seed

GREY = 128.0


@dataclass(frozen=True)
class Corruption:
    """An intervention and its strength.

    Example:
        Corruption(kind="patch", probability=0.6)
    """

    kind: Literal["patch", "grey", "gaussian"] = "patch"
    probability: float = 0.6
    sigma: float = 189.0
    raw: bool = False


class Corruptor:
    """Corrupts encoded prompts for one model."""

    def __init__(self, encoder: PromptEncoder, corruption: Corruption, seed: int) -> None:
        self.encoder, self.corruption, self.seed = encoder, corruption, seed
        processor = encoder.image_processor
        self._mean = torch.tensor(processor.image_mean).view(1, -1, 1, 1)
        self._std = torch.tensor(processor.image_std).view(1, -1, 1, 1)
        self._patch = processor.patch_size

    def corrupt(self, encoded: EncodedPrompt, step: int) -> EncodedPrompt:
        """The prompt with each of its images corrupted independently; the text stays as it is."""
        return encoded.with_images(
            tuple(self._corrupt(encoded, index, step) for index in range(len(encoded.images)))
        )

    def _corrupt(self, encoded: EncodedPrompt, index: int, step: int) -> EncodedImage:
        seed = stable_seed(self.seed, step, encoded.prompt.id, index)
        generator = torch.Generator().manual_seed(seed)
        if self.corruption.raw:
            pixels = np.asarray(open_rgb(encoded.prompt.images[index]))
            return self.encoder.encode_image(Image.fromarray(self._corrupt_raw(pixels, generator)))
        image = encoded.images[index]
        return EncodedImage(self._corrupt_patches(image.patches_NC, generator), image.grid_thw)

    def _corrupt_patches(self, patches_NC: Tensor, generator: torch.Generator) -> Tensor:
        pixels = self._pixels(patches_NC)
        if self.corruption.kind == "patch":
            hidden = torch.rand(len(pixels), generator=generator) < self.corruption.probability
            out = torch.where(hidden[:, None, None, None], self._normalised(0.0), pixels)
        elif self.corruption.kind == "grey":
            out = self._normalised(GREY).expand_as(pixels)
        else:
            # Both frames of a still image are the same picture, so they get the same noise.
            noise = torch.randn(pixels[:, :, :1].shape, generator=generator) * self.corruption.sigma
            values = (pixels * self._std + self._mean) * 255.0
            out = self._normalised((values + noise).clamp(0.0, 255.0))
        return out.reshape(patches_NC.shape)

    def _pixels(self, patches_NC: Tensor) -> Tensor:
        """Patches as [patch, colour, frame, pixel]."""
        return patches_NC.view(len(patches_NC), self._mean.shape[1], -1, self._patch**2)

    def _normalised(self, value: Tensor | float) -> Tensor:
        """A pixel value of 0..255 as the model sees it."""
        return (torch.as_tensor(value) / 255.0 - self._mean) / self._std

    def _corrupt_raw(self, pixels_HWC: np.ndarray, generator: torch.Generator) -> np.ndarray:
        if self.corruption.kind == "grey":
            return np.full_like(pixels_HWC, int(GREY))
        if self.corruption.kind == "gaussian":
            noise = torch.randn(pixels_HWC.shape, generator=generator).numpy() * self.corruption.sigma
            return np.clip(pixels_HWC + noise, 0, 255).astype(np.uint8)
        size = self._patch
        height, width = pixels_HWC.shape[:2]
        cells = (-(-height // size), -(-width // size))
        hidden = (torch.rand(cells, generator=generator) < self.corruption.probability).numpy()
        hidden = hidden.repeat(size, 0).repeat(size, 1)[:height, :width]
        return np.where(hidden[..., None], np.uint8(0), pixels_HWC)

    def picture(self, image: EncodedImage) -> Image.Image:
        """The picture that patches show, back in pixels: for people to look at."""
        merge = self.encoder.image_processor.merge_size
        _, rows, columns = image.grid_thw
        pixels = self._pixels(image.patches_NC)[:, :, 0]
        pixels = (pixels * self._std[:, :, 0] + self._mean[:, :, 0]) * 255.0
        blocks = pixels.view(rows // merge, columns // merge, merge, merge, -1, self._patch, self._patch)
        whole = blocks.permute(0, 2, 5, 1, 3, 6, 4).reshape(rows * self._patch, columns * self._patch, -1)
        return Image.fromarray(whole.round().clamp(0, 255).to(torch.uint8).numpy())
