"""Graded samples: k responses of each prompt, judged; what every score is computed from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pivot.models.corruption import Corruption, Corruptor
from pivot.models.policy import Policy
from pivot.rewards.judge import Judge
from pivot.sampling import Sampling, sample_responses
from pivot.types import Prompt, Response

CHUNK = 64
"""Prompts encoded at once."""


@dataclass(frozen=True)
class Draws:
    """What is drawn of each prompt.

    Example:
        Draws(num_samples=8, sampling=Sampling(max_tokens=2048))
    """

    num_samples: int = 8
    sampling: Sampling = Sampling()  # noqa: RUF009 - frozen
    seed: int = 0
    blank: bool = False
    """Show grey canvases of the same size instead of the images: how much is language prior."""


class Sampler(Protocol):
    """Whatever draws responses: the policy in this process, or vLLM."""

    def sample(self, prompts: Sequence[Prompt], draws: Draws) -> Iterator[tuple[int, list[Response]]]:
        """Yield (index of the prompt, its responses) as they finish; every prompt comes once.

        The draws depend on (seed, prompt, sample) alone, so a repeated or resumed evaluation is the same.
        """
        ...

    def close(self) -> None: ...


class PolicySampler:
    """The embedded engine: the very code that samples in training."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def sample(self, prompts: Sequence[Prompt], draws: Draws) -> Iterator[tuple[int, list[Response]]]:
        policy = self.policy
        painter = Corruptor(policy.encoder, Corruption(kind="grey"), draws.seed)
        policy.forget_features()
        for start in range(0, len(prompts), CHUNK):
            encoded = [policy.encoder.encode(prompt) for prompt in prompts[start : start + CHUNK]]
            if draws.blank:
                encoded = [painter.corrupt(prompt, 0) for prompt in encoded]
            for index, responses in sample_responses(
                policy, encoded, draws.num_samples, draws.sampling, key=(draws.seed, "evaluation")
            ):
                yield start + index, responses
            policy.forget_features()

    def close(self) -> None: ...


@dataclass(frozen=True)
class GradedPrompt:
    """A prompt with its graded responses."""

    prompt: Prompt
    responses: list[Response]


def graded_samples(
    sampler: Sampler, prompts: Sequence[Prompt], judge: Judge, draws: Draws
) -> Iterator[GradedPrompt]:
    """Sample and grade every prompt, in the order in which they finish."""
    for index, responses in sampler.sample(prompts, draws):
        rewards = judge.judge([prompts[index]] * len(responses), [r.text for r in responses])
        for response, reward in zip(responses, rewards, strict=True):
            response.reward = reward
        yield GradedPrompt(prompts[index], responses)
