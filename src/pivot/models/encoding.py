"""From a prompt to what the model reads: token ids, positions and encoded images.

The tokenizer and the image processor are used directly, because `AutoProcessor` needs torchvision. What depends on the
model family is asked of `Family`.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import torch
from PIL import Image

from pivot.data import template
from pivot.data.images import ImageError, open_rgb
from pivot.errors import UserError
from pivot.models.family import EncodedImage, EncodedPrompt, Family
from pivot.models.turns import SYSTEM, Trusted
from pivot.types import Prompt


class UnreadablePrompt(UserError):
    """A prompt with an image that cannot be decoded."""


def usable_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class PromptEncoder:
    """Encodes prompts for one model; caches the latest ones within a byte budget."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._frames = {(starts, True): family.frame(starts) for starts in (False, True)}
        added = family.tokenizer.added_tokens_decoder.values()
        self._specials = sorted((token.content for token in added if token.special), key=len, reverse=True)
        self._cache: OrderedDict[str, EncodedPrompt] = OrderedDict()
        self._cache_bytes = 0
        self.cache_limit = 2 * 2**30
        self._read: dict[int, tuple[EncodedImage, ...] | ImageError] = {}
        """Images that `read_images` has read and `encode` has not taken yet, by the `id()` of their prompt."""

    @property
    def tokenizer(self) -> Any:
        return self.family.tokenizer

    @property
    def image_limits(self) -> tuple[int, int]:
        """Smallest and largest image area after resizing, in pixels."""
        return self.family.image_limits(self.family.image_processor)

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """Token ids, positions and images of a prompt."""
        known = self._cache.get(prompt.id)
        if known is not None and known.prompt == prompt:
            self._cache.move_to_end(prompt.id)
            return known
        images = self._read.pop(id(prompt), None) or self._images(prompt)
        if isinstance(images, ImageError):
            raise UnreadablePrompt(
                f"prompt {prompt.id!r} has an image that cannot be used: {images}"
            ) from images
        ids = torch.tensor(
            self._token_ids(prompt, [self.family.placeholder_ids(image.grid) for image in images])
        )
        positions = self.family.positions(ids, images)
        encoded = EncodedPrompt(prompt, ids, positions, int(positions.max()) + 1, images)
        self._remember(encoded)
        return encoded

    def read_images(self, prompts: Sequence[Prompt]) -> None:
        """Decode and process the images of prompts that are encoded next, several at a time where there are cores."""
        new = [p for p in prompts if p.images and p.id not in self._cache]
        self._read = {}
        if self._pool is not None and len(new) > 1:
            self._read = dict(zip(map(id, new), self._pool.map(self._images, new), strict=True))

    @cached_property
    def _pool(self) -> ThreadPoolExecutor | None:
        """Pillow and numpy work outside of Python's lock; one core is left to what is done meanwhile."""
        cores = usable_cores()
        return ThreadPoolExecutor(min(cores - 1, 16)) if cores > 2 else None

    def _images(self, prompt: Prompt) -> tuple[EncodedImage, ...] | ImageError:
        try:
            return tuple(self.encode_image(open_rgb(source), prompt) for source in prompt.images)
        except ImageError as broken:
            return broken

    def encode_image(self, image: Image.Image, prompt: Prompt) -> EncodedImage:
        """An RGB image as one of the prompt's."""
        alone = len(prompt.images) == 1
        return self.family.encode_image(image) if alone else self.family.encode_beside_others(image)

    def count_tokens(self, prompt: Prompt) -> int:
        """The prompt's length, from the text and the images' sizes alone: no pixel is decoded."""
        grid_of = self.family.grid_of if len(prompt.images) == 1 else self.family.grid_beside_others
        grids = [grid_of(*source.open().size) for source in prompt.images]
        return len(self._token_ids(prompt, [self.family.placeholder_ids(grid) for grid in grids]))

    def text_ids(self, prompt: Prompt) -> list[int]:
        """The prompt for engines that expand image tokens on their own."""
        marks = [self.family.engine_placeholder_ids()] * len(prompt.images)
        return self._token_ids(prompt, marks, expanded=False)

    def resized(self, image: Image.Image) -> Image.Image:
        """An RGB image at the size at which other engines should receive it."""
        return self.family.resized(image)

    def _token_ids(
        self, prompt: Prompt, placeholders: Sequence[list[int]], expanded: bool = True
    ) -> list[int]:
        """System message and user's text within the chat template, images replaced by their tokens.

        Text between images is tokenised in one piece, like the chat template's own. Only text that spells out a special
        token is tokenised separately, so that data never becomes a control token.
        """
        segments = self.family.arrange(template.segments(prompt), expanded)
        first = next(part for part in segments if not isinstance(part, Trusted))
        before, after = self._frame(prompt, isinstance(first, template.ImagePlace))
        # A model whose chat template prints no system message has none.
        opening, _, rest = before.partition(SYSTEM) if SYSTEM in before else ("", "", before)
        system = template.system_text(prompt) if SYSTEM in before else ""
        ids: list[int] = []
        pending = ""
        for part in (Trusted(opening), system, Trusted(rest), *segments, Trusted(after)):
            if isinstance(part, template.ImagePlace):
                ids += self._tokenize(pending) + placeholders[part.index]
                pending = ""
            elif not isinstance(part, Trusted) and any(special in part for special in self._specials):
                ids += self._tokenize(pending) + self._tokenize(part, split_special_tokens=True)
                pending = ""
            else:
                pending += part
        return ids + self._tokenize(pending)

    def _frame(self, prompt: Prompt, starts_with_image: bool) -> tuple[str, str]:
        key = (starts_with_image, template.system_text(prompt) != "")
        if key not in self._frames:
            self._frames[key] = self.family.frame(*key)
        return self._frames[key]

    def _tokenize(self, text: str, **options: bool) -> list[int]:
        if not text:
            return []
        return list(self.family.tokenizer(text, add_special_tokens=False, **options)["input_ids"])

    def _remember(self, encoded: EncodedPrompt) -> None:
        replaced = self._cache.pop(encoded.prompt.id, None)
        self._cache_bytes -= 0 if replaced is None else _num_bytes(replaced)
        self._cache[encoded.prompt.id] = encoded
        self._cache_bytes += _num_bytes(encoded)
        while self._cache_bytes > self.cache_limit and len(self._cache) > 1:
            self._cache_bytes -= _num_bytes(self._cache.popitem(last=False)[1])


def _num_bytes(encoded: EncodedPrompt) -> int:
    return sum(image.values.nbytes for image in encoded.images) + encoded.input_ids_L.nbytes * 4
