"""How much memory a configuration needs on one device, item by item, and what to change if it does not fit.

Estimates are upper bounds: micro-batches and caches as full as their budgets allow. The activation formula counts the
tensors that autograd keeps of a Llama-like layer; a test compares it with a real model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pivot.config.loading import apply_settings
from pivot.config.sections import Config
from pivot.doctor.machine import Device
from pivot.method.statistics import CHUNK_BYTES
from pivot.models.architecture import Architecture
from pivot.models.family import Stack
from pivot.sampling.native import CPU_BATCH_TOKENS, HEAD_CHUNK_ELEMENTS

Phase = Literal["always", "rollout", "update", "host"]
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
OPTIMIZER_BYTES = {"float32": 8, "bfloat16": 12}
"""AdamW's two float32 moments, and a float32 copy of weights that are kept in bfloat16."""
DEFAULT_MAX_PIXELS = 1003520
"""The paper's limit, where neither the configuration nor the model's files set one."""
COPIES = 3
"""Buffers of a chunk's logits that the head and sampling hold at once."""
MARGIN = 0.9
"""Share of a device's memory to plan with; the rest is left to the driver, fragmentation and temporaries."""
LORA_RANK = 64
USUAL_GPU = Device("an 80 GB GPU", 80 * 10**9, 80 * 10**9, "cuda")
"""The GPU that the suggested number for verl assumes, on machines without one."""


@dataclass(frozen=True)
class Item:
    """One line of the estimate."""

    name: str
    num_bytes: int
    phase: Phase
    """`rollout` and `update` alternate and share memory; `host` is the machine's memory, not the GPU's."""
    note: str


@dataclass(frozen=True)
class Estimate:
    """All items; the peak is what is always held plus the larger of the two phases."""

    items: tuple[Item, ...]

    def total(self, phase: Phase) -> int:
        return sum(item.num_bytes for item in self.items if item.phase == phase)

    @property
    def peak(self) -> int:
        return self.total("always") + max(self.total("rollout"), self.total("update"))

    @property
    def host(self) -> int:
        return self.total("host")


def estimate(config: Config, model: Architecture) -> Estimate:
    """What training with `config` needs on one device of the embedded engine."""
    return Estimate(
        (*_weights(config, model), *_rollout(config, model), *_update(config, model), _buffer(config))
    )


def _weights(config: Config, model: Architecture) -> list[Item]:
    size = ITEM_BYTES[config.model.dtype]
    adapters = config.model.lora_rank * model.adapter_parameters
    trained = trained_parameters(config, model)
    optimizer = trained * OPTIMIZER_BYTES[config.model.dtype]
    items = [
        Item(
            "weights",
            (model.parameters + adapters) * size,
            "always",
            f"{_count(model.parameters)}, {size} bytes each",
        ),
        Item("optimizer", optimizer, "always", f"AdamW over {_count(trained)} weights"),
    ]
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


