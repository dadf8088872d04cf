"""What a run measures of itself: regular validation, and the table of accuracies before and after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from pivot.config import Config, DataConfig
from pivot.data import MEMORY
from pivot.data.sources import named_splits
from pivot.engines.base import Engine
from pivot.engines.local import LocalEngine
from pivot.errors import UserError
from pivot.evaluation.sampling import GradedPrompt, evaluation_request, graded_samples
from pivot.evaluation.scoring import as_graded, read_scores, summarise
from pivot.evaluation.settings import EvaluationSettings, recorded
from pivot.models.policy import Policy
from pivot.rewards.judge import Judge
from pivot.runs.progress import Progress
from pivot.sampling import SampleRequest
from pivot.training.build import evaluation_sampling
from pivot.training.prompts import Prompts, load_prompts, styled
from pivot.types import Prompt


@dataclass
class Evaluation:
    """Runs the evaluations that a configuration asks for."""

    config: Config
    engine: Engine
    judge: Judge
    progress: Progress
    held_out: Mapping[str, list[Prompt]] = field(default_factory=dict)
    """Training set -> its prompts that are held out, for sets without a validation split."""
    _said: set[str] = field(default_factory=set, init=False)

    def validation_prompts(self) -> list[Prompt]:
        """The validation set; none if `eval.every` is 0 or nothing is held out."""
        data = self.config.data
        if not self.config.eval.every:
            return []
        found = self._held_out(data.validation_split, data.validation_size)
        return [prompt for prompts in found for prompt in prompts.by_id.values()]

    def final_sets(self) -> dict[str, list[Prompt]]:
        """The sets of the before/after table by name."""
        data, settings = self.config.data, self.config.eval
        # A file has no splits; the validation set is its only other one.
        has_splits = any(not self._is_whole(name) for name in data.sets)
        splits = settings.sets if has_splits else (data.validation_split,)
        size = settings.final_prompts
        found: dict[str, list[Prompt]] = {}
        for split in splits if size != 0 else ():
            for prompts in self._held_out(split, size):
                name = prompts.name if prompts.name not in found else f"{prompts.name}-{split}"
                found[name] = list(prompts.by_id.values())
        return found

    def _held_out(self, split: str, size: int | None) -> list[Prompts]:
        """A held-out split of each training set that has one. `data.validation` must exist if it is set."""
        data = self.config.data
        if data.validation is not None and split == data.validation_split:
            return [self._load(data.validation, split, size, replace(data, path=None))]
        found = [self._of_set(name, split, size) for name in data.sets]
        return [prompts for prompts in found if prompts is not None]

    def _of_set(self, name: str, split: str, size: int | None) -> Prompts | None:
        """A training set's split or its held-out rows; None, with a message, if it has neither."""
        data = self.config.data
        if name in self.held_out:
            kept = self.held_out[name][:size]
            if not kept:
                return None
            return Prompts(f"{kept[0].id.partition('/')[0]}-holdout", {p.id: p for p in kept})
        if self._is_whole(name):
            self.progress.say(
                f"{name} has no split {split!r}, so nothing is held out: set data.validation=FILE or data.holdout=0.05 "
                "for a validation set"
            )
            return None
        try:
            return self._load(name, split, size, data)
        except UserError as missing:
            self.progress.say(f"split {split!r} is not evaluated: {missing}")
            return None

    def _is_whole(self, name: str) -> bool:
        """Whether a set is one file or a folder without splits, all of which is trained on."""
        data = self.config.data
        path = Path(data.path or name).expanduser()
        is_one = name == MEMORY or (path.exists() and not named_splits(path))
        return name in self.held_out or is_one

    def _load(self, name: str, split: str, size: int | None, data: DataConfig) -> Prompts:
        """The prompts of a split; each note about missing or skipped rows is printed once."""
        prompts = styled(load_prompts(name, split, size, data), self.config.prompt.style)
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
    grader = " + ".join(config.reward.functions) or config.reward.grader
    sampler = EvaluationSettings.engine
    if not isinstance(model, Policy):
        sampler = model.sampler.name if isinstance(model, LocalEngine) else model.name
    return EvaluationSettings(
        request, grader, sampler, config.model.dtype, min_pixels, max_pixels, config.prompt
    )


def before_after_table(run: Path) -> Table | None:
    """Accuracy before and after training on each set, with intervals; None if nothing was measured."""
    entries = read_scores(run / "eval" / "scores.json")
    if not entries:
        return None
    samples = max(e["samples"] for e in entries)
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
