"""One model on one set: what is already there is read, the rest is drawn and graded, and all of it is scored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pivot.evaluate.samples_file import SamplesFile
from pivot.evaluate.sampling import graded_samples
from pivot.evaluate.scoring import Graded, score
from pivot.evaluate.sets import EvaluationSet
from pivot.evaluate.settings import EvaluationSettings, recorded
from pivot.evaluate.target import Target
from pivot.rewards.judge import Judge
from pivot.sampling import Sampler
from pivot.types import Prompt

Track = Callable[[Iterable[Any], str, int, int], Iterable[Any]]
"""(items, description, done before, total) -> the items, shown as they are taken."""


def identity(target: Target, set_name: str, settings: EvaluationSettings) -> dict[str, Any]:
    """Everything that a sample's text and grade depend on; equal identities may share a file."""
    return {"version": 1, "set": set_name, "model": target.fingerprint, **recorded(settings)}


@dataclass(frozen=True)
class Evaluator:
    """Evaluates one model on sets.

    Example:
        evaluator = Evaluator(target, open_sampler, judge, Path("eval/tiny"), track)
        entry = evaluator.evaluate(chosen, settings)
    """

    target: Target
    open_sampler: Callable[[], Sampler]
    """Called only when something is left to draw: a finished evaluation needs no model."""
    judge: Judge
    out: Path
    track: Track

    def evaluate(self, chosen: EvaluationSet, settings: EvaluationSettings) -> dict[str, Any]:
        """An entry of scores.json."""
        blank = settings.request.blank
        name = f"{chosen.name}-blank" if blank else chosen.name
        file = SamplesFile(self.out, name, identity(self.target, chosen.name, settings))
        samples = file.finished(chosen.prompts)
        missing = [prompt for prompt in chosen.prompts if prompt.id not in samples]
        if missing:
            note = f"{self.target.title} on {chosen.name}{' (blank images)' if blank else ''}"
            drawn = graded_samples(self.open_sampler(), missing, self.judge, settings.request)
            for graded in self.track(drawn, note, len(samples), len(chosen.prompts)):
                samples[graded.prompt.id] = file.append(graded)
        return {
            "name": chosen.name,
            "when": self.target.when,
            "model": self.target.name,
            "blank": blank,
            **summarise_samples(chosen.name, chosen.prompts, samples),
            "settings": file.identity,
            "file": file.path.name,
        }


def summarise_samples(
    name: str, prompts: Sequence[Prompt], samples: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """Scores of a set from the lines of its samples, whatever process drew them."""
    graded = [
        Graded(p.id, tuple(bool(line["correct"]) for line in samples[p.id]), p.task, p.columns)
        for p in prompts
    ]
    lines = [line for p in prompts for line in samples[p.id]]
    return {
        **score(name, graded),
        "format": sum(line["format"] for line in lines) / len(lines),
        "length": sum(line["tokens"] for line in lines) / len(lines),
        "truncated": sum(line["truncated"] for line in lines) / len(lines),
    }
