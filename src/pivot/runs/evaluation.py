"""What a run measures of itself: a validation pass now and then, and the table before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pivot.config import Config
from pivot.errors import UserError
from pivot.evaluate.sampling import GradedPrompt, evaluation_request, graded_samples
from pivot.evaluate.scoring import as_graded, summarise
from pivot.evaluate.settings import EvaluationSettings, recorded
from pivot.models.policy import Policy
from pivot.rewards.judge import Judge
from pivot.runs.progress import Progress
from pivot.sampling import NativeSampler, Sampler, SampleRequest
from pivot.training.build import evaluation_sampling
from pivot.training.prompts import Prompts, load_prompts
from pivot.types import Prompt


@dataclass
class Evaluation:
    """Runs the evaluations that a configuration asks for."""

    config: Config
    judge: Judge
    progress: Progress
    open_sampler: Callable[[Policy], Sampler] = NativeSampler
    engine: str = "embedded"
    """What draws the samples, for their recorded settings."""
    _said: set[str] = field(default_factory=set, init=False)

    def validation_prompts(self) -> list[Prompt]:
        """Watched during training; none when `eval.every` is 0 or nothing is held out."""
        data = self.config.data
        found = (
            self._held_out(data.validation_split, data.validation_size) if self.config.eval.every else None
        )
        return [] if found is None else list(found.by_id.values())

    def final_sets(self) -> dict[str, list[Prompt]]:
        """The sets of the before/after table by name."""
        data, settings = self.config.data, self.config.eval
        # A file has no splits; what the user holds out for it is its only other set.
        splits = (data.validation_split,) if _is_one_file(data.train) else settings.sets
        size = settings.final_prompts
        found = [] if size == 0 else [self._held_out(split, size) for split in splits]
        return {prompts.name: list(prompts.by_id.values()) for prompts in found if prompts is not None}

    def _held_out(self, split: str, size: int | None) -> Prompts | None:
        """A split of the training set's family; None, with a word, where nothing is held out.

        What the user names in `data.validation` must be there.
        """
        data = self.config.data
        if data.validation is not None and split == data.validation_split:
            return self._load(data.validation, split, size)
        if _is_one_file(data.train):
            self.progress.say(
                f"{data.train} is one file, nothing is held out: data.validation=FILE would be watched"
            )
            return None
        try:
            return self._load(data.train, split, size)
        except UserError as missing:
            self.progress.say(f"nothing is measured on split {split!r}: {missing}")
            return None

    def _load(self, name: str, split: str, size: int | None) -> Prompts:
        """The prompts of a split; says once which rows are missing or left out."""
        prompts = load_prompts(name, split, size, self.config.data)
        for note in prompts.notes:
            if note not in self._said:
                self.progress.say(f"{prompts.name}, {split}: {note}")
            self._said.add(note)
        return prompts

    def validate(self, policy: Policy, prompts: Sequence[Prompt]) -> dict[str, float]:
        """`eval/` metrics of a step."""
        found = self._sample(policy, prompts, self._request(self.config.eval.samples), "validation")
        entry = summarise(as_graded(found))
        return {f"eval/{name}": entry[name] for name in ("accuracy", "format", "length")}

    def table(self, policy: Policy, sets: dict[str, list[Prompt]], when: str) -> list[dict[str, Any]]:
        """An entry of scores.json a set, and one with blank images where that is asked for."""
        entries = []
        for name, prompts in sets.items():
            for blank in (False, True) if self.config.eval.blank else (False,):
                note = f"{name}{' (blank images)' if blank else ''}, {when} training"
                request = self._request(self.config.eval.final_samples, blank)
                found = self._sample(policy, prompts, request, note)
                labels = {"name": name, "when": when, "model": self.config.model.path, "blank": blank}
                how = recorded(settings_of(self.config, policy, request, self.engine))
                entries.append({**summarise(as_graded(found), **labels), "settings": how})
        return entries

    def _request(self, num_samples: int, blank: bool = False) -> SampleRequest:
        return evaluation_request(
            num_samples, evaluation_sampling(self.config), self.config.train.seed, blank
        )

    def _sample(
        self, policy: Policy, prompts: Sequence[Prompt], request: SampleRequest, note: str
    ) -> list[GradedPrompt]:
        samples = graded_samples(self.open_sampler(policy), prompts, self.judge, request)
        return list(self.progress.track(samples, f"evaluating {note}", len(prompts)))


def settings_of(
    config: Config, policy: Policy, request: SampleRequest, engine: str = "embedded"
) -> EvaluationSettings:
    """How a run evaluates: as it trains."""
    min_pixels, max_pixels = policy.encoder.image_limits
    grader = config.reward.function or config.reward.grader
    return EvaluationSettings(request, grader, engine, config.model.dtype, min_pixels, max_pixels)


def _is_one_file(name: str) -> bool:
    return Path(name).expanduser().is_file()
