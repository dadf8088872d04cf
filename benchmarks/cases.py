"""What every contender agrees on. Nothing here needs the project: the peer reads it from an environment of its own."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """The work of one step."""

    max_tokens: int
    min_tokens: int
    """0: a response ends when the model ends it."""
    prompts: int = 16
    responses: int = 8
    """To each prompt."""
    num_prompts: int = 64
    """In the training set."""
    top_p: float = 1.0
    checkpointing: bool = False
    """Recompute activations in the backward pass, as both projects recommend for large models."""


CASES = {
    "fixed": Case(48, 48),
    "natural": Case(96, 0),
    "slice": Case(128, 128, 4, 5, num_prompts=8, top_p=0.99, checkpointing=True),
    "slice-512": Case(512, 512, 4, 5, num_prompts=8, top_p=0.99, checkpointing=True),
}
"""The tiny model with responses of one length or of their own; a slice of Qwen2.5-VL-3B (benchmarks/slice.py)."""


def every_other(completions: Sequence[Any], **_: Any) -> list[float]:
    """Half of each group is right, whatever the model writes: the work stays the same from turn to turn."""
    return [float(number % 2) for number in range(len(completions))]


class Meter:
    """Counts the tokens that pass a model's first decoder layer, in any pass."""

    def __init__(self, model: Any) -> None:
        self.tokens = 0
        layers = [m for name, m in model.named_modules() if name.endswith("language_model.layers.0.mlp")]
        layers[0].register_forward_pre_hook(self._count)  # a recomputed layer may not come to its end

    def _count(self, module: Any, inputs: tuple[Any, ...]) -> None:
        self.tokens += inputs[0].shape[:-1].numel()

    def read(self) -> dict[str, float]:
        """Since the last read; the peak is the process's."""
        tokens, self.tokens = self.tokens, 0
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        return {"computed_tokens": tokens, "peak_gib": peak}
