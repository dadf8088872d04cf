"""What a run measures of itself: regular validation, and the table of accuracies before and after training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from pivot.config import Config
from pivot.data import MEMORY
from pivot.engines.base import Engine
from pivot.errors import UserError
from pivot.evaluate.sampling import GradedPrompt, evaluation_request, graded_samples
from pivot.evaluate.scoring import as_graded, summarise
from pivot.evaluate.settings import EvaluationSettings, recorded
from pivot.models.policy import Policy
from pivot.rewards.judge import Judge
from pivot.runs.progress import Progress
from pivot.sampling import SampleRequest
from pivot.training.build import evaluation_sampling
from pivot.training.prompts import Prompts, load_prompts
from pivot.types import Prompt


@dataclass
class Evaluation:
    """Runs the evaluations that a configuration asks for."""

    config: Config
    engine: Engine
    judge: Judge
    progress: Progress
    _said: set[str] = field(default_factory=set, init=False)

    def validation_prompts(self) -> list[Prompt]:
        """The validation set; none if `eval.every` is 0 or nothing is held out."""
        data = self.config.data
        found = (
            self._held_out(data.validation_split, data.validation_size) if self.config.eval.every else None
        )
        return [] if found is None else list(found.by_id.values())

    def final_sets(self) -> dict[str, list[Prompt]]:
        """The sets of the before/after table by name."""
        data, settings = self.config.data, self.config.eval
        # A file has no splits; the validation file is its only other set.
        splits = (data.validation_split,) if _is_one_file(data.train) else settings.sets
        size = settings.final_prompts
        found = [] if size == 0 else [self._held_out(split, size) for split in splits]
        return {prompts.name: list(prompts.by_id.values()) for prompts in found if prompts is not None}

    def _held_out(self, split: str, size: int | None) -> Prompts | None:
        """A held-out split; None, with a message, if there is none. `data.validation` must exist if it is set."""
        data = self.config.data
        if data.validation is not None and split == data.validation_split:
            return self._load(data.validation, split, size)
        if _is_one_file(data.train):
            named = "the data" if data.train == MEMORY else data.train
            self.progress.say(
                f"{named} is one set of rows, so nothing is held out: set data.validation=FILE for a validation set"
            )
            return None
        try:
            return self._load(data.train, split, size)
        except UserError as missing:
            self.progress.say(f"split {split!r} is not evaluated: {missing}")
            return None

    def _load(self, name: str, split: str, size: int | None) -> Prompts:
        """The prompts of a split; each note about missing or skipped rows is printed once."""
        prompts = load_prompts(name, split, size, self.config.data)
        for note in prompts.notes:
            if note not in self._said:
                self.progress.say(f"{prompts.name}, {split}: {note}")
            self._said.add(note)
        return prompts

    def validate(self, prompts: Sequence[Prompt]) -> dict[str, float]:
        """`eval/` metrics of a step."""
        found = self._sample(prompts, self._request(self.config.eval.samples), "validation")
        entry = summarise(as_graded(found))
        return {f"eval/{name}": entry[name] for name in ("accuracy", "format", "length")}

    def table(self, sets: dict[str, list[Prompt]], when: str) -> list[dict[str, Any]]:
        """An entry of scores.json per set, and one with blank images if `eval.blank` is on."""
        entries = []
        for name, prompts in sets.items():
            for blank in (False, True) if self.config.eval.blank else (False,):
                note = f"{name}{' (blank images)' if blank else ''}, {when} training"
                request = self._request(self.config.eval.final_samples, blank)
                found = self._sample(prompts, request, note)
                labels = {"name": name, "when": when, "model": self.config.model.path, "blank": blank}
                how = recorded(settings_of(self.config, self.engine, request))
                entries.append({**summarise(as_graded(found), **labels), "settings": how})
        return entries

    def _request(self, num_samples: int, blank: bool = False) -> SampleRequest:
        return evaluation_request(
            num_samples, evaluation_sampling(self.config), self.config.train.seed, blank
        )

    def _sample(self, prompts: Sequence[Prompt], request: SampleRequest, note: str) -> list[GradedPrompt]:
        samples = graded_samples(self.engine.evaluation_sampler(), prompts, self.judge, request)
        return list(self.progress.track(samples, f"evaluating {note}", len(prompts)))


def settings_of(config: Config, model: Policy | Engine, request: SampleRequest) -> EvaluationSettings:
    """How a run evaluates: as it trains."""
    min_pixels, max_pixels = model.encoder.image_limits
    grader = config.reward.function or config.reward.grader
    sampler = "local" if isinstance(model, Policy) else model.name
    if sampler == "local":
        sampler = EvaluationSettings.engine  # `pivot eval` has its own name for it
    return EvaluationSettings(request, grader, sampler, config.model.dtype, min_pixels, max_pixels)


def _is_one_file(name: str) -> bool:
    """A file, or rows in memory: a set without splits."""
    return name == MEMORY or Path(name).expanduser().is_file()


def before_after_table(run: Path) -> Table | None:
    """Accuracy before and after training on each set, with intervals; None if nothing was measured."""
    path = run / "eval" / "scores.json"
    if not path.exists():
        return None
    entries = json.loads(path.read_bytes())["evaluations"]
    samples = max((e["samples"] for e in entries), default=0)
    table = Table(title=f"accuracy@{samples}, 95% interval over prompts", title_justify="left")
    for column in ("set", "images", "before", "after", "change"):
        table.add_column(column, justify="left" if column in ("set", "images") else "right")
    for name, blank in dict.fromkeys((e["name"], e["blank"]) for e in entries):
        moments = {e["when"]: e for e in entries if (e["name"], e["blank"]) == (name, blank)}
        before, after = moments.get("before"), moments.get("after")
        table.add_row(
            name, "blank" if blank else "shown", _cell(before), _cell(after), _change(before, after)
        )
        if not blank:
            for task in (after or before or {}).get("categories", {}):
                table.add_row(f"  {task}", "", _task(before, task), _task(after, task), "", style="dim")
    return table


def _cell(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "-"
    low, high = entry["interval"]
    return f"{entry['accuracy']:.1%} [{low:.1%}, {high:.1%}]"


def _task(entry: dict[str, Any] | None, task: str) -> str:
    known = (entry or {}).get("categories", {}).get(task)
    return "-" if known is None else f"{known['accuracy']:.1%}"


def _change(before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    """In percentage points, which are not percent of the first accuracy."""
    if before is None or after is None:
        return "-"
    return f"{100 * (after['accuracy'] - before['accuracy']):+.1f} points"
