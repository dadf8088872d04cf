"""Scores of stored responses to the prompts that are sampled from, taken where the prompts' keys and values are.

Most of the tokens in a candidate's forward pass are its prompt's, and sampling has just computed those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pivot.models.continued import score_continued
from pivot.models.decoding import PrefilledPrompts
from pivot.models.family import EncodedPrompt
from pivot.models.policy import Policy, ResponseStatistics
from pivot.models.rows import PromptWithResponses

Units = list[PromptWithResponses]


class ScoreContinued:
    """Called by the sampler after each prefill; scores the units of those prompts under the clean image."""

    def __init__(
        self,
        policy: Policy,
        units: Sequence[PromptWithResponses],
        most_tokens: int,
        keep: Callable[[Units, ResponseStatistics], None],
    ) -> None:
        self._policy, self._units, self._most_tokens, self._keep = policy, units, most_tokens, keep

    def __call__(
        self, prompts: Sequence[EncodedPrompt], prefilled: PrefilledPrompts, hidden_PD: Tensor
    ) -> None:
        number = {id(prompt): row for row, prompt in enumerate(prompts)}
        units = [unit for unit in self._units if id(unit.prompt) in number]
        for part in self._parts(units, prefilled.seen_PL.shape[1]):
            prompt_B = torch.tensor([number[id(unit.prompt)] for unit in part for _ in unit.responses])
            responses = [y for unit in part for y in unit.responses]
            self._keep(part, score_continued(self._policy, prefilled, hidden_PD, prompt_B, responses))

    def _parts(self, units: Units, prompt_length: int) -> Iterator[Units]:
        """As many units at once as a micro-batch has tokens; each response repeats its prompt's keys and values."""
        part: Units = []
        for unit in units:
            lengths = [len(y) for one in (*part, unit) for y in one.responses]
            if part and len(lengths) * (prompt_length + max(lengths)) > self._most_tokens:
                yield part
                part = []
            part.append(unit)
        if part:
            yield part
