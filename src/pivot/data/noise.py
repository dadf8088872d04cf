"""Images with the noise of a forward diffusion, as NoisyRollout samples under."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from PIL import Image

from pivot.data.images import open_rgb
from pivot.seeding import stable_seed
from pivot.types import ImageSource, Prompt

DIFFUSION_STEPS = 1000


@cache
def signal_shares() -> np.ndarray:
    """abar_t = prod_{s<=t} (1 - beta_s) for t = 0..1000; beta_s follows a sigmoid from 1e-5 to 5e-3.

    The schedule of visual contrastive decoding (arXiv 2311.16922), which NoisyRollout uses.
    """
    beta = 1e-5 + (5e-3 - 1e-5) / (1 + np.exp(-np.linspace(-6, 6, DIFFUSION_STEPS)))
    return np.concatenate([[1.0], np.cumprod(1 - beta)])


@dataclass(frozen=True)
class NoisyImage:
    """sqrt(abar) x + sqrt(1 - abar) eps, clipped to the range of pixels; the same pixels at every `open`."""

    source: ImageSource
    level: int
    """t, the step of the diffusion; 0 leaves the image as it is."""
    seed: int

    def open(self) -> Image.Image:
        pixels_HWC = np.asarray(open_rgb(self.source), dtype=np.float32) / 255
        generator = np.random.Generator(np.random.Philox(key=self.seed))
        share = float(signal_shares()[self.level])
        noise_HWC = generator.standard_normal(pixels_HWC.shape, dtype=np.float32)
        noisy_HWC = share**0.5 * pixels_HWC + (1 - share) ** 0.5 * noise_HWC
        return Image.fromarray((noisy_HWC.clip(0, 1) * 255).round().astype(np.uint8))


def noisy_prompt(prompt: Prompt, level: int, key: tuple[object, ...]) -> Prompt:
    """The prompt with noise in its images, under an id of its own, which seeds its samples and names it in caches.

    Args:
        level: t of `NoisyImage`.
        key: seeds the noise together with the prompt's id and the image's index.
    """
    images = tuple(
        NoisyImage(source, level, stable_seed(*key, "noise", prompt.id, index))
        for index, source in enumerate(prompt.images)
    )
    return replace(prompt, id=f"{prompt.id}~noisy", images=images)
