"""The data types of a training step: a prompt, a response and its reward, an anchor, a group of responses.

Plain dataclasses that every room may use, with no behaviour beyond what follows from their fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from PIL import Image


class ImageSource(Protocol):
    """Where an image comes from; it is opened when it is needed and never kept."""

    def open(self) -> Image.Image:
        """The image, in the mode of its file."""
        ...


@dataclass(frozen=True)
class Prompt:
    """One problem of a data set: x = (q, I) with its ground truth a.

    Example:
        Prompt(id="geometry3k/train/17", question="<image>Find x.", answer="70", images=(source,))
    """

    id: str
    """Stable across runs and machines; the experience buffer's key."""
    question: str
    """The text; each `<image>` mark stands for the next of `images`. Without marks the images come first."""
    answer: str
    images: tuple[ImageSource, ...] = ()
    task: str = ""
    """The procedural task, benchmark category or data set that the prompt belongs to."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """All other columns of the data row; custom reward functions receive them."""
    system: str | None = ""
    """The system message that the row brings; empty: the paper's; None: none, so that the chat template decides."""
    turn: str | None = None
    """The user's turn as `prompt.template` renders it, image marks included; None: the paper's template."""


class PreparedPrompt(Protocol):
    """A prompt as an engine holds it: encoded, or only measured where other processes encode it."""

    @property
    def prompt(self) -> Prompt: ...

    def __len__(self) -> int:
        """Tokens, images included."""
        ...


@dataclass(frozen=True)
class Reward:
    """The reward of one response."""

    accuracy: float
    """R of Eq. 2: the verifier's 1 or 0, or the weighted sum of the run's reward functions."""
    format: float
    """1 if the response follows the template's format, else 0."""
    reason: str
    """Why: correct, wrong, no box, no answer, unparsable, timed out, too long, not finite, not rewarded."""
    extracted: str | None = None
    path: str = ""
    """What decided: `fast` (one value or text), `structured` (lists, ranges, times, sets ...) or `library`."""
    success: bool | None = None
    """Whether the response counts as correct in k, p-hat, s and sign protection; None: if `accuracy` exceeds 0.5."""
    parts: Mapping[str, float | None] = field(default_factory=dict)
    """The value of each reward function by its name in the metrics; None: it does not apply to this row."""

    @property
    def correct(self) -> bool:
        return self.accuracy > 0.5 if self.success is None else self.success


@dataclass
class Response:
    """One sampled answer y.

    `logprobs_T` and `entropy_T` are those of the policy's own distribution: logits over its temperature, without top-p,
    top-k or banned tokens. They are None where another program sampled; the trainer then computes them in a forward
    pass.
    """

    token_ids_T: torch.Tensor
    """int64, with the end-of-turn token if there is one."""
    text: str
    logprobs_T: torch.Tensor | None
    entropy_T: torch.Tensor | None
    truncated: bool
    """The response hit the length limit before it ended."""
    reward: Reward | None = None
    sampler_logprobs_T: torch.Tensor | None = None
    """What the program that sampled (vLLM) says the log-probs are, to compare with the trainer's."""
    stored: bool = False
    """From an earlier step's stored group: `logprobs_T` are those of that step."""

    @property
    def correct(self) -> bool:
        return self.reward is not None and self.reward.correct

    def __len__(self) -> int:
        return int(self.token_ids_T.numel())


@dataclass
class Anchor:
    """A stored response of a replayed prompt: a candidate for y_exp, or y_exp itself (Eq. 7)."""

    token_ids_T: torch.Tensor
    logprobs_T: torch.Tensor | None = None
    """Under the weights at the start of the step; no gradient."""
    entropy_T: torch.Tensor | None = None
    """Likewise."""
    recorded_logprobs_T: torch.Tensor | None = None
    """Under the weights that sampled it (Off-PG's denominator)."""
    reward: Reward | None = None
    """The reward it was recorded with; None if unknown."""
    entropy: float | None = None
    """H(y), Eq. 5."""
    dependency: float | None = None
    """V(y), Eq. 4."""
    probability: float = 0.0
    """With which the prompt was drawn from the buffer (Eq. 6)."""
    age: int = 0
    """Steps since the response was recorded."""
    score_age: int = 0
    """Steps since `entropy` and `dependency` were computed."""
    times_drawn: int = 0
    serial: int = -1
    """Its number in the buffer; -1 for an expert demonstration."""

    @property
    def is_scored(self) -> bool:
        return self.entropy is not None and self.dependency is not None

    def __len__(self) -> int:
        return int(self.token_ids_T.numel())


@dataclass
class RolloutGroup:
    """A prompt on its way through a step: drawn, then with its G responses, then with its anchor."""

    prompt: Prompt
    responses: list[Response] = field(default_factory=list)
    replayed: bool = False
    anchor: Anchor | None = None
    candidates: tuple[Anchor, ...] = ()
    """The stored responses as they were when the prompt was drawn, oldest first; the anchor is one of them."""
    prepared: PreparedPrompt | None = None
    """The prompt as the engine holds it."""

    @property
    def accuracies(self) -> list[float]:
        return [0.0 if r.reward is None else r.reward.accuracy for r in self.responses]

    @property
    def success_rate(self) -> float:
        """p-hat = k/G."""
        return sum(response.correct for response in self.responses) / len(self.responses)

    @property
    def is_informative(self) -> bool:
        """0 < k < G: some responses are correct and some are not (DAPO's filter, on accuracy alone)."""
        return 0.0 < self.success_rate < 1.0
