"""The interface of an engine: sample, score, update, save, load, close.

The trainer and the run know nothing else about where the model is. An engine holds the policy at its current weights,
the frozen reference model if the method needs one, and the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from torch import Tensor

from pivot.config import Config
from pivot.engines.saving import Saving
from pivot.errors import UserError
from pivot.method import Batch
from pivot.models.corruption import Corruptor
from pivot.models.encoding import PromptEncoder
from pivot.models.policy import ResponseStatistics
from pivot.models.rows import PromptWithResponses
from pivot.sampling import Sampler, SampleRequest
from pivot.types import PreparedPrompt, Prompt, Response

View = Literal["clean", "corrupted", "both"]
MAXIMA = ("ratio_max",)
"""Terms of the loss whose maximum is taken over micro-batches; the others are summed."""


@dataclass(frozen=True)
class ScoreRequest:
    """Which responses to score, at the current weights and without gradient."""

    units: Sequence[PromptWithResponses]
    step: int
    """Selects the corruption masks."""
    view: View
    """`clean` and `corrupted`: log-probs under that image. `both`: the clean ones, the corrupted ones and their
    divergence. A prompt without an image looks the same either way."""
    of_reference: bool = False
    """Score with the frozen model that training started from."""
    with_similarity: bool = False
    """Also compare hidden states with those of the image, in the clean pass."""


@dataclass(frozen=True)
class Skipped:
    """An update that was skipped because a value was not finite."""

    what: Literal["reward", "loss", "gradient"]
    """The first such value."""
    prompts: list[str]
    """Ids of the prompts it came from, as closely as is known."""


@dataclass(frozen=True)
class Update:
    """The result of one optimizer step."""

    terms: dict[str, float]
    """The loss and its terms over the whole minibatch."""
    grad_norm: float
    """Before clipping."""
    skipped: Skipped | None = None
    """Why no step was made."""


class Engine(Protocol):
    """Holds the weights; every method returns plain data on the CPU."""

    name: str
    """Recorded with its evaluations."""
    encoder: PromptEncoder
    """Counts tokens, decodes them, and knows the images' limits."""
    corruptor: Corruptor

    @property
    def description(self) -> str:
        """A few words about size, e.g. `1.9M weights`."""
        ...

    @property
    def budgets(self) -> dict[str, int]:
        """Tokens processed at once; running out of memory lowers them."""
        ...

    def read_images(self, prompts: Sequence[Prompt]) -> None:
        """A hint: these prompts are prepared next."""
        ...

    def prepare(self, prompt: Prompt) -> PreparedPrompt:
        """Encode or measure a prompt; raises UnreadablePrompt if an image cannot be decoded."""
        ...

    def sample(
        self,
        prompts: Sequence[PreparedPrompt],
        request: SampleRequest,
        meanwhile: Sequence[ScoreRequest] = (),
    ) -> list[list[Response]]:
        """The responses of each prompt, and of those that `request.refill` adds.

        `meanwhile` will be asked for later in the step: an engine may score it now.
        """
        ...

    def score(self, request: ScoreRequest) -> ResponseStatistics:
        """Log-probs and entropies of all responses of all units, in their order, padded to the longest."""
        ...

    def update(self, units: Sequence[PromptWithResponses], batch: Batch, lr: float) -> Update:
        """One optimizer step on a minibatch (Eq. 16); row i of `batch` is the i-th response of the units."""
        ...

    def nonfinite_weights(self) -> list[str]:
        """Names of the weights that hold a NaN or an infinity."""
        ...

    def evaluation_sampler(self) -> Sampler:
        """Samples for evaluations, at the current weights."""
        ...

    def save(self, folder: Path) -> Saving | None:
        """Write the model as a Hugging Face folder `model/`, and all else that training continues from.

        None: everything is written. An engine that goes on writing returns what to wait for.
        """
        ...

    def load(self, folder: Path, budgets: Mapping[str, int]) -> None:
        """Continue from what `save` wrote; an engine may have read the weights themselves when it was opened."""
        ...

    def close(self) -> None: ...


OpenEngine = Callable[[Config, Path | None], Engine]
"""From a configuration, and the checkpoint that training continues from, to an engine."""
ENGINES: dict[str, OpenEngine] = {}
"""Engines of plugins, by the name that `--engine` takes."""


def register_engine(name: str, open_engine: OpenEngine) -> None:
    """Make an engine available as `--engine NAME` in this process."""
    if name in ("local", "verl"):
        raise UserError(f"engine {name!r} cannot be registered: the name is taken.")
    ENGINES[name] = open_engine


def add_terms(total: dict[str, float], values: Mapping[str, Tensor]) -> None:
    """Add the terms of a micro-batch to those of its minibatch, a defaultdict."""
    for name, value in values.items():
        total[name] = max(total[name], float(value)) if name in MAXIMA else total[name] + float(value)
