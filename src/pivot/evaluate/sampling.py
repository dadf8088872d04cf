"""Graded samples: k responses per prompt with their rewards, from which every score is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pivot.rewards.judge import Judge
from pivot.sampling import Sampler, SampleRequest
from pivot.types import Prompt, Response


@dataclass(frozen=True)
class GradedPrompt:
    """A prompt with its graded responses."""

    prompt: Prompt
    responses: list[Response]


def graded_samples(
    sampler: Sampler, prompts: Sequence[Prompt], judge: Judge, request: SampleRequest
) -> Iterator[GradedPrompt]:
    """Sample and grade every prompt, in the order in which they finish."""
    for index, responses in sampler.sample(prompts, request):
        rewards = judge.judge([prompts[index]] * len(responses), [r.text for r in responses])
        for response, reward in zip(responses, rewards, strict=True):
            response.reward = reward
        yield GradedPrompt(prompts[index], responses)
