"""What can be asked of a sampler, the interface that all samplers have, and which of them a machine uses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal, Protocol

import torch

from pivot.errors import UserError
from pivot.types import PreparedPrompt, Prompt, Response

SamplerName = Literal["native", "vllm"]
AfterPrefill = Callable[[Sequence[Any], Any, torch.Tensor], None]
"""Called with encoded prompts, `models.decoding.PrefilledPrompts` and the hidden states [P, D] after them."""
Refill = Callable[[Mapping[int, list[Response]]], Sequence[PreparedPrompt]]
"""Called with the groups that finished since the last call, by index; returns more prompts, whose indices go on."""


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
    refill: Refill | None = field(default=None, compare=False)
    """Servers that finish groups one by one, in no fixed order, may ask for more while others are still running."""
    after_prefill: AfterPrefill | None = field(default=None, compare=False)
    """For what else can use the prompts' keys and values; only the native sampler has them."""


class Sampler(Protocol):
    """Draws responses: with the policy in this process, with vLLM, or with the workers of an engine."""

    def sample(
        self, prompts: Sequence[Prompt], request: SampleRequest
    ) -> Iterator[tuple[int, list[Response]]]:
        """Yield (index of the prompt, its responses) as they finish; every prompt occurs once."""
        ...

    def close(self) -> None: ...


class PolicySampler(Protocol):
    """A `Sampler` of the policy that this process trains, for training and for evaluations alike."""

    name: SamplerName

    def sample(
        self, prompts: Sequence[Prompt] | Sequence[PreparedPrompt], request: SampleRequest
    ) -> Iterator[tuple[int, list[Response]]]:
        """As `Sampler.sample`, at the policy's current weights."""
        ...

    def weights_changed(self) -> None:
        """The policy was updated."""
        ...

    def sleep(self) -> None:
        """Free device memory until the next sample."""
        ...

    def close(self) -> None: ...


def choose_sampler(wanted: Literal["auto", "native", "vllm"], device: torch.device) -> SamplerName:
    """`auto` is vLLM on a GPU where vLLM is installed, else native."""
    first = device.type == "cuda" and not device.index
    if wanted == "auto":
        return "vllm" if first and find_spec("vllm") is not None else "native"
    if wanted == "vllm" and not first and torch.cuda.is_available():
        raise UserError(
            f"vLLM samples on the first visible GPU, but the device is {device}; set CUDA_VISIBLE_DEVICES instead, or "
            "use the native sampler"
        )
    return wanted
