"""What a training step is asked for, and everything that is known of it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pivot.engines.base import Skipped
from pivot.method import Batch, Diagnostics
from pivot.sampling import Sampling
from pivot.training.anchors import AnchorScores
from pivot.training.selection import Selection
from pivot.types import RolloutGroup


@dataclass(frozen=True)
class StepPlan:
    """The sizes of a step."""

    prompts: int
    """N, groups trained on."""
    minibatch_prompts: int
    responses: int
    """G."""
    max_tries: int
    """Rounds of dynamic sampling."""
    sampling: Sampling
    seed: int
    learning_rate: Callable[[int], float]
    """By step."""
    steps: int = 1
    """Of the whole run, for schedules."""
    oversample: bool = True
    """Sample more prompts than are missing, by the share that the filter recently dropped."""
    recompute_logprobs: bool = False
    """Compute log-probs and entropies in a pass of their own even if sampling returns them."""
    store_logprobs: bool = False
    """Store the log-probs of successful responses with them (Off-PG)."""
    overlong_cache: int = 0
    """Tokens before the longest response over which DAPO's penalty grows; 0: none."""
    mask_truncated: bool = False
    """Leave truncated responses out of the loss."""
    importance_cap: float | None = None
    """Weigh tokens by the truncated ratio of trainer and sampler, where another program samples."""
    max_responses: int | None = None
    """Of the whole run; None: no limit."""


@dataclass(frozen=True)
class Sampled:
    """What a run has sampled so far, groups that the filter drops included."""

    responses: int = 0
    tokens: int = 0

    def after(self, groups: Sequence[RolloutGroup]) -> Sampled:
        lengths = [len(response) for group in groups for response in group.responses]
        return Sampled(self.responses + len(lengths), self.tokens + sum(lengths))


@dataclass
class UpdateSummary:
    """The updates of a step; terms are means over those that were made."""

    terms: dict[str, float] = field(default_factory=dict)
    grad_norms: list[float] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def num_updates(self) -> int:
        return len(self.grad_norms)


@dataclass
class StepOutcome:
    """Everything about a step, for metrics and records."""

    step: int
    lr: float
    selection: Selection
    replay_active: bool
    anchors: AnchorScores = field(default_factory=AnchorScores)
    groups: list[RolloutGroup] = field(default_factory=list)
    """What was trained on, in the order of the batch's rows."""
    batch: Batch | None = None
    diagnostics: Diagnostics | None = None
    update: UpdateSummary | None = None
    noise_level: float | None = None
    """Diffusion step of the noise that part of the responses were sampled under (NoisyRollout)."""
    num_stored: int | None = None
    """Stored groups that were trained on (SSR)."""
    total: Sampled = Sampled()
    """What the run has sampled up to the end of this step."""
