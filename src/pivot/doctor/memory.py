"""How much memory a configuration needs on one device, item by item.

The micro-batch is as full as its budget allows. `benchmarks/memory.py` compares the sum with what the real code
allocates for the real 3B and 7B models; a test does so for a few layers of one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pivot.config.sections import Config
from pivot.doctor.machine import Device
from pivot.engines.optimizer import BUCKET_BYTES
from pivot.method.statistics import CHUNK_BYTES
from pivot.models.architecture import Architecture
from pivot.models.family import Stack
from pivot.models.policy import FEATURE_CACHE_BYTES
from pivot.sampling.decoder import HEAD_CHUNK_ELEMENTS
from pivot.sampling.native import CPU_BATCH_TOKENS

Phase = Literal["always", "rollout", "training", "update", "step", "host"]
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
MOMENT_BYTES = {"adamw": 8.0, "adamw_8bit": 2.0 + 8 / 256}
"""AdamW's two moments per weight: float32, or 8 bits with a scale per 256 values."""
QUANTIZED_BYTES = 0.5 + 4 / 64
"""A 4-bit weight and its share of a block's float32 scale."""
DEFAULT_MAX_PIXELS = 1003520
"""The paper's limit, where neither the configuration nor the model's files set one."""
COPIES = 3
"""Buffers of a chunk's logits that the head and sampling hold at once."""
TEXT_TOKENS = 150
"""Of a prompt besides its image: the instructions and a question as in Geometry3K."""
RESPONSE_TOKENS = 400
"""Mean length of a response, as 3B and 7B models give on Geometry3K."""


@dataclass(frozen=True)
class Item:
    """One line of the estimate."""

    name: str
    num_bytes: int
    phase: Phase
    """`rollout`, `update` and `step` (the optimizer's) take turns; `training` is held in the last two; `host` is the
    machine's memory, not the GPU's."""
    note: str


@dataclass(frozen=True)
class Estimate:
    """All items; the peak is what is always held plus the largest of the phases."""

    items: tuple[Item, ...]

    def total(self, phase: Phase) -> int:
        return sum(item.num_bytes for item in self.items if item.phase == phase)

    @property
    def training(self) -> int:
        """The peak of forward, backward and optimizer step."""
        held = self.total("always") + self.total("training")
        return held + max(self.total("update"), self.total("step"))

    @property
    def peak(self) -> int:
        return max(self.total("always") + self.total("rollout"), self.training)

    @property
    def host(self) -> int:
        return self.total("host")


@dataclass(frozen=True)
class MicroBatchShape:
    """The fullest micro-batch: equal prompts with one image each, and equal responses."""

    num_prompts: int
    prompt_tokens: int
    image_tokens: int
    responses: int
    """Per prompt."""
    response_tokens: int

    @property
    def tokens(self) -> int:
        return self.num_prompts * (self.prompt_tokens + self.responses * self.response_tokens)


def estimate(config: Config, model: Architecture, device: Device | None = None) -> Estimate:
    """What training with `config` needs on one device of the local engine; None: any CPU."""
    sampler = _vllm(config, device) if uses_vllm(config, device) else _native(config, model)
    parts = (_weights(config, model), sampler, update_items(config, model), [_buffer(config)])
    return Estimate(tuple(item for part in parts for item in part if item.num_bytes))


def uses_vllm(config: Config, device: Device | None) -> bool:
    """`auto` is taken as vLLM on a GPU, whether it is installed on this machine or not."""
    on_gpu = device is not None and device.kind == "cuda"
    return on_gpu and config.sampling.engine != "native"


