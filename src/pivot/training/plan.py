"""The sizes of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pivot.sampling import Sampling, plan_batches


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
    oversample: bool = True
    """Sample more prompts than are missing, by the share that the filter recently dropped."""
    batch_tokens: int = 65536
    halve_on_oom: bool = True
    """Whether running out of memory in a rollout lowers `batch_tokens` instead of ending the run."""
    recompute_logprobs: bool = False
    store_logprobs: bool = False
    overlap: bool = False
    """Score beside the rollout what can be (training/lookahead.py)."""

    def halved(self, prompt_lengths: Sequence[int]) -> StepPlan | None:
        """At most half as many of these prompts decoded at once; None where that cannot be done."""
        max_tokens = self.sampling.max_tokens
        batches = plan_batches(prompt_lengths, self.responses, max_tokens, self.batch_tokens)
        most = max(map(len, batches), default=0)
        if not self.halve_on_oom or most < 2:
            return None
        need = self.responses * (max(prompt_lengths) + max_tokens)
        return replace(self, batch_tokens=min(self.batch_tokens, need * most) // 2)
