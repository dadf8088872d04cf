"""Scores of graded samples: accuracy@k with its interval, pass@k, categories; and the file scores.json."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pivot import locks
from pivot.durable import DamagedFile, read_json, write_json
from pivot.errors import UserError
from pivot.jsonl import read_rows
from pivot.terminal import warn
from pivot.types import Prompt

if TYPE_CHECKING:
    from pivot.evaluation.sampling import GradedPrompt

LEVEL, DRAWS = 0.95, 2000
"""Level of the bootstrap intervals, and their number of resamples."""
HEADER = "identity"
"""In the first line of a file of samples: everything that a sample's text and grade depend on."""
LABELS = "labels"
"""In the same line: the labels of the entry of scores.json."""
REQUIRED = frozenset({"name", "when", "blank", "samples", "accuracy"})
"""Fields of every entry of scores.json."""


@dataclass(frozen=True)
class Graded:
    """One prompt and how each of its k samples was graded.

    Example:
        Graded("we-math/testmini/2steps_122/2steps_1", (True, False), "one-step", {"ID": "2steps_122", ...})
    """

    id: str
    correct: tuple[bool, ...]
    category: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The row's own columns, by which a benchmark's own metrics group."""
    format: tuple[float, ...] = ()
    """The format reward of each sample."""
    length: tuple[int, ...] = ()
    """Tokens of each sample."""
    truncated: tuple[bool, ...] = ()

    @property
    def accuracy(self) -> float:
        """The share of correct samples: this prompt's accuracy@k."""
        return sum(self.correct) / len(self.correct)


def as_graded(found: Sequence[GradedPrompt]) -> list[Graded]:
    """Graded responses as the scores need them."""
    return [from_rows(item.prompt, sample_rows(item)) for item in found]


def from_rows(prompt: Prompt, rows: Sequence[Mapping[str, Any]]) -> Graded:
    """A prompt and its samples as `sample_rows` writes them."""
    return _graded(prompt.id, prompt.task, prompt.columns, rows)


