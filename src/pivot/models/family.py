"""Everything that differs between families of vision-language models, behind one interface.

A new family is one file with a subclass of `Family` and one line per model type in `FAMILIES`. It must say how an image
is encoded and which tokens stand for it. All else has a default that runs Hugging Face's own forward: one row per
response, prompts repeated in the cache. That gives exact numbers; faster implementations override it (`qwen_vl.py`).
A model type that is not in `FAMILIES` runs through `generic.py`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from PIL import Image
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache, DynamicCache
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from pivot.data.template import Segment
from pivot.errors import UserError
from pivot.models.chat_template import frame_of
from pivot.models.corruption import GREY, Canvas
from pivot.models.decoding import Continuation, PrefilledPrompts, RepeatedContinuation
from pivot.models.turns import SYSTEM, Turn, read_turn
from pivot.types import Prompt

FAMILIES: dict[str, str | type[Family]] = {
    "qwen2_vl": "pivot.models.qwen_vl:QwenVL",
    "qwen2_5_vl": "pivot.models.qwen_vl:QwenVL",
    "qwen3_vl": "pivot.models.qwen_vl:QwenVL",
    "qwen3_vl_moe": "pivot.models.qwen_vl:QwenVL",
    "qwen3_5": "pivot.models.qwen3_5:Qwen35",
    "qwen3_5_moe": "pivot.models.qwen3_5:Qwen35",
    "idefics3": "pivot.models.idefics3:Idefics3",
    "smolvlm": "pivot.models.idefics3:Idefics3",
    "internvl": "pivot.models.internvl:InternVL",
    "gemma3": "pivot.models.gemma3:Gemma3",
    "llava_onevision": "pivot.models.llava_onevision:LlavaOnevision",
}
"""`model_type` of a model's config.json -> its family, or where to import it from."""
GENERIC = "pivot.models.generic:GenericFamily"
"""For every other model that reads images and writes text."""

Layout = Literal["tree", "repeated"]
"""How responses are laid out in a forward pass: see `rows.py`."""

CONTENT = "\N{OBJECT REPLACEMENT CHARACTER}content\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands for the user's text while the chat template is rendered."""


def find_family(model_type: str) -> type[Family]:
    """The family of a `model_type`; a UserError if transformers knows no such model that reads images."""
    if model_type not in FAMILIES and model_type not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        raise UserError(
            f"{model_type} models are not supported: transformers has no image-text-to-text model of that type"
        )
    found = FAMILIES.get(model_type, GENERIC)
    if isinstance(found, str):
        module, _, name = found.partition(":")
        found = FAMILIES[model_type] = vars(importlib.import_module(module))[name]
        assert not isinstance(found, str)
    return found


def register_family(model_type: str, family: type[Family]) -> None:
    """Make a family from outside this package known in this process, by the `model_type` of a model's config.json."""
    FAMILIES[model_type] = family


@dataclass(frozen=True)
class EncodedImage:
    """One image after the model's image processor, as small as it can be kept."""

    values: Tensor
    """Pixel values 0..255 in a shape of the family's own: uint8, or float32 where a corruption leaves fractions."""
    grid: tuple[int, ...]
    """How the family cuts the image; decides the number of its tokens."""
    family: Family = field(repr=False)

    @property
    def pixels(self) -> Tensor:
        """float32, normalised, in the shape that the model takes."""
        return self.family.model_pixels(self)


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as the model reads it."""

    prompt: Prompt
    input_ids_L: Tensor
    position_ids_AL: Tensor
    """One or more position axes, as the family has them."""
    next_position: int
    """The position of the first response token, on every axis."""
    images: tuple[EncodedImage, ...]
    hides_images: bool = False
    """Whether its image tokens were taken out, see `without_images`."""

    def __len__(self) -> int:
        return int(self.input_ids_L.numel())

    def with_images(self, images: tuple[EncodedImage, ...]) -> EncodedPrompt:
        return replace(self, images=images)

    def without_images(self, image_token_id: int) -> EncodedPrompt:
        """The prompt with nothing attending to its image tokens: all others keep their positions.

        Tokens meet in attention alone, so leaving those that are never seen out of the row changes no other token.
        """
        seen_L = self.input_ids_L != image_token_id
        ids_L, positions_AL = self.input_ids_L[seen_L], self.position_ids_AL[:, seen_L]
        return replace(self, input_ids_L=ids_L, position_ids_AL=positions_AL, images=(), hides_images=True)


@dataclass(frozen=True)
class ImageFeatures:
    """What the language model receives for one image."""

    tokens_ND: Tensor
    layers_ND: tuple[Tensor, ...] = ()
    """Further features that are added after the first layers of the language model, in families that do so."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.tokens_ND, *self.layers_ND)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True)
