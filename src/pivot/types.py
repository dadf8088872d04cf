"""The nouns of the data's walk: a prompt, a response, a group of responses.

Plain dataclasses that every room may use. They hold no behaviour beyond what follows from their fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from PIL import Image


class ImageSource(Protocol):
    """Where an image comes from; it is opened when it is needed, never kept."""

    def open(self) -> Image.Image:
        """The image, in whatever mode its file has."""
        ...


@dataclass(frozen=True)
class Prompt:
    """One problem of a data set: x = (q, I) with its ground truth a.

    Example:
        Prompt(id="geometry3k/train/17", question="<image>Find x.", answer="70", images=(source,))
    """

    id: str
    """Stable over runs and machines; the experience buffer's key."""
    question: str
    """The text; every `<image>` mark stands for the next of `images`. Without marks the images come first."""
    answer: str
    images: tuple[ImageSource, ...] = ()
    task: str = ""
    """The procedural task, benchmark category or data set that the prompt belongs to."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """All further columns of the data row; custom reward functions receive them."""


@dataclass(frozen=True)
class Reward:
    """What the verifier says of one response."""

    accuracy: float
    """R of the paper: 1 if the extracted answer matches the ground truth, else 0."""
    format: float
    """1 if the response follows the template's form, else 0."""
    reason: str
    """Why: correct, wrong, no box, unparsable, timed out, too long."""
    extracted: str | None = None
    path: str = ""
    """What decided: `fast` (one value or text), `structured` (lists, ranges, times, sets ...) or `library`."""

    @property
    def correct(self) -> bool:
        return self.accuracy > 0.5


@dataclass
class Response:
    """One sampled answer y, with what decoding saw of it.

    `logprobs_T` and `entropy_T` belong to the policy's own distribution: logits over its temperature, without top-p,
    top-k or banned tokens. They are None where the sampler knows only its truncated distribution; the trainer then
    computes them in a forward pass of its own (`rollout.recompute_logprobs`).
    """

    token_ids_T: torch.Tensor
    """int64, with the end-of-turn token where there is one."""
    text: str
    logprobs_T: torch.Tensor | None
    entropy_T: torch.Tensor | None
    truncated: bool
    """The response hit the length limit before it ended."""
    reward: Reward | None = None

    @property
    def correct(self) -> bool:
        return self.reward is not None and self.reward.correct

    def __len__(self) -> int:
        return int(self.token_ids_T.numel())


@dataclass
class Anchor:
    """The old response y_exp that a replayed prompt is calibrated against (Eq. 7), and why it was drawn."""

    token_ids_T: torch.Tensor
    logprobs_T: torch.Tensor | None = None
    """Under the weights at the start of the step; no gradient."""
    entropy_T: torch.Tensor | None = None
    """The same for the entropies."""
    recorded_logprobs_T: torch.Tensor | None = None
    """Under the weights that once sampled it (Off-PG's denominator)."""
    reward: Reward | None = None
    """What it earned when it was recorded; None where that is not known."""
    entropy: float | None = None
    dependency: float | None = None
    probability: float = 0.0
    """With which the prompt was drawn from the buffer (Eq. 6)."""
    age: int = 0
    """Steps since the response was recorded."""
    times_drawn: int = 0


@dataclass
class RolloutGroup:
    """A prompt with its G responses."""

    prompt: Prompt
    responses: list[Response]
    replayed: bool = False
    anchor: Anchor | None = None

    @property
    def accuracies(self) -> list[float]:
        return [0.0 if r.reward is None else r.reward.accuracy for r in self.responses]

    @property
    def success_rate(self) -> float:
        """p-hat = k/G."""
        return sum(a > 0.5 for a in self.accuracies) / len(self.responses)

    @property
    def is_informative(self) -> bool:
        """0 < k < G: the group advantage is not zero everywhere (DAPO's filter, on accuracy alone)."""
        return 0.0 < self.success_rate < 1.0