def _weights(config: Config, model: Architecture) -> list[Item]:
    size, train = ITEM_BYTES[config.model.dtype], config.train
    adapters, trained = config.model.lora_rank * model.adapter_parameters, trained_parameters(config, model)
    weights, note = (model.parameters + adapters) * size, f"{_count(model.parameters)}, {size} bytes each"
    if config.model.quantize is not None:
        weights -= round(model.text.projections * (size - QUANTIZED_BYTES))
        note += ", projections in 4 bits"
    masters = 4 if size < 4 or train.offload_optimizer else 0
    optimizer = round(trained * (masters + MOMENT_BYTES[train.optimizer]))
    items = [
        Item("weights", weights, "always", note),
        Item(
            "optimizer",
            optimizer,
            "host" if train.offload_optimizer else "always",
            f"{train.optimizer} over {_count(trained)} weights" + (", float32 masters" if masters else ""),
        ),
        Item("gradients", trained * size, "training", f"{_count(trained)} weights"),
    ]
    if not train.offload_optimizer:
        largest = 0 if config.model.lora_rank else 4 * model.vocabulary * model.text.hidden
        bucket = min(max(BUCKET_BYTES, largest), 4 * trained) if masters else 0
        items.append(Item("optimizer step", bucket, "step", "float32 gradients of one bucket"))
    if config.method.needs_reference:
        items.append(
            Item("reference model", model.parameters * size, "always", "for the KL term of this method")
        )
    return items


def trained_parameters(config: Config, model: Architecture) -> int:
    """Weights that get a gradient."""
    if config.model.lora_rank:
        return config.model.lora_rank * model.adapter_parameters
    return model.parameters - (model.vision_parameters if config.model.freeze_vision else 0)


def trains_vision(config: Config) -> bool:
    return not (config.model.freeze_vision or config.model.lora_rank)


def _vllm(config: Config, device: Device | None) -> list[Item]:
    assert device is not None
    share = config.sampling.memory_share
    note = (
        f"{share:.0%} of the GPU (sampling.memory_share): vLLM's weights and cache; it sleeps while we train"
    )
    return [Item("vLLM", round(share * device.total_bytes), "rollout", note)]


