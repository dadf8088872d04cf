"""How long a step takes on a GPU, from its peak rates; every assumption is printed with the result."""

from __future__ import annotations

from dataclasses import dataclass

from pivot.config.sections import Config
from pivot.doctor.machine import Device
from pivot.doctor.memory import ITEM_BYTES, RESPONSE_TOKENS, micro_batch, trains_vision, uses_vllm
from pivot.errors import UserError
from pivot.models.architecture import Architecture
from pivot.sampling.native import CPU_BATCH_TOKENS

COMPUTE_SHARE = 0.35
"""Of the peak FLOP/s that large matrix products of a training step reach: an assumption, measured nowhere."""
BANDWIDTH_SHARE = 0.6
"""Of the peak bandwidth that decoding reaches: an assumption too."""
SEQUENCES = 256
"""That vLLM decodes at once, where its cache holds them."""
NATIVE_SECONDS = 0.02
"""Least time of a decoding step of the native sampler: kernel launches."""
DRAWN = 2.0
"""Groups sampled per group trained on, with dynamic sampling."""


@dataclass(frozen=True)
class Gpu:
    """Peak rates as the vendor states them."""

    name: str
    gigabytes: int
    teraflops: float
    """bfloat16, dense, float32 accumulation."""
    bandwidth: float
    """Of the memory, GB/s."""
    checked: bool = True
    """Whether both rates were found stated elsewhere: for the A100 in NVIDIA's data sheet as quoted by
    glennklockwood.com/garden/processors/A100, for the others in public tables of specifications."""

    @property
    def device(self) -> Device:
        return Device(self.name, self.gigabytes * 10**9, self.gigabytes * 10**9, "cuda")


GPUS = (
    Gpu("RTX-3090", 24, 71, 936, checked=False),
    Gpu("RTX-4090", 24, 165, 1008),
    Gpu("A10G", 24, 70, 600, checked=False),
    Gpu("L4", 24, 121, 300),
    Gpu("A6000", 48, 155, 768, checked=False),
    Gpu("L40S", 48, 362, 864, checked=False),
    Gpu("A100-40GB", 40, 312, 1555),
    Gpu("A100-80GB", 80, 312, 2039),
    Gpu("H100-80GB", 80, 989, 3350),
    Gpu("H200", 141, 989, 4800),
)


def named_gpu(name: str) -> Gpu:
    """The GPU that `--device` names."""
    for gpu in GPUS:
        if gpu.name.lower() == name.lower():
            return gpu
    raise UserError(f"--device is {name!r}, but must be one of {', '.join(gpu.name for gpu in GPUS)}")


def known_gpu(device: Device) -> Gpu | None:
    """The rates of a device that was found or named; None: not in the table."""
    plain = device.name.replace(" ", "-").lower()
    models = [gpu for gpu in GPUS if gpu.name.lower().removesuffix(f"-{gpu.gigabytes}gb") in plain]
    return min(models, key=lambda gpu: abs(gpu.gigabytes * 10**9 - device.total_bytes), default=None)


@dataclass(frozen=True)
class Decoding:
    """A decoding step reads all weights and the caches of its sequences."""

    concurrent: int
    """Sequences at once."""
    weight_seconds: float
    sequence_seconds: float
    """Per sequence."""
    least: float

    def seconds(self, sequences: int) -> float:
        """Of one token of each sequence."""
        return max(self.weight_seconds + sequences * self.sequence_seconds, self.least)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.concurrent / self.seconds(self.concurrent)


@dataclass(frozen=True)
class Hours:
    """Of a step and of a run, without evaluations."""

    sampling: float
    scoring: float
    update: float
    steps: int
    assumptions: tuple[str, ...]

    @property
    def step(self) -> float:
        return self.sampling + self.scoring + self.update


def hours(config: Config, model: Architecture, gpu: Gpu) -> Hours:
    """Products at 2 FLOPs per weight and token forward and twice that backward; decoding at the memory's bandwidth."""
    shape, train, rollout = micro_batch(config, model), config.train, config.rollout
    length = min(RESPONSE_TOKENS, rollout.max_tokens)
    prompts, drawn = train.prompts_per_step, DRAWN if config.method.dynamic_sampling else 1.0
    text = model.parameters - model.vision_parameters
    image = 2 * model.vision_parameters * shape.image_tokens * model.patches_per_token
    forward = 2 * text * (shape.prompt_tokens + rollout.responses * length) + image  # per prompt
    rate = COMPUTE_SHARE * gpu.teraflops * 1e12
    drawing = decoding(config, model, gpu, shape.prompt_tokens + length)
    sampled = drawn * prompts * rollout.responses * length
    prefill = drawn * prompts * (2 * text * shape.prompt_tokens + image) / rate
    passes = 1 * (rollout.recompute_logprobs or uses_vllm(config, gpu.device))
    # Candidates of replayed prompts are scored under both images: as much as half of the batch, twice.
    passes += config.method.needs_corrupted + config.method.needs_reference + config.method.needs_anchors
    again = 1 if config.model.gradient_checkpointing else 0
    backward = 1 if config.model.lora_rank else 2
    update = forward * (1 + backward + again) - (0 if trains_vision(config) else image * (backward + again))
    return Hours(
        sampling=(sampled / drawing.rate + prefill) / 3600,
        scoring=passes * prompts * forward / rate / 3600,
        update=prompts * update / rate / 3600,
        steps=train.steps,
        assumptions=(
            f"{gpu.name}: {gpu.teraflops:g} TFLOP/s in bfloat16 and {gpu.bandwidth:g} GB/s"
            + ("" if gpu.checked else ", not checked against a data sheet"),
            f"products reach {COMPUTE_SHARE:.0%} of that and decoding {BANDWIDTH_SHARE:.0%}: assumed, not measured",
            f"{length} tokens per response, {shape.prompt_tokens:,} per prompt, {drawn:g} groups sampled per group "
            "trained on",
            f"{2 * text / 1e9:.1f} GFLOP per token forward; {drawing.concurrent} sequences decoded at once, "
            f"{drawing.rate:,.0f} tokens/s",
        ),
    )


def decoding(config: Config, model: Architecture, gpu: Gpu, context: int) -> Decoding:
    """Of sequences with `context` tokens; as many at once as the sampler's memory holds."""
    size = ITEM_BYTES[config.model.dtype]
    weights = (model.parameters - model.vision_parameters) * size
    per_sequence = context * model.text.layers * 2 * model.text.key_width * size
    vllm = uses_vllm(config, gpu.device)
    if vllm:
        cache = config.sampling.memory_share * gpu.device.total_bytes - model.parameters * size
        concurrent = max(1, min(SEQUENCES, int(cache / per_sequence)))
    else:
        row = config.rollout.max_prompt_tokens + config.rollout.max_tokens
        concurrent = max(config.rollout.responses, (config.rollout.batch_tokens or CPU_BATCH_TOKENS) // row)
    rate = BANDWIDTH_SHARE * gpu.bandwidth * 1e9
    return Decoding(concurrent, weights / rate, per_sequence / rate, 0 if vllm else NATIVE_SECONDS)
