"""What can be asked of a sampler, and the interface that all samplers have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pivot.errors import UserError
from pivot.types import Prompt, Response


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn.

    Example:
        Sampling(temperature=1.0, top_p=0.99, max_tokens=2048)
    """

    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    max_tokens: int = 2048
    min_tokens: int = 0
    """No end of turn before this many tokens (for benchmarks of equal length)."""

    def __post_init__(self) -> None:
        if (
            not 0 <= self.temperature < math.inf
            or not 0 < self.top_p <= 1
            or self.top_k < 0
            or self.max_tokens < 1
        ):
            raise UserError(
                f"{self} cannot be sampled with; expected temperature >= 0, 0 < top_p <= 1, top_k >= 0, max_tokens >= 1"
            )


@dataclass(frozen=True)
class SampleRequest:
    """What is sampled from each prompt.

    Example:
        SampleRequest(8, Sampling(max_tokens=2048), key=(0, "evaluation"))
    """

    num_samples: int
    sampling: Sampling
    key: tuple[object, ...]
    """Seeds the draws together with the prompt's id and the sample's index; who draws does not matter."""
    blank: bool = False
    """Show grey canvases of the same size instead of the images, to measure the language prior."""


class Sampler(Protocol):
    """Draws responses: with the policy in this process, with vLLM, or with the workers of an engine."""

    def sample(
        self, prompts: Sequence[Prompt], request: SampleRequest
    ) -> Iterator[tuple[int, list[Response]]]:
        """Yield (index of the prompt, its responses) as they finish; every prompt occurs once."""
        ...

    def close(self) -> None: ...
