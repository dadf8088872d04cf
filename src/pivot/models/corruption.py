"""Image corruptions I -> I~ (Section 3.2, App. D.1): black patches, a grey canvas, Gaussian noise, or your own.

A corruption is one function. It acts on the processor's output, in which the ViT's own patches can be addressed: exact
and cheap, without processing the image again. With `raw` the same function acts on the original image, as in PAPO. The
random generator is seeded from (seed, step, prompt id, image index), so masks do not depend on order, batch split or
number of workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pivot.data.images import open_rgb
from pivot.errors import UserError, nearest
from pivot.plugins import FORMS, find_function
from pivot.seeding import stable_seed

if TYPE_CHECKING:
    from pivot.models.encoding import PromptEncoder
    from pivot.models.family import EncodedImage, EncodedPrompt

GREY = 128.0


@dataclass(frozen=True)
class Canvas:
    """An image as a corruption sees it: pixel values, and the N patches that they belong to."""

    values: Tensor
    """Pixel values 0..255; the shape depends on the model family."""
    patch: Tensor
    """int64, broadcasts against `values`: the patch of each pixel."""
    centre_N2: Tensor
    """Vertical and horizontal centre of each patch, as fractions of the image's height and width."""

    @property
    def num_patches(self) -> int:
        return len(self.centre_N2)

    def per_pixel(self, chosen_N: Tensor) -> Tensor:
        """A value per patch -> the value of each pixel's patch; broadcasts against `values`."""
        return chosen_N[self.patch]


@dataclass(frozen=True)
class Corruption:
    """A corruption and its strength.

    Example:
        Corruption(kind="patch", probability=0.6)
    """

    kind: str = "patch"
    """A name in `CORRUPTIONS`, or one that `pivot.plugins` reads."""
    probability: float = 0.6
    sigma: float = 189.0
    raw: bool = False
    hidden: bool = False
    """Hide the images from attention, whatever `kind` says (PGPO)."""

    def __post_init__(self) -> None:
        find(self.kind)


CorruptionFunction = Callable[[Canvas, Corruption, torch.Generator], tuple[Tensor | bool, Tensor | float]]
"""Returns where the image changes (bool) and the pixel values there; both broadcast against `canvas.values`."""


def patch(
    canvas: Canvas, settings: Corruption, generator: torch.Generator
) -> tuple[Tensor | bool, Tensor | float]:
    """Each patch black with the given probability."""
    hidden_N = torch.rand(canvas.num_patches, generator=generator) < settings.probability
    return canvas.per_pixel(hidden_N), 0.0


def grey(
    canvas: Canvas, settings: Corruption, generator: torch.Generator
) -> tuple[Tensor | bool, Tensor | float]:
    """The whole image (128, 128, 128)."""
    return True, GREY


def gaussian(
    canvas: Canvas, settings: Corruption, generator: torch.Generator
) -> tuple[Tensor | bool, Tensor | float]:
    """Pixel noise of standard deviation sigma."""
    noise = torch.randn(canvas.values.shape, generator=generator) * settings.sigma
    return True, (canvas.values + noise).clamp(0.0, 255.0)


CORRUPTIONS: dict[str, CorruptionFunction] = {"patch": patch, "grey": grey, "gaussian": gaussian}


def register(name: str, function: CorruptionFunction) -> None:
    """Make a corruption known as `corruption.kind=NAME` in this process."""
    if ":" in name or name in CORRUPTIONS:
        raise UserError(f"corruption {name!r} cannot be registered: the name is taken or contains a colon.")
    CORRUPTIONS[name] = function


def find(kind: str) -> CorruptionFunction:
    """The function that a `corruption.kind` names: a registered name, or code from outside."""
    if ":" in kind:
        return find_function(kind, "corruption")
    if kind not in CORRUPTIONS:
        raise UserError(
            f"corruption.kind is {kind!r}; {nearest(kind, CORRUPTIONS)}; yours is written {FORMS}."
        )
    return CORRUPTIONS[kind]


class Corruptor:
    """Corrupts encoded prompts for one model."""

    def __init__(self, encoder: PromptEncoder, corruption: Corruption, seed: int) -> None:
        self.encoder, self.corruption, self.seed = encoder, corruption, seed

    def corrupt(self, encoded: EncodedPrompt, step: int) -> EncodedPrompt:
        """The prompt with each of its images corrupted independently; the text does not change."""
        if self.corruption.hidden:
            return encoded.without_images(self.encoder.family.image_token_id)
        return encoded.with_images(
            tuple(self._corrupt(encoded, index, step) for index in range(len(encoded.images)))
        )

    def _corrupt(self, encoded: EncodedPrompt, index: int, step: int) -> EncodedImage:
        seed = stable_seed(self.seed, step, encoded.prompt.id, index)
        generator = torch.Generator().manual_seed(seed)
        family = self.encoder.family
        if not self.corruption.raw:
            image = encoded.images[index]
            return family.repaint(image, *self._apply(family.canvas(image), generator))
        pixels_HWC = np.asarray(open_rgb(encoded.prompt.images[index]))
        canvas = raw_canvas(pixels_HWC, family.patch_size)
        where, values = (torch.as_tensor(part) for part in self._apply(canvas, generator))
        corrupted_HWC = torch.where(where, values, canvas.values).to(torch.uint8)
        return self.encoder.encode_image(Image.fromarray(corrupted_HWC.numpy()), encoded.prompt)

    def _apply(self, canvas: Canvas, generator: torch.Generator) -> tuple[Tensor | bool, Tensor | float]:
        found = find(self.corruption.kind)(canvas, self.corruption, generator)
        if not isinstance(found, tuple) or len(found) != 2:
            raise UserError(
                f"corruption {self.corruption.kind} returned {type(found).__name__}; expected (where, values)."
            )
        return found


def raw_canvas(pixels_HWC: np.ndarray, patch_size: int) -> Canvas:
    """An image before any processing, cut into cells of the ViT's patch size from the top left."""
    height, width = pixels_HWC.shape[:2]
    row_H, column_W = torch.arange(height) // patch_size, torch.arange(width) // patch_size
    num_rows, num_columns = -(-height // patch_size), -(-width // patch_size)
    # The last cells may be cut off, so their centre is that of what is left.
    vertical = _centres(num_rows, patch_size, height)
    horizontal = _centres(num_columns, patch_size, width)
    return Canvas(
        values=torch.from_numpy(pixels_HWC.astype(np.float32)),
        patch=(row_H[:, None] * num_columns + column_W)[..., None],
        centre_N2=torch.cartesian_prod(vertical, horizontal),
    )


def _centres(num_cells: int, size: int, length: int) -> Tensor:
    edges = (torch.arange(num_cells + 1) * size).clamp(max=length)
    return (edges[:-1] + edges[1:]) / (2 * length)
