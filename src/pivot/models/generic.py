"""Every model that no other file here knows: Hugging Face's whole forward, one row at a time.

Image tokens come from the model's own processor, and pixels enter the model with the row that holds them. Nothing is
shared, cached or padded: slower than a family with a file of its own, and exact. `check_forward` refuses models that
do not fit, such as those whose text is not causal.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
import transformers
from PIL import Image
from torch import Tensor, nn
from transformers import AutoImageProcessor
from transformers.cache_utils import Cache
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from pivot.errors import UserError
from pivot.models.corruption import Canvas
from pivot.models.decoding import Continuation, PrefilledPrompts, RepeatedContinuation
from pivot.models.family import EncodedImage, Family, ImageFeatures

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 2e-2}
"""Of logits relative to the largest."""
PER_TOKEN = ("mm_token_type_ids", "token_type_ids")
"""Inputs that are 1 for image tokens and 0 for text, by the names that models give them."""


@dataclass(frozen=True)
class ProcessedImage(EncodedImage):
    """`values` are the processor's pixels as they are; `grid` holds the image's tokens."""

    inputs: dict[str, Tensor] = None  # type: ignore[assignment] - always given; a base class has no default
    """What the processor returns beside them."""


@dataclass(frozen=True)
class ImageInputs(ImageFeatures):
    """An image before the vision tower: `tokens_ND` are its pixels."""

    inputs: dict[str, Tensor] = None  # type: ignore[assignment]
    num_tokens: int = 0


class RowCaches(list[Any]):
    """One cache per prompt, as the model itself makes it."""


class _WithoutVideos:
    """Before a processor's own class: its part for videos may be missing, which would need torchvision."""

    def check_argument_for_proper_class(self, name: str, argument: Any) -> None: ...


def build_processor(name: str, image_processor: Any, tokenizer: Any, settings: Mapping[str, Any]) -> Any:
    """Hugging Face's processor class of that name, without its part for videos."""
    try:
        kind = getattr(transformers, name)
        parts = {"image_processor": image_processor, "tokenizer": tokenizer}
        given = [parts.get(part) for part in kind.get_attributes()]
        return type(name, (_WithoutVideos, kind), {}).from_args_and_dict(given, dict(settings))
    except ImportError as cause:
        reason = " ".join(str(cause).split()).partition(". ")[0]
        raise UserError(f"the model's {name} cannot be used ({reason}); install what it needs") from cause