def _native(config: Config, model: Architecture) -> list[Item]:
    size, rollout = ITEM_BYTES[config.model.dtype], config.rollout
    one_prompt = rollout.max_prompt_tokens + rollout.responses * rollout.max_tokens
    tokens = max(rollout.batch_tokens or CPU_BATCH_TOKENS, one_prompt)
    cache = tokens * model.text.layers * 2 * model.text.key_width * size
    sampling = COPIES * 4 * min(HEAD_CHUNK_ELEMENTS, tokens // rollout.max_tokens * model.vocabulary)
    return [
        Item("KV cache", cache, "rollout", f"{tokens:,} tokens (rollout.batch_tokens)"),
        Item("sampling", sampling, "rollout", "logits of one decoding step, in chunks"),
    ]


def update_items(config: Config, model: Architecture) -> list[Item]:
    """What all layers leave for backward, and what the largest single part of backward needs besides."""
    size, shape, saved = ITEM_BYTES[config.model.dtype], micro_batch(config, model), config.model
    patches = shape.num_prompts * shape.image_tokens * model.patches_per_token
    text = kept_bytes(model.text, shape.tokens, config)
    vision = kept_bytes(model.vision, patches, config, is_vision=True) if trains_vision(config) else 0
    parts = {
        "a layer": layer_bytes(model.text, shape.tokens, config) + _mask_bytes(config, model, shape),
        "the head": COPIES * min(CHUNK_BYTES, shape.tokens * model.vocabulary * 4),
    }
    if trains_vision(config):  # its backward runs after the language model's tensors are freed
        parts["a vision layer"] = layer_bytes(model.vision, patches, config, is_vision=True) - text
    largest = max(parts, key=lambda name: parts[name])
    head = 0 if saved.lora_rank else model.vocabulary * model.text.hidden * size
    cached = min(
        FEATURE_CACHE_BYTES,
        2 * config.train.prompts_per_step * shape.image_tokens * model.text.hidden * size,
    )
    kept = round(config.train.kept_activations * 2**30)
    most = shape.tokens * model.text.layers * model.text.activation_bytes(size)
    if trains_vision(config):
        most += patches * model.vision.layers * model.vision.activation_bytes(size, is_vision=True)
    recomputed = "recomputed layer by layer" if saved.gradient_checkpointing else "kept by all layers"
    return [
        Item("activations", text, "update", f"{shape.tokens:,} tokens per micro-batch, {recomputed}"),
        Item("kept activations", min(kept, most), "update", "not recomputed (train.kept_activations)"),
        Item("vision activations", vision, "update", f"{shape.num_prompts} images, {patches:,} patches"),
        Item("backward", parts[largest], "update", f"of {largest}, with its attention mask or logits"),
        Item("head gradient", head, "update", f"vocabulary {model.vocabulary:,}, before it is added"),
        Item(
            "image features", cached, "update", "clean and corrupted, of a step or as many as the cache holds"
        ),
    ]


def micro_batch(config: Config, model: Architecture) -> MicroBatchShape:
    """What fills `train.micro_batch_tokens`: whole prompts of usual length, their responses stretched to the budget."""
    tokens, rollout = micro_batch_tokens(config), config.rollout
    image = _image_tokens(config, model)
    prompt = min(rollout.max_prompt_tokens, image + TEXT_TOKENS)
    usual = prompt + rollout.responses * min(RESPONSE_TOKENS, rollout.max_tokens)
    num_prompts = max(1, tokens // usual)
    response = max(1, (tokens // num_prompts - prompt) // rollout.responses)
    return MicroBatchShape(num_prompts, prompt, image, rollout.responses, min(response, rollout.max_tokens))


def _mask_bytes(config: Config, model: Architecture, shape: MicroBatchShape) -> int:
    """One boolean per response token, query head of a group and visible token, and its form in the model's dtype."""
    if config.train.layout == "repeated":
        return 0
    heads = model.text.query_width // model.text.key_width
    responses = shape.num_prompts * shape.responses * shape.response_tokens
    return (
        responses
        * heads
        * (shape.prompt_tokens + shape.response_tokens)
        * (1 + ITEM_BYTES[config.model.dtype])
    )


def kept_bytes(stack: Stack, tokens: int, config: Config, *, is_vision: bool = False) -> int:
    """What autograd keeps of all layers: their tensors or, with checkpointing, their inputs."""
    size = ITEM_BYTES[config.model.dtype]
    if config.model.gradient_checkpointing:
        return tokens * stack.layers * stack.hidden * size
    return tokens * stack.layers * stack.activation_bytes(size, is_vision=is_vision)


def layer_bytes(stack: Stack, tokens: int, config: Config, *, is_vision: bool = False) -> int:
    """What the backward of one layer needs: gradients of the MLP's products and, with checkpointing, its tensors."""
    size = ITEM_BYTES[config.model.dtype]
    again = stack.activation_bytes(size, is_vision=is_vision) if config.model.gradient_checkpointing else 0
    return tokens * (again + 2 * stack.intermediate * size)


def longest_row(config: Config) -> int:
    """Tokens of the longest prompt with one response: the smallest possible micro-batch."""
    return config.rollout.max_prompt_tokens + config.rollout.max_tokens


def micro_batch_tokens(config: Config) -> int:
    """Tokens of the fullest micro-batch; a row longer than the budget is a micro-batch of its own."""
    return max(config.train.micro_batch_tokens, longest_row(config))


def _image_tokens(config: Config, model: Architecture) -> int:
    """Image tokens of a prompt with one image of the largest size."""
    pixels = config.model.max_pixels or model.max_pixels or DEFAULT_MAX_PIXELS
    return min(config.rollout.max_prompt_tokens, max(1, pixels // model.pixels_per_token))


def _buffer(config: Config) -> Item:
    """The experience buffer, if every prompt seen keeps G responses of full length as int32 ids."""
    seen = config.train.steps * config.train.prompts_per_step
    prompts = min(seen, config.buffer.max_prompts or seen, config.data.size or seen)
    num_bytes = prompts * config.rollout.responses * config.rollout.max_tokens * 4
    return Item(
        "experience buffer", num_bytes, "host", f"at most; {prompts:,} prompts in the machine's memory"
    )


def _count(number: int) -> str:
    """`8.29B`, `1.6M`."""
    return f"{number / 1e9:.2f}B" if number >= 1e9 else f"{number / 1e6:.1f}M"
