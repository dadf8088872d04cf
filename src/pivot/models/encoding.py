"""From a prompt to what the model reads: token ids, M-RoPE positions and image patches.

The tokenizer and the image processor are used directly: `AutoProcessor` would need torchvision. Patch size, merge
size, normalisation and special tokens come from the model's own files.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import BatchFeature
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from pivot.data import template
from pivot.data.images import ImageError, open_rgb
from pivot.errors import UserError
from pivot.types import Prompt

CONTENT = "\N{OBJECT REPLACEMENT CHARACTER}content\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands for the user's text while the chat template is rendered."""


class UnreadablePrompt(UserError):
    """A prompt with an image that cannot be decoded."""


@dataclass(frozen=True)
class EncodedImage:
    """One image after the processor: rows are the ViT's own patches, in merge-block order."""

    patches_NC: Tensor
    """float32 [patches, channels * temporal * patch * patch], normalised."""
    grid_thw: tuple[int, int, int]


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as the model reads it."""

    prompt: Prompt
    input_ids_L: Tensor
    position_ids_3L: Tensor
    """M-RoPE: temporal, height, width."""
    next_position: int
    """The position of the first response token."""
    images: tuple[EncodedImage, ...]

    def __len__(self) -> int:
        return int(self.input_ids_L.numel())

    def with_images(self, images: tuple[EncodedImage, ...]) -> EncodedPrompt:
        return replace(self, images=images)


class PromptEncoder:
    """Encodes prompts for one model; remembers the latest ones within a byte budget."""

    def __init__(self, model: Any, tokenizer: Any, image_processor: Any) -> None:
        self.tokenizer, self.image_processor = tokenizer, image_processor
        self._rope_index = model.model.get_rope_index
        config = model.config
        self.image_token_id: int = config.image_token_id
        self._vision_marks = (config.vision_start_token_id, config.vision_end_token_id)
        self._before, self._after = self._frame()
        self._specials = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
        self._cache: OrderedDict[str, EncodedPrompt] = OrderedDict()
        self._cache_bytes = 0
        self.cache_limit = 512 * 2**20

    def _frame(self) -> tuple[str, str]:
        """The chat template's text before and after the user's content."""
        messages = [{"role": "system", "content": template.SYSTEM}, {"role": "user", "content": CONTENT}]
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        before, found, after = text.partition(CONTENT)
        if not found:
            raise UserError(
                "the model's chat template does not print the user's text; expected a Qwen-like template"
            )
        return before, after

    @property
    def image_limits(self) -> tuple[int, int]:
        """Smallest and largest image area after resizing, in pixels."""
        size = self.image_processor.size
        return size["shortest_edge"], size["longest_edge"]

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """Ids, positions and patches of a prompt."""
        known = self._cache.get(prompt.id)
        if known is not None and known.prompt == prompt:
            self._cache.move_to_end(prompt.id)
            return known
        try:
            images = tuple(self.encode_image(open_rgb(source)) for source in prompt.images)
        except ImageError as cause:
            raise UnreadablePrompt(
                f"prompt {prompt.id!r} has an image that cannot be used: {cause}"
            ) from cause
        encoded = self._assemble(prompt, images)
        self._remember(encoded)
        return encoded

    def encode_image(self, image: Image.Image) -> EncodedImage:
        """One RGB image through the model's own resize, normalisation and patch order."""
        out: BatchFeature = self.image_processor(images=[image], return_tensors="pt")
        t, h, w = out["image_grid_thw"][0].tolist()
        return EncodedImage(out["pixel_values"].float(), (t, h, w))

    def count_tokens(self, prompt: Prompt) -> int:
        """The prompt's length, from the text and the images' sizes alone: no pixel is decoded."""
        sizes = [source.open().size for source in prompt.images]
        # The empty settings are for transformers 5.9, which does not do without them.
        patches = self.image_processor.get_number_of_image_patches
        counts = [patches(height, width, {}) for width, height in sizes]
        return len(self._token_ids(prompt, [count // self.image_processor.merge_size**2 for count in counts]))

    def text_ids(self, prompt: Prompt) -> list[int]:
        """The prompt with one image token an image, for engines that multiply it themselves."""
        return self._token_ids(prompt, [1] * len(prompt.images))

    def resized(self, image: Image.Image) -> Image.Image:
        """An RGB image at the size that `encode_image` brings it to, with the same pixels."""
        processor = self.image_processor
        min_pixels, max_pixels = self.image_limits
        height, width = smart_resize(
            image.height,
            image.width,
            factor=processor.patch_size * processor.merge_size,
            min_pixels=min_pixels,
            max_pixels=max_pixels,
        )
        return image.resize((width, height), processor.resample)

    def _assemble(self, prompt: Prompt, images: tuple[EncodedImage, ...]) -> EncodedPrompt:
        merged = self.image_processor.merge_size**2
        ids = torch.tensor(self._token_ids(prompt, [math.prod(image.grid_thw) // merged for image in images]))
        is_image = ids == self.image_token_id
        if images:
            grids = torch.tensor([image.grid_thw for image in images])
            positions, _ = self._rope_index(
                ids[None], mm_token_type_ids=is_image.int()[None], image_grid_thw=grids
            )
            positions = positions[:, 0]
        else:
            positions = torch.arange(ids.numel()).expand(3, -1)
        return EncodedPrompt(prompt, ids, positions, int(positions.max()) + 1, images)

    def _token_ids(self, prompt: Prompt, num_image_tokens: Sequence[int]) -> list[int]:
        """The framed user text; each image becomes its marks and as many image tokens as it has features.

        Text is tokenised in one piece between images, as the chat template's own text would be. Only where a
        problem spells out a special token is it tokenised apart, so that data never becomes a control token.
        """
        ids: list[int] = []
        pending = self._before
        for part in template.segments(prompt):
            if isinstance(part, template.ImagePlace):
                ids += self._tokenize(pending)
                start, end = self._vision_marks
                ids += [start, *[self.image_token_id] * num_image_tokens[part.index], end]
                pending = ""
            elif any(special in part for special in self._specials):
                ids += self._tokenize(pending) + self._tokenize(part, split_special_tokens=True)
                pending = ""
            else:
                pending += part
        return ids + self._tokenize(pending + self._after)

    def _tokenize(self, text: str, **options: bool) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, **options)["input_ids"] if text else []

    def _remember(self, encoded: EncodedPrompt) -> None:
        replaced = self._cache.pop(encoded.prompt.id, None)
        self._cache_bytes -= 0 if replaced is None else _num_bytes(replaced)
        self._cache[encoded.prompt.id] = encoded
        self._cache_bytes += _num_bytes(encoded)
        while self._cache_bytes > self.cache_limit and len(self._cache) > 1:
            self._cache_bytes -= _num_bytes(self._cache.popitem(last=False)[1])


def _num_bytes(encoded: EncodedPrompt) -> int:
    return sum(image.patches_NC.nbytes for image in encoded.images) + encoded.input_ids_L.nbytes * 4
