"""Graded samples: k responses per prompt with their rewards, from which every score is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pivot.rewards.judge import Judge
from pivot.sampling import Sampler, SampleRequest, Sampling
from pivot.types import Prompt, Response


@dataclass(frozen=True)
class GradedPrompt:
    """A prompt with its graded responses."""

    prompt: Prompt
    responses: list[Response]


def evaluation_request(
    num_samples: int = 8, sampling: Sampling | None = None, seed: int = 0, blank: bool = False
) -> SampleRequest:
    """The draws depend on (seed, prompt, sample) alone, so that a resumed evaluation gives the same responses."""
    return SampleRequest(num_samples, sampling or Sampling(), key=(seed, "evaluation"), blank=blank)


def graded_samples(
    sampler: Sampler, prompts: Sequence[Prompt], judge: Judge, request: SampleRequest
) -> Iterator[GradedPrompt]:
    """Sample and grade every prompt, in the order in which they finish."""
    for index, responses in sampler.sample(prompts, request):
        rewards = judge.judge([prompts[index]] * len(responses), [r.text for r in responses])
        for response, reward in zip(responses, rewards, strict=True):
            response.reward = reward
        yield GradedPrompt(prompts[index], responses)