def _graded(
    prompt_id: str, task: str, columns: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> Graded:
    return Graded(
        prompt_id,
        tuple(bool(row["correct"]) for row in rows),
        task,
        columns,
        tuple(row["format"] for row in rows),
        tuple(row["tokens"] for row in rows),
        tuple(row["truncated"] for row in rows),
    )


def sample_rows(graded: GradedPrompt) -> list[dict[str, Any]]:
    """One row per graded sample of a prompt."""
    return [
        {
            "correct": response.reward.correct,
            "format": response.reward.format,
            "reason": str(response.reward.reason),
            "extracted": response.reward.extracted,
            "answer": graded.prompt.answer,
            "tokens": len(response),
            "truncated": response.truncated,
            "task": graded.prompt.task,
            "text": response.text,
        }
        for response in graded.responses
        if response.reward is not None
    ]


def summarise(
    graded: Sequence[Graded],
    metrics: Callable[[Sequence[Graded]], dict[str, float]] | None = None,
    **labels: Any,
) -> dict[str, Any]:
    """An entry of scores.json: `labels`, then the scores; docs/run_folder.md describes it.

    `metrics` computes a benchmark's own metrics; if the rows do not allow it, `metrics_note` says why.
    """
    if not graded:
        raise UserError(f"{labels.get('name', 'the set')} has no graded sample: evaluate it first.")
    num_samples = min(len(prompt.correct) for prompt in graded)
    powers = {2**i for i in range(num_samples.bit_length()) if 2**i <= num_samples}
    entry = {
        **labels,
        "samples": num_samples,
        "prompts": len(graded),
        "accuracy": accuracy(graded),
        "interval": list(bootstrap_interval(graded)),
        "pass_at_k": {str(k): mean_pass_at_k(graded, k) for k in sorted(powers | {num_samples})},
        "categories": by_category(graded),
    }
    for name in ("format", "length", "truncated"):
        values = [value for prompt in graded for value in getattr(prompt, name)]
        entry |= {name: sum(values) / len(values)} if values else {}
    if metrics is not None:
        try:
            entry["metrics"] = metrics(graded)
        except UserError as incomplete:
            entry["metrics_note"] = str(incomplete)
    return entry


def accuracy(graded: Sequence[Graded]) -> float:
    """The paper's average accuracy@k (also called avg@k): the mean over prompts of the mean over samples."""
    return float(np.mean([prompt.accuracy for prompt in graded]))


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """The unbiased estimate of the chance that one of k samples is correct: 1 - C(n - c, k) / C(n, k)."""
    if not 1 <= k <= num_samples:
        raise ValueError(f"k is {k}; it must be between 1 and num_samples = {num_samples}")
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def mean_pass_at_k(graded: Sequence[Graded], k: int) -> float:
    """pass@k, mean over prompts."""
    return float(np.mean([pass_at_k(len(g.correct), sum(g.correct), k) for g in graded]))


def bootstrap_interval(graded: Sequence[Graded], seed: int = 0) -> tuple[float, float]:
    """A percentile interval of the accuracy, by resampling prompts (not samples) with replacement.

    Samples of one prompt are not independent of each other, so the prompt is the unit.
    """
    accuracies_P = np.array([prompt.accuracy for prompt in graded])
    generator = np.random.default_rng(seed)
    means = np.empty(DRAWS)
    for draw in range(DRAWS):
        means[draw] = accuracies_P[generator.integers(len(accuracies_P), size=len(accuracies_P))].mean()
    low, high = np.quantile(means, [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0])
    return float(low), float(high)


def by_category(graded: Iterable[Graded]) -> dict[str, dict[str, float]]:
    """Category -> accuracy and number of prompts, in order of first appearance."""
    groups: dict[str, list[Graded]] = defaultdict(list)
    for prompt in graded:
        if prompt.category:
            groups[prompt.category].append(prompt)
    return {name: {"accuracy": accuracy(group), "prompts": len(group)} for name, group in groups.items()}


def need_columns(graded: Sequence[Graded], names: tuple[str, ...]) -> None:
    """Raise a UserError if rows lack the columns that a benchmark's own metrics group by."""
    missing = [name for name in names if any(name not in prompt.columns for prompt in graded)]
    if missing:
        raise UserError(
            f"the rows lack {', '.join(missing)}: evaluate the benchmark from its own source, not from a bundle."
        )


def add_scores(path: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Add entries to a scores.json; an entry replaces the one with the same name, `when` and `blank`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = {_key(entry) for entry in entries}
    with locks.held(path.parent):  # a run and evaluations of it may write at the same time
        kept = [entry for entry in read_scores(path) if _key(entry) not in new]
        write_json(path, {"version": 1, "evaluations": [*kept, *entries]})


def read_scores(path: Path) -> list[dict[str, Any]]:
    """The entries of a scores.json; none if there is no such file.

    Those of a damaged file are computed again from the samples beside it, with a sentence on standard error. What a run
    measured of itself has no samples, and is lost.
    """
    if not path.exists():
        return []
    try:
        entries = read_json(path, "").get("evaluations")
    except DamagedFile:
        entries = None
    if isinstance(entries, list) and all(isinstance(e, dict) and set(e) >= REQUIRED for e in entries):
        return entries
    rebuilt = [entry for file in sorted(path.parent.glob("*.jsonl")) if (entry := _rescore(file)) is not None]
    warn(
        f"{path} is damaged; {len(rebuilt)} of its scores are computed again from the samples beside it, and what a "
        "run measured of itself is lost: `pivot eval` measures it again"
    )
    return rebuilt


def _rescore(file: Path) -> dict[str, Any] | None:
    """The entry of a file of samples, without a benchmark's own metrics; None if it is incomplete or unreadable."""
    try:
        header, *rows = read_rows(file) or [{}]
        identity, labels = header[HEADER], header[LABELS]
        by_prompt: dict[tuple[str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
        for row in rows:
            by_prompt[row["id"], row["prompt"]][row["sample"]] = row
        graded = [
            _graded(prompt_id, samples[0].get("task", ""), {}, list(samples.values()))
            for (prompt_id, _), samples in by_prompt.items()
            if len(samples) == identity["samples"]
        ]
        return summarise(graded, **labels) | {"settings": identity, "file": file.name, "limit": None}
    except (KeyError, TypeError, UserError):
        return None


def _key(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry.get("name"), entry.get("when"), bool(entry.get("blank"))
