"""Does a configuration fit a device, and what to change when it does not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pivot.config.loading import apply_settings
from pivot.config.sections import Config
from pivot.doctor.architecture import Architecture
from pivot.doctor.machine import Device
from pivot.doctor.memory import Estimate, estimate, longest_row

MARGIN = 0.9
"""Share of a device's memory to plan with; the rest goes to the driver, fragments and temporaries."""
LORA_RANK = 64
USUAL_GPU = Device("an 80 GB GPU", 80 * 10**9, 80 * 10**9, "cuda")
"""What verl's number of GPUs is reckoned for where there is none here."""


@dataclass(frozen=True)
class Change:
    """One more setting, and the peak with it and all changes before it."""

    setting: str
    why: str
    peak: int


@dataclass(frozen=True)
class Verdict:
    """Whether it fits, and the shortest list of changes that was found to make it fit."""

    estimate: Estimate
    device: Device
    changes: tuple[Change, ...]
    gpus_needed: int | None
    """GPUs of this size for the verl engine, which shares everything among them; None: it fits without."""

    @property
    def usable(self) -> int:
        return int(MARGIN * self.device.total_bytes)

    @property
    def needed(self) -> int:
        """On a machine without GPU the buffer lies in the same memory."""
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
    """The changes that cost least first: time, then precision, then what can be learnt."""
    yield Candidate(
        "model.gradient_checkpointing", "true", "activations are computed again in the backward pass"
    )
    budget = config.train.micro_batch_tokens
    while budget > longest_row(config):
        budget = max(budget // 2, longest_row(config))
        yield Candidate("train.micro_batch_tokens", budget, "smaller micro-batches, the same gradient")
    one_prompt = config.rollout.responses * longest_row(config)
    yield Candidate("rollout.batch_tokens", one_prompt, "fewer prompts decoded at a time")
    yield Candidate("model.dtype", "bfloat16", "half the weights and activations")
    yield Candidate("model.freeze_vision", "true", "no gradients and optimizer for the vision tower")
    yield Candidate("model.lora_rank", LORA_RANK, "low-rank adapters instead of all weights")


def _gpus_needed(found: Estimate, device: Device) -> int:
    """Weights, optimizer and gradients are sharded; the rest of the update stays on each GPU."""
    size = device.total_bytes if device.kind == "cuda" else USUAL_GPU.total_bytes
    gradients = sum(item.num_bytes for item in found.items if item.name == "gradients")
    sharded = found.total("always") + gradients
    room = MARGIN * size - (max(found.total("update") - gradients, found.total("rollout")))
    # A tenth of the GPU is left for the shards in any case: verl splits micro-batches further.
    fewest = max(2, math.ceil(sharded / max(room, 0.1 * size)))
    return 2 ** math.ceil(math.log2(fewest))