class Stack:
    """Sizes of equal transformer layers."""

    layers: int
    hidden: int
    intermediate: int
    query_width: int
    """Heads times head size."""
    key_width: int
    """Key heads times head size, of keys and of values."""

    @property
    def projections(self) -> int:
        """Weights of all matrices of the attention and the gated MLP, without biases."""
        attention = 2 * self.hidden * (self.query_width + self.key_width)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    def activation_bytes(self, size: int, *, is_vision: bool = False) -> int:
        """Bytes per token that autograd keeps of one Llama-like layer.

        In a dtype of `size` bytes: inputs of the matrix products, q k v before and after rotation, the gated MLP. In
        float32: tensors of the two norms. The vision tower rotates in float32.
        """
        width = 11 * self.hidden if is_vision else 4 * self.hidden + 2 * self.query_width + 2 * self.key_width
        return size * (width + 4 * self.intermediate) + 4 * 2 * self.hidden


class Family(ABC):
    """What one family does with text, images and weights.

    An instance belongs to one model's files. Methods that need weights take the model as an argument, because an engine
    may hold them elsewhere (sharded over ranks) or not at all.
    """

    image_processor_class: ClassVar[Any]
    """Hugging Face's PIL image processor: the one without torchvision."""
    text_name: ClassVar[str] = "language_model"
    """Name of the language model within `model.model`."""
    published: ClassVar[Mapping[str, Callable[[], dict[str, Any]]]] = {}
    """Part of a published model's name -> settings of its configuration; the first that fits counts."""
    vision_names: ClassVar[tuple[str, ...]]
    """Names of the vision tower and what connects it to the language model, within `model.model`."""
    image_mark: str | None = None
    """What the chat template prints for an image; None: an image in the text is all that it needs to know."""
    encodes_apart: ClassVar[bool] = True
    """Whether images are encoded on their own, before rows are; engines that shard weights need that."""
    shares_prefixes: ClassVar[bool] = False
    """Whether sibling responses can share their prompt in one row (layout `tree`)."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, image_processor: Any
    ) -> None:
        self.config: Any = model.config
        self.tokenizer: Any = tokenizer
        self.image_processor = image_processor
        self.image_token_id: int = self.config.image_token_id
        self.processor_config: dict[str, Any] = {}
        """The processor_config.json of the model's files, without the parts that have a file of their own."""
        self._turns: dict[bool, Turn] = {}
        self._text_frames: dict[bool, tuple[str, str]] = {}
        self.mean = torch.tensor(image_processor.image_mean).view(1, -1, 1, 1)
        self.std = torch.tensor(image_processor.image_std).view(1, -1, 1, 1)

    # Required --------------------------------------------------------------------------------------------

    @abstractmethod
    def encode_image(self, image: Image.Image) -> EncodedImage:
        """One RGB image through the model's own resizing and normalisation."""

    @abstractmethod
    def placeholder_ids(self, grid: tuple[int, ...]) -> list[int]:
        """The tokens that stand for an image in the prompt, with one image token per feature."""

    @staticmethod
    @abstractmethod
    def image_limits(image_processor: Any) -> tuple[int, int]:
        """Smallest and largest image area after resizing, in pixels."""

    @staticmethod
    @abstractmethod
    def limit_images(image_processor: Any, min_pixels: int | None, max_pixels: int | None) -> None:
        """Change these limits in place; None: leave one as it is."""

    @classmethod
    def load_image_processor(cls, path: str) -> Any:
        """From a model's folder or hub id."""
        return cls.image_processor_class.from_pretrained(path)

    # Text ------------------------------------------------------------------------------------------------

    def frame(self, starts_with_image: bool, with_system: bool = True) -> tuple[str, str]:
        """The chat template's text before and after the user's content; `SYSTEM` stands for the system message."""
        before, after = self._text_frame(with_system)
        turn = self._turn(with_system) if starts_with_image else None
        return (before if turn is None else turn.opening), after

    def arrange(self, segments: Sequence[Segment], expanded: bool) -> Sequence[Segment]:
        """The user's texts and images in the order and with the text that the chat template prints around images.

        `expanded`: for the model itself, with what its processor adds; otherwise for engines that add it on their own.
        """
        turn = self._turn(True)
        return segments if turn is None else turn.arrange(segments)

    def _turn(self, with_system: bool) -> Turn | None:
        if self.image_mark is None:
            return None
        if with_system not in self._turns:
            self._turns[with_system] = read_turn(self.tokenizer, self.image_mark, with_system)
        return self._turns[with_system]

    def _text_frame(self, with_system: bool) -> tuple[str, str]:
        if with_system not in self._text_frames:
            self._text_frames[with_system] = self._read_text_frame(with_system)
        return self._text_frames[with_system]

    def _read_text_frame(self, with_system: bool) -> tuple[str, str]:
        as_text, as_parts = (
            [*[{"role": "system", "content": system}] * with_system, {"role": "user", "content": user}]
            for system, user in (
                (SYSTEM, CONTENT),
                ([{"type": "text", "text": SYSTEM}], [{"type": "text", "text": CONTENT}]),
            )
        )
        return frame_of(self.tokenizer, (as_text, as_parts), CONTENT)

    def engine_placeholder_ids(self) -> list[int]:
        """The tokens of an image for engines that expand them on their own, such as vLLM."""
        return [self.image_token_id]

    def banned_ids(self) -> list[int]:
        """Tokens that must never be sampled: an image token in a response would break the next forward pass."""
        return [self.image_token_id]

    def positions(self, input_ids_L: Tensor, images: Sequence[EncodedImage]) -> Tensor:
        """Position ids [axes, L] of a prompt."""
        return torch.arange(input_ids_L.numel())[None]

    # Images ----------------------------------------------------------------------------------------------

    @property
    def patch_size(self) -> int:
        """Side of the ViT's patches, in pixels."""
        return self.patch_side(self.config)

    def grid_of(self, width: int, height: int) -> tuple[int, ...]:
        """The grid of an image of this size."""
        return self.encode_image(Image.new("RGB", (width, height))).grid

    def encode_beside_others(self, image: Image.Image) -> EncodedImage:
        """An image of a prompt with several; most families encode it as if it were the only one."""
        return self.encode_image(image)

    def grid_beside_others(self, width: int, height: int) -> tuple[int, ...]:
        """The grid of an image of a prompt with several."""
        return self.grid_of(width, height)

    def resized(self, image: Image.Image) -> Image.Image:
        """The image at the size at which other engines should receive it."""
        return image

    def processor_settings(self) -> dict[str, Any]:
        """Settings that give another engine's image processor the same limits as this one."""
        return {}

    def blank_image(self) -> EncodedImage:
        """A small image without content."""
        return self.encode_image(Image.new("RGB", (32, 32), (int(GREY),) * 3))

    def canvas(self, image: EncodedImage) -> Canvas:
        """The image for a corruption. Default: `values` are tiles [tile, channel, height, width]."""
        num_tiles, _, height, width = image.values.shape
        rows, columns = height // self.patch_size, width // self.patch_size
        row_H, column_W = torch.arange(height) // self.patch_size, torch.arange(width) // self.patch_size
        patch_HW = row_H.clamp(max=rows - 1)[:, None] * columns + column_W.clamp(max=columns - 1)
        tile_T = torch.arange(num_tiles)[:, None, None, None]
        centre_N2 = torch.cartesian_prod(
            (torch.arange(rows) + 0.5) / rows, (torch.arange(columns) + 0.5) / columns
        )
        return Canvas(
            values=image.values.float(),
            patch=tile_T * (rows * columns) + patch_HW,
            centre_N2=centre_N2.repeat(num_tiles, 1),
        )

    def repaint(self, image: EncodedImage, where: Tensor | bool, values: Tensor | float) -> EncodedImage:
        """The image with other pixel values (0..255) in some places; both arguments broadcast against the canvas."""
        if isinstance(values, float) and values.is_integer():
            values = torch.tensor(int(values), dtype=torch.uint8)
        painted = torch.where(torch.as_tensor(where), torch.as_tensor(values), image.values)
        return replace(image, values=painted)

    def model_pixels(self, image: EncodedImage) -> Tensor:
        """The image as the model receives it: normalised as the processor does it, to the last bit."""
        return (image.values / 255.0 - self.mean) / self.std

    def pixel_values(self, pixels: Tensor) -> Tensor:
        """The processor's output turned back into the pixel values 0..255 that it came from."""
        return ((pixels.float() * self.std + self.mean) * 255.0).round().to(torch.uint8)

    def picture(self, image: EncodedImage) -> Image.Image:
        """The encoded image turned back into a picture, for people to look at. Default: its first tile."""
        return self._to_picture(self.canvas(image).values[0])

    @staticmethod
    def _to_picture(values_CHW: Tensor) -> Image.Image:
        pixels_HWC = values_CHW.permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8)
        return Image.fromarray(pixels_HWC.contiguous().numpy())

    # Weights ---------------------------------------------------------------------------------------------

    @classmethod  # noqa: B027 - nothing to do by default
    def prepare(cls, model: Any) -> None:
        """Replace forwards by faster ones with the same results, in place."""

    def check_forward(self, model: Any) -> None:  # noqa: B027 - nothing to check by default
        """Raise a UserError if the model's forward cannot be used."""

    @classmethod
    def text_model(cls, model: Any) -> Any:
        return model.model.get_submodule(cls.text_name)

    def body(self, model: Any) -> Any:
        """The module that turns inputs into hidden states."""
        return self.text_model(model)

    @classmethod
    def text_layers(cls, model: Any) -> Sequence[nn.Module]:
        """The layers of the language model, in order."""
        return cls.text_model(model).layers

    @classmethod
    def adapter_targets(cls) -> str:
        """Regular expression for the linear layers that low-rank adapters are added to."""
        return rf"model\.{cls.text_name}\..*\.(q|k|v|o|gate|up|down)_proj"

    @classmethod
    def vision_parameters(cls, model: Any) -> Iterator[nn.Parameter]:
        for name in cls.vision_names:
            yield from model.model.get_submodule(name).parameters()

    def layout(self, attention: str) -> Layout:
        """The fastest layout for an attention kernel."""
        return "tree" if self.shares_prefixes and attention == "sdpa" else "repeated"

    def image_features(self, model: Any, images: Sequence[EncodedImage]) -> list[ImageFeatures]:
        """All images through the vision tower in one call; differentiable where gradients are on."""
        if not images:
            return []
        tokens_TND = self.tile_features(model, torch.cat([image.pixels for image in images]))
        return [
            ImageFeatures(tokens.flatten(0, 1))
            for tokens in tokens_TND.split([len(image.values) for image in images])
        ]

    def tile_features(self, model: Any, pixels: Tensor) -> Tensor:
        """Tiles [T, ...] -> [T, tokens, D]."""
        pixels = pixels.to(model.device, model.dtype)
        return model.model.get_image_features(pixels, return_dict=True).pooler_output

    def embed(self, model: Any, input_ids_RL: Tensor, images: Sequence[ImageFeatures]) -> dict[str, Any]:
        """Inputs of the language model: token embeddings, image features in the places of the image tokens."""
        embeds_RLD = model.get_input_embeddings()(input_ids_RL)
        if not images:
            return {"inputs_embeds": embeds_RLD}
        is_image_RL = input_ids_RL == self.image_token_id
        tokens_ND = torch.cat([image.tokens_ND for image in images]).to(embeds_RLD.dtype)
        return {"inputs_embeds": embeds_RLD.masked_scatter(is_image_RL[..., None], tokens_ND)}

    def hidden(
        self,
        model: Any,
        inputs: dict[str, Any],
        position_ids_ARL: Tensor,
        attention_mask: Tensor | None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Last hidden states [R, L, D]. Without a mask the rows are causal."""
        return self.body(model)(
            **inputs,
            position_ids=self.text_positions(position_ids_ARL),
            attention_mask=attention_mask,
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state

    def new_cache(self, model: Any) -> Any:
        """An empty cache of keys and values."""
        return DynamicCache()

    def text_positions(self, position_ids_ARL: Tensor) -> Tensor:
        """Position ids in the shape that the language model takes."""
        return position_ids_ARL[0]

    def prefill_mask(self, model: Any, seen_PL: Tensor) -> Tensor:
        """Attention mask of left-padded prompts; `seen_PL` is False where padded."""
        return seen_PL.long()

    def continuation(
        self, model: Any, prompts: PrefilledPrompts, num_samples: int, max_tokens: int
    ) -> Continuation:
        """Decodes `num_samples` responses per prompt, token by token."""
        return RepeatedContinuation(self, model, prompts, num_samples)

    # Sizes, for memory estimates -------------------------------------------------------------------------

    @classmethod
    def published_config(cls, name: str) -> tuple[str, PretrainedConfig] | None:
        """Name and configuration of a published model whose files are not on this machine; None: unknown."""
        for published, settings in cls.published.items():
            if published.lower() in name.lower():
                return published, AutoConfig.for_model(**settings())
        return None

    @classmethod
    def text_stack(cls, config: Any) -> Stack:
        """The layers of the language model."""
        text = config.get_text_config()
        # Some configurations state the head size; others divide the width by the number of heads.
        sizes = text.to_dict()
        head = sizes.get("head_dim") or text.hidden_size // text.num_attention_heads
        # A token passes through some of a layer's experts, and where there is one through the shared expert.
        experts = (sizes.get("num_experts_per_tok") or 0) * sizes.get("moe_intermediate_size", 0)
        shared = sizes.get("shared_expert_intermediate_size") or 0
        return Stack(
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            intermediate=experts + shared if experts else text.intermediate_size,
            query_width=text.num_attention_heads * head,
            key_width=text.num_key_value_heads * head,
        )

    @classmethod
    def vision_stack(cls, config: Any) -> Stack:
        """The layers of the vision tower."""
        vision = config.vision_config
        width = vision.hidden_size
        return Stack(vision.num_hidden_layers, width, vision.intermediate_size, width, width)

    @classmethod
    def patch_side(cls, config: Any) -> int:
        """Side of the ViT's patches, in pixels."""
        return side_of(config.vision_config.patch_size)

    @classmethod
    @abstractmethod
    def patches_per_token(cls, config: Any) -> int:
        """ViT patches that one image token of the language model stands for."""


def side_of(size: Any) -> int:
    """Of a square, which some configurations write as one number and others as two."""
    return size[0] if isinstance(size, list | tuple) else size