def _rollout(config: Config, model: Architecture) -> list[Item]:
    size, rollout = ITEM_BYTES[config.model.dtype], config.rollout
    one_prompt = rollout.max_prompt_tokens + rollout.responses * rollout.max_tokens
    tokens = max(rollout.batch_tokens or CPU_BATCH_TOKENS, one_prompt)
    cache = tokens * model.text.layers * 2 * model.text.key_width * size
    sampling = COPIES * 4 * min(HEAD_CHUNK_ELEMENTS, tokens // rollout.max_tokens * model.vocabulary)
    return [
        Item("KV cache", cache, "rollout", f"{tokens:,} tokens (rollout.batch_tokens)"),
        Item("sampling", sampling, "rollout", "logits of one decoding step, in chunks"),
    ]


def _update(config: Config, model: Architecture) -> list[Item]:
    size, trained = ITEM_BYTES[config.model.dtype], trained_parameters(config, model)
    tokens = micro_batch_tokens(config)
    image = _image_tokens(config, model)
    image_tokens = image * max(1, tokens // image)
    features = 2 * image_tokens * model.text.hidden * size
    vision = 0
    if not (config.model.freeze_vision or config.model.lora_rank):
        vision = activation_bytes(
            model.vision, image_tokens * model.patches_per_token, config, is_vision=True
        )
    head = COPIES * min(CHUNK_BYTES, tokens * model.vocabulary * 4)
    head += 0 if config.model.lora_rank else model.vocabulary * model.text.hidden * size
    seen = config.rollout.max_prompt_tokens + config.rollout.max_tokens
    mask = 0 if config.train.layout == "repeated" else tokens * seen * size
    text = activation_bytes(model.text, tokens, config)
    checkpointed = "with" if config.model.gradient_checkpointing else "without"
    return [
        Item("gradients", trained * size, "update", f"{_count(trained)} weights"),
        Item(
            "activations",
            text + mask,
            "update",
            f"{tokens:,} tokens per micro-batch, {checkpointed} checkpointing",
        ),
        Item(
            "vision activations",
            vision,
            "update",
            f"at most {image_tokens:,} image tokens of {model.patches_per_token} patches",
        ),
        Item("vision features", features, "update", "clean and corrupted images of a micro-batch"),
        Item("head chunk", head, "update", f"vocabulary {model.vocabulary:,}, in chunks, and its gradient"),
    ]


def activation_bytes(stack: Stack, tokens: int, config: Config, *, is_vision: bool = False) -> int:
    """What autograd keeps: all layers' tensors or, with checkpointing, their inputs and one layer's tensors."""
    size = ITEM_BYTES[config.model.dtype]
    # In the model's dtype: inputs of the matrix products, q k v before and after rotation, the gated MLP. In
    # float32: tensors of the two norms. The vision tower rotates in float32.
    width = 11 * stack.hidden if is_vision else 4 * stack.hidden + 2 * stack.query_width + 2 * stack.key_width
    layer = size * (width + 4 * stack.intermediate) + 4 * 2 * stack.hidden
    if not config.model.gradient_checkpointing:
        return tokens * stack.layers * layer
    return tokens * (stack.layers * stack.hidden * size + layer)


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


@dataclass(frozen=True)
class Change:
    """One more setting, and the peak with it and all changes before it."""

    setting: str
    why: str
    peak: int


@dataclass(frozen=True)
class Verdict:
    """Whether it fits, and the shortest list of changes found that makes it fit."""

    estimate: Estimate
    device: Device
    changes: tuple[Change, ...]
    gpus_needed: int | None
    """GPUs of this size for the verl engine, which shards over them; None: one device is enough."""

    @property
    def usable(self) -> int:
        return int(MARGIN * self.device.total_bytes)

    @property
    def needed(self) -> int:
        """On a machine without a GPU the buffer is in the same memory."""
        return self.estimate.peak + (self.estimate.host if self.device.kind == "cpu" else 0)

    @property
    def fits(self) -> bool:
        return self.needed <= self.usable

    @property
    def fits_with_changes(self) -> bool:
        return bool(self.changes) and self.changes[-1].peak <= self.usable


def judge(config: Config, model: Architecture, device: Device) -> Verdict:
    """Estimate, compare, and look for the fewest changes that make it fit."""
    first = Verdict(estimate(config, model), device, (), None)
    if first.fits:
        return first

    def needed(settings: Iterable[str]) -> int:
        return Verdict(estimate(apply_settings(config, settings), model), device, (), None).needed

    chosen: dict[str, Candidate] = {}
    best = first.needed
    for candidate in _candidates(config):
        trial = chosen | {candidate.path: candidate}
        with_it = needed(c.setting for c in trial.values())
        if with_it < best:
            chosen, best = trial, with_it
        if best <= first.usable:
            break
    if best <= first.usable:
        for path in list(chosen):
            others = {other: candidate for other, candidate in chosen.items() if other != path}
            if needed(c.setting for c in others.values()) <= first.usable:
                chosen = others
    steps = list(chosen.values())
    changes = (
        Change(c.setting, c.why, needed(s.setting for s in steps[: i + 1])) for i, c in enumerate(steps)
    )
    return Verdict(first.estimate, device, tuple(changes), _gpus_needed(first.estimate, device))


class Candidate(NamedTuple):
    """A setting that saves memory."""

    path: str
    value: object
    why: str

    @property
    def setting(self) -> str:
        return f"{self.path}={self.value}"


def _candidates(config: Config) -> Iterator[Candidate]:
    """The cheapest changes first: they cost time, then precision, then what can be learned."""
    yield Candidate("model.gradient_checkpointing", "true", "activations are recomputed in the backward pass")
    budget = config.train.micro_batch_tokens
    while budget > longest_row(config):
        budget = max(budget // 2, longest_row(config))
        yield Candidate("train.micro_batch_tokens", budget, "smaller micro-batches, the same gradient")
    one_prompt = config.rollout.max_prompt_tokens + config.rollout.responses * config.rollout.max_tokens
    yield Candidate("rollout.batch_tokens", one_prompt, "fewer prompts decoded at a time")
    yield Candidate("model.dtype", "bfloat16", "half the weights and activations")
    yield Candidate("model.freeze_vision", "true", "no gradients and optimizer for the vision tower")
    yield Candidate("model.lora_rank", LORA_RANK, "low-rank adapters instead of all weights")


def _gpus_needed(found: Estimate, device: Device) -> int:
    """Weights, optimizer and gradients are sharded; the rest of the update is held by each GPU."""
    size = device.total_bytes if device.kind == "cuda" else USUAL_GPU.total_bytes
    gradients = sum(item.num_bytes for item in found.items if item.name == "gradients")
    sharded = found.total("always") + gradients
    room = MARGIN * size - (max(found.total("update") - gradients, found.total("rollout")))
    # At least a tenth of the GPU is left for the shards: verl splits micro-batches further.
    fewest = max(2, math.ceil(sharded / max(room, 0.1 * size)))
    return 2 ** math.ceil(math.log2(fewest))
