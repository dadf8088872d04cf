"""What a run measures of itself: a validation pass now and then, and the table before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pivot.config import Config
from pivot.evaluate.sampling import Draws, GradedPrompt, PolicySampler, graded_samples
from pivot.evaluate.summary import summarise
from pivot.policy.policy import Policy
from pivot.tasks.judge import Judge
from pivot.train.assembly import evaluation_sampling
from pivot.train.data import load_prompts
from pivot.train.progress import Progress
from pivot.types import Prompt


@dataclass
class Evaluation:
    """Runs the evaluations that a configuration asks for."""

    config: Config
    judge: Judge
    progress: Progress

    def validation_prompts(self) -> list[Prompt]:
        """Watched during training; none when `eval.every` is 0."""
        data = self.config.data
        if not self.config.eval.every:
            return []
        name = data.validation or data.train
        return list(load_prompts(name, data.validation_split, data.validation_size, data).by_id.values())

    def final_sets(self) -> dict[str, list[Prompt]]:
        """The sets of the before/after table by name."""
        data, settings = self.config.data, self.config.eval
        if not settings.final_prompts:
            return {}
        found = [load_prompts(data.train, split, settings.final_prompts, data) for split in settings.sets]
        return {prompts.name: list(prompts.by_id.values()) for prompts in found}

    def validate(self, policy: Policy, prompts: Sequence[Prompt]) -> dict[str, float]:
        """`eval/` metrics of a step."""
        found = self._sample(policy, prompts, self.config.eval.samples, "validation")
        entry = summarise(found)
        return {f"eval/{name}": entry[name] for name in ("accuracy", "format", "length")}

    def table(self, policy: Policy, sets: dict[str, list[Prompt]], when: str) -> list[dict[str, Any]]:
        """An entry of scores.json a set, and one with blank images where that is asked for."""
        entries = []
        for name, prompts in sets.items():
            for blank in (False, True) if self.config.eval.blank else (False,):
                note = f"{name}{' (blank images)' if blank else ''}, {when} training"
                found = self._sample(policy, prompts, self.config.eval.final_samples, note, blank=blank)
                labels = {"name": name, "when": when, "model": self.config.model.path, "blank": blank}
                entries.append(summarise(found, **labels))
        return entries

    def _sample(
        self, policy: Policy, prompts: Sequence[Prompt], num_samples: int, note: str, blank: bool = False
    ) -> list[GradedPrompt]:
        draws = Draws(num_samples, evaluation_sampling(self.config), self.config.train.seed, blank)
        samples = graded_samples(PolicySampler(policy), prompts, self.judge, draws)
        return list(self.progress.track(samples, f"evaluating {note}", len(prompts)))
