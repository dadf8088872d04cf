"""Graded samples: k responses of each prompt, judged; what every score is computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pivot.policy.corruption import Corruption, Corruptor
from pivot.policy.policy import Policy
from pivot.rollout import Sampling, sample_responses
from pivot.tasks.judge import Judge
from pivot.types import Prompt, Response

Track = Callable[[Iterable, str, int], Iterable]
CHUNK = 64
"""Prompts encoded at once."""


@dataclass(frozen=True)
class GradedPrompt:
    """A prompt with its graded responses."""

    prompt: Prompt
    responses: list[Response]


def graded_samples(
    policy: Policy,
    prompts: Sequence[Prompt],
    judge: Judge,
    *,
    num_samples: int,
    sampling: Sampling,
    seed: int = 0,
    blank: bool = False,
) -> Iterator[GradedPrompt]:
    """Sample and grade every prompt; `blank` shows grey canvases instead of the images.

    The draws depend on (seed, prompt, sample) alone, so a repeated or resumed evaluation is the same.
    """
    painter = Corruptor(policy.encoder, Corruption(kind="grey"), seed)
    policy.forget_features()
    for start in range(0, len(prompts), CHUNK):
        chunk = prompts[start : start + CHUNK]
        encoded = [policy.encoder.encode(prompt) for prompt in chunk]
        if blank:
            encoded = [painter.corrupt(prompt, 0) for prompt in encoded]
        for index, responses in sample_responses(
            policy, encoded, num_samples, sampling, key=(seed, "evaluation")
        ):
            rewards = judge.judge([chunk[index]] * len(responses), [r.text for r in responses])
            for response, reward in zip(responses, rewards, strict=True):
                response.reward = reward
            yield GradedPrompt(chunk[index], responses)
        policy.forget_features()
