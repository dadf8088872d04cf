"""Whether a configuration fits a device, and what to change if it does not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pivot.config.loading import apply_settings
from pivot.config.sections import Config
from pivot.doctor.machine import Device
from pivot.doctor.memory import Estimate, estimate, longest_row, uses_vllm
from pivot.models.architecture import Architecture

MARGIN = 0.9
"""Share of a device's memory to plan with; the rest is left to the driver, fragmentation and temporaries."""
LORA_RANK = 64
LORA_RATE = 10
"""The best learning rate of LoRA over that of full fine-tuning, in supervised learning and in RL, at any rank
(Schulman et al., LoRA Without Regret, 2025)."""
USUAL_GPU = Device("an 80 GB GPU", 80 * 10**9, 80 * 10**9, "cuda")
"""The GPU that the suggested number for verl assumes, on machines without one."""


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
    first = Verdict(estimate(config, model, device), device, (), None)
    if first.fits:
        return first

    def needed(settings: Iterable[str]) -> int:
        return Verdict(estimate(apply_settings(config, settings), model, device), device, (), None).needed

    chosen: dict[str, Candidate] = {}
    best = first.needed
    for candidate in _candidates(config, model, device):
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


def _candidates(config: Config, model: Architecture, device: Device) -> Iterator[Candidate]:
    """The cheapest changes first: they cost time, then precision, then what can be learned."""
    yield Candidate("model.gradient_checkpointing", "true", "activations are recomputed in the backward pass")
    budget = config.train.micro_batch_tokens
    while budget > longest_row(config):
        budget = max(budget // 2, longest_row(config))
        yield Candidate("train.micro_batch_tokens", budget, "smaller micro-batches, the same gradient")
    if uses_vllm(config, device):
        yield Candidate("sampling.memory_share", 0.2, "a smaller cache: fewer responses decoded at a time")
    else:
        one_prompt = config.rollout.max_prompt_tokens + config.rollout.responses * config.rollout.max_tokens
        yield Candidate("rollout.batch_tokens", one_prompt, "fewer prompts decoded at a time")
    yield Candidate("model.dtype", "bfloat16", "half the weights and activations")
    if device.kind == "cuda":
        host = next(item.num_bytes for item in estimate(config, model).items if item.name == "optimizer")
        why = f"the optimizer's {host / 2**30:.0f} GiB in the machine's memory"
        yield Candidate("train.offload_optimizer", "true", why)
    yield Candidate("train.optimizer", "adamw_8bit", "AdamW's moments in 8 bits")
    yield Candidate("model.freeze_vision", "true", "no gradients and optimizer for the vision tower")
    yield Candidate("model.lora_rank", LORA_RANK, "low-rank adapters instead of all weights")
    yield Candidate("model.quantize", "nf4", "frozen weights in 4 bits")


def _gpus_needed(found: Estimate, device: Device) -> int:
    """Weights, optimizer and gradients are sharded; the rest of the update is held by each GPU."""
    size = device.total_bytes if device.kind == "cuda" else USUAL_GPU.total_bytes
    sharded = found.total("always") + found.total("training")
    room = MARGIN * size - max(found.total("update"), found.total("step"), found.total("rollout"))
    # At least a tenth of the GPU is left for the shards: verl splits micro-batches further.
    fewest = max(2, math.ceil(sharded / max(room, 0.1 * size)))
    return 2 ** math.ceil(math.log2(fewest))