class GenericFamily(Family):
    """Works wherever the model has a chat template, an image token and a processor that runs here."""

    encodes_apart: ClassVar[bool] = False

    def __init__(self, model: Any, tokenizer: Any, image_processor: Any) -> None:
        settings = model.config.to_dict()
        found = settings.get("image_token_id", settings.get("image_token_index"))
        if found is None:
            raise UserError(f"{model.config.model_type} models have no image token; use a model that has one")
        if model.config.is_encoder_decoder:
            raise UserError(
                f"{model.config.model_type} models have an encoder for text; use a decoder-only model"
            )
        model.config.image_token_id = found
        super().__init__(model, tokenizer, image_processor)
        self._forward_names = set(inspect.signature(model.model.forward).parameters)
        self._rope_index = getattr(model.model, "get_rope_index", None)
        self._logit_scale = 1.0

    @classmethod
    def load_image_processor(cls, path: str) -> Any:
        try:
            return AutoImageProcessor.from_pretrained(path, backend="pil")
        except ImportError as cause:
            raise UserError(
                f"the image processor of {path} needs torchvision: pip install torchvision"
            ) from cause

    @cached_property
    def processor(self) -> Any:
        """The model's own, without its part for videos."""
        name = self.processor_config.get("processor_class") or PROCESSOR_MAPPING_NAMES.get(
            self.config.model_type
        )
        if name is None:
            raise UserError(f"{self.config.model_type} models have no processor; use a model that has one")
        return build_processor(name, self.image_processor, self.tokenizer, self.processor_config)

    # Text ------------------------------------------------------------------------------------------------

    @property
    def image_mark(self) -> str:  # type: ignore[override]
        return self.processor.image_token

    def placeholder_ids(self, grid: tuple[int, ...]) -> list[int]:
        return list(grid)

    def engine_placeholder_ids(self) -> list[int]:
        return list(self.tokenizer(self.image_mark, add_special_tokens=False)["input_ids"])

    def banned_ids(self) -> list[int]:
        special = set(self.tokenizer.get_added_vocab().values())
        return sorted({self.image_token_id, *(set(self.blank_image().grid) & special)})

    def positions(self, input_ids_L: Tensor, images: Sequence[EncodedImage]) -> Tensor:
        if self._rope_index is None:
            return super().positions(input_ids_L, images)
        if not images:
            return super().positions(input_ids_L, images).expand(3, -1)
        grids = torch.cat([image.inputs["image_grid_thw"] for image in images])  # type: ignore[attr-defined]
        types = (input_ids_L == self.image_token_id).int()[None]
        known = inspect.signature(self._rope_index).parameters
        more = {"mm_token_type_ids": types} if "mm_token_type_ids" in known else {}
        return self._rope_index(input_ids_L[None], image_grid_thw=grids, **more)[0][:, 0]

    # Images ----------------------------------------------------------------------------------------------

    @staticmethod
    def image_limits(image_processor: Any) -> tuple[int, int]:
        """The area of the processor's size; how it uses that size is unknown."""
        edges = dict(image_processor.size or {})
        long = edges.get("longest_edge") or edges.get("shortest_edge") or 1
        area = edges.get("height", long) * edges.get("width", long)
        return area, area

    @staticmethod
    def limit_images(image_processor: Any, min_pixels: int | None, max_pixels: int | None) -> None:
        if min_pixels is not None or max_pixels is not None:
            raise UserError(
                "model.min_pixels and model.max_pixels have no meaning for this family of models; change the size in "
                "its preprocessor_config.json"
            )

    def encode_image(self, image: Image.Image) -> EncodedImage:
        out = dict(
            self.processor(
                images=[image], text=self.image_mark, return_tensors="pt", add_special_tokens=False
            )
        )
        ids = out.pop("input_ids")
        pixels = out.pop("pixel_values")
        inputs = {k: v for k, v in out.items() if k in self._forward_names - {"attention_mask", *PER_TOKEN}}
        return ProcessedImage(pixels, tuple(ids[0].tolist()), self, inputs)

    def model_pixels(self, image: EncodedImage) -> Tensor:
        return image.values

    def canvas(self, image: EncodedImage) -> Canvas:
        tiles = self._tiles(image)
        values = (tiles.values * self.std + self.mean) * 255.0
        return super().canvas(replace(tiles, values=values))

    def repaint(self, image: EncodedImage, where: Tensor | bool, values: Tensor | float) -> EncodedImage:
        """Pixels that do not change keep the processor's value to the last bit."""
        tiles = self._tiles(image).values
        new = (torch.as_tensor(values) / 255.0 - self.mean) / self.std
        return replace(image, values=torch.where(torch.as_tensor(where), new, tiles).view(image.values.shape))

    def _tiles(self, image: EncodedImage) -> EncodedImage:
        """With values [tile, channel, height, width]."""
        if image.values.ndim < 4 or image.values.shape[-3] != self.mean.shape[1]:
            raise UserError(
                f"it is not known where the patches of {self.config.model_type} models are; set corruption.raw=true"
            )
        return replace(image, values=image.values.flatten(0, -4))

    # Weights ---------------------------------------------------------------------------------------------

    @classmethod
    def text_model(cls, model: Any) -> Any:
        return model.get_decoder()

    @classmethod
    def adapter_targets(cls) -> str:
        return r"model\..*(language_model|text_model)\..*\.(q|k|v|o|gate|up|down)_proj"

    @classmethod
    def vision_parameters(cls, model: Any) -> Iterator[nn.Parameter]:
        """All of the model that is neither its language model nor its head."""
        heads = (cls.text_model(model), model.get_output_embeddings())
        text = {id(parameter) for module in heads for parameter in module.parameters()}
        yield from (parameter for parameter in model.parameters() if id(parameter) not in text)

    def image_features(self, model: Any, images: Sequence[EncodedImage]) -> list[ImageFeatures]:
        return [
            ImageInputs(image.values, (), image.inputs, image.grid.count(self.image_token_id))
            for image in images
            if isinstance(image, ProcessedImage)
        ]

    def embed(self, model: Any, input_ids_RL: Tensor, images: Sequence[ImageFeatures]) -> dict[str, Any]:
        return {"input_ids": input_ids_RL, "images": images}

    def hidden(
        self,
        model: Any,
        inputs: dict[str, Any],
        position_ids_ARL: Tensor,
        attention_mask: Tensor | None,
        cache: Any = None,
    ) -> Tensor:
        """Row by row, except where all rows continue one prompt."""
        ids_RL = inputs["input_ids"]
        if isinstance(cache, Cache):
            return self._run(model, ids_RL, position_ids_ARL, past_key_values=cache, use_cache=True)[0]
        images = iter(inputs["images"])
        rows = []
        for row, ids_L in enumerate(ids_RL):
            start = 0 if attention_mask is None else int((~attention_mask[row]).sum())
            own = self._take(images, int((ids_L == self.image_token_id).sum()))
            hidden_1LD, made = self._run(
                model,
                ids_L[None, start:],
                position_ids_ARL[:, row : row + 1, start:],
                own,
                use_cache=cache is not None,
            )
            rows.append(hidden_1LD if cache is None else hidden_1LD[:, -1:])
            if cache is not None:
                cache.append(made)
        return torch.cat(rows)

    def _run(
        self,
        model: Any,
        ids_RL: Tensor,
        positions_ARL: Tensor,
        images: Sequence[ImageInputs] = (),
        **options: Any,
    ) -> tuple[Tensor, Any]:
        """Hidden states, scaled as the logits are, and the cache."""
        if self._rope_index is not None:
            options["position_ids"] = positions_ARL.expand(3, -1, -1)
        if images:
            options["pixel_values"] = torch.cat([image.tokens_ND for image in images]).to(
                model.device, model.dtype
            )
            for name in images[0].inputs:
                options[name] = torch.cat([image.inputs[name] for image in images]).to(model.device)
            for name in self._forward_names.intersection(PER_TOKEN):
                options[name] = (ids_RL == self.image_token_id).long()
        out = model.model(input_ids=ids_RL, **options)
        return out.last_hidden_state * self._logit_scale, out.past_key_values

    @staticmethod
    def _take(images: Iterator[ImageInputs], num_tokens: int) -> list[ImageInputs]:
        """The images of a row with that many image tokens."""
        taken: list[ImageInputs] = []
        while sum(image.num_tokens for image in taken) < num_tokens:
            taken.append(next(images))
        return taken

    def new_cache(self, model: Any) -> Any:
        return RowCaches()

    def prefill_mask(self, model: Any, seen_PL: Tensor) -> Tensor:
        return seen_PL

    def continuation(
        self, model: Any, prompts: PrefilledPrompts, num_samples: int, max_tokens: int
    ) -> Continuation:
        """One cohort per prompt: its responses are equally long."""
        parts = zip(prompts.cache, prompts.seen_PL, prompts.next_position_P, strict=True)
        first, *others = (
            RepeatedContinuation(
                self, model, PrefilledPrompts(cache, seen_L[None, seen_L], position[None]), num_samples
            )
            for cache, seen_L, position in parts
        )
        for other in others:
            first.join(other)
        return first

    @torch.no_grad()
    def check_forward(self, model: Any) -> None:
        """The text must be causal, and the logits a multiple of hidden states times head."""
        kind, most = self.config.model_type, TOLERANCE[model.dtype]
        ids = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 9]], device=model.device)
        positions = torch.arange(4, device=model.device).expand(1, 1, 4)
        first, second = (self._run(model, row[None], positions)[0][0] for row in ids)
        if not torch.allclose(first[:3], second[:3], rtol=most, atol=most):
            raise UserError(
                f"{kind} models are not causal: a token's score depends on later ones; use another model"
            )
        found = model(input_ids=ids[:1]).logits[0].float()
        product = (first @ model.get_output_embeddings().weight.T).float()
        scale = float((found * product).sum() / product.square().sum())
        if float((found - scale * product).abs().max()) > most * float(found.abs().max()):
            raise UserError(f"{kind} models change their logits after the head; use another model")
        self._logit_scale = 1.0 if abs(scale - 1) < most else scale

    # Sizes -----------------------------------------------------------------------------------------------

    @classmethod
    def patch_side(cls, config: Any) -> int:
        """16 where the configuration does not say; corruptions of the raw image use it."""
        vision = config.to_dict().get("vision_config") or {}
        size = vision.get("patch_size", 16)
        return size[0] if isinstance(size, list | tuple) else size

    @classmethod
    def patches_per_token(cls, config: Any) -> int:
        """Not known; 1 asks for the most memory."""
        return 1
