"""Scores over graded samples: accuracy@k, pass@k, categories, intervals, metrics of single benchmarks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pivot.errors import UserError

HALF_POINT = 0.5
"""What We-Math's score gives for steps that are right when the whole problem is wrong."""


@dataclass(frozen=True)
class Graded:
    """One prompt and whether each of its k samples is correct.

    Example:
        Graded("we-math/testmini/2steps_122/2steps_1", (True, False), "one-step", {"ID": "2steps_122", ...})
    """

    id: str
    correct: tuple[bool, ...]
    category: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The row's own columns; the benchmarks' own metrics group by them."""

    @property
    def accuracy(self) -> float:
        """The share of correct samples: this prompt's accuracy@k."""
        return sum(self.correct) / len(self.correct)


def accuracy(graded: Sequence[Graded]) -> float:
    """The paper's average accuracy@k (also called avg@k): the mean over prompts of the mean over samples."""
    return float(np.mean([prompt.accuracy for prompt in graded]))


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """The unbiased estimate that one of k samples is correct: 1 - C(n - c, k) / C(n, k)."""
    if not 1 <= k <= num_samples:
        raise ValueError(f"k is {k}; it must lie between 1 and num_samples = {num_samples}")
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def mean_pass_at_k(graded: Sequence[Graded], k: int) -> float:
    return float(np.mean([pass_at_k(len(g.correct), sum(g.correct), k) for g in graded]))


def bootstrap_interval(
    graded: Sequence[Graded], level: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """A percentile interval of the accuracy, by drawing prompts (not samples) with replacement.

    The samples of one prompt are not independent of each other, so the prompt is the unit.
    """
    accuracies_P = np.array([prompt.accuracy for prompt in graded])
    generator = np.random.default_rng(seed)
    means = np.empty(draws)
    for draw in range(draws):
        means[draw] = accuracies_P[generator.integers(len(accuracies_P), size=len(accuracies_P))].mean()
    low, high = np.quantile(means, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)


def by_category(graded: Iterable[Graded]) -> dict[str, dict[str, float]]:
    """Category -> accuracy and number of prompts, in the order of first appearance."""
    groups: dict[str, list[Graded]] = defaultdict(list)
    for prompt in graded:
        if prompt.category:
            groups[prompt.category].append(prompt)
    return {name: {"accuracy": accuracy(group), "prompts": len(group)} for name, group in groups.items()}


def hallusionbench(graded: Sequence[Graded]) -> dict[str, float]:
    """aAcc by question, fAcc by figure and qAcc by question over its figures, averaged over the k samples.

    A figure counts where all its questions are right, a question where it is right for every figure.
    """
    _need_columns(graded, ("category", "subcategory", "set_id", "figure_id", "question_id"))

    def figure(columns: Mapping[str, Any]) -> Hashable:
        return tuple(str(columns[name]) for name in ("category", "subcategory", "set_id", "figure_id"))

    def question(columns: Mapping[str, Any]) -> Hashable:
        return tuple(str(columns[name]) for name in ("category", "subcategory", "set_id", "question_id"))

    with_figure = [g for g in graded if g.columns["category"] != "VS" or str(g.columns["figure_id"]) != "0"]
    return {
        "aAcc": accuracy(graded),
        "fAcc": _all_correct(with_figure, figure),
        "qAcc": _all_correct(graded, question),
    }


def _all_correct(graded: Sequence[Graded], key: Callable[[Mapping[str, Any]], Hashable]) -> float:
    """The share of groups in which everything is correct, averaged over the samples' positions."""
    groups: dict[Hashable, list[tuple[bool, ...]]] = defaultdict(list)
    for prompt in graded:
        groups[key(prompt.columns)].append(prompt.correct)
    shares = [np.mean([all(rows) for rows in zip(*group, strict=True)]) for group in groups.values()]
    return float(np.mean(shares))


def we_math(graded: Sequence[Graded]) -> dict[str, float]:
    """We-Math's four-dimensional metric, averaged over the k samples.

    A problem's steps and its whole (`..._multi`) are either
        IK insufficient knowledge       a step wrong, the whole wrong
        IG inadequate generalisation    all steps right, the whole wrong
        CM complete mastery             steps right, the whole right
        RM rote memorisation            steps wrong, the whole right
    where CM asks for all steps (strict) or at least one (loose), RM for a wrong step or for all wrong. IK, IG
    and CM are shares of all problems, RM of CM + RM; score = (CM + IG/2) / problems. Problems of which a row
    is missing cannot be counted: `incomplete` says how many.
    """
    _need_columns(graded, ("ID", "key"))
    problems: dict[str, dict[str, tuple[bool, ...]]] = defaultdict(dict)
    for prompt in graded:
        problems[str(prompt.columns["ID"])][str(prompt.columns["key"])] = prompt.correct
    whole = {name: rows for name, rows in problems.items() if _is_whole(rows)}
    if not whole:
        raise UserError(
            "We-Math's metric needs all rows of a problem, and no problem is complete: score the full set."
        )
    samples = [_four_dimensions(whole.values(), i) for i in range(min(len(g.correct) for g in graded))]
    scores = {name: float(np.mean([sample[name] for sample in samples])) for name in samples[0]}
    return {**scores, "problems": len(whole), "incomplete": len(problems) - len(whole)}


def _is_whole(rows: Mapping[str, tuple[bool, ...]]) -> bool:
    steps = 2 if any(key.startswith("2steps") for key in rows) else 3
    return set(rows) == {f"{steps}steps_{i + 1}" for i in range(steps)} | {f"{steps}steps_multi"}


def _four_dimensions(problems: Iterable[Mapping[str, tuple[bool, ...]]], sample: int) -> dict[str, float]:
    counts: dict[str, int] = dict.fromkeys(("IK", "IG", "CM_strict", "CM_loose", "RM_strict", "RM_loose"), 0)
    total = 0
    for rows in problems:
        total += 1
        multi = next(correct[sample] for key, correct in rows.items() if key.endswith("_multi"))
        steps = [correct[sample] for key, correct in rows.items() if not key.endswith("_multi")]
        if multi:
            counts["CM_strict" if all(steps) else "RM_strict"] += 1
            counts["CM_loose" if any(steps) else "RM_loose"] += 1
        else:
            counts["IG" if all(steps) else "IK"] += 1
    scores = {name: counts[name] / total for name in ("IK", "IG")}
    for kind in ("strict", "loose"):
        mastered, memorised = counts[f"CM_{kind}"], counts[f"RM_{kind}"]
        scores[f"CM_{kind}"] = mastered / total
        scores[f"RM_{kind}"] = memorised / (mastered + memorised) if mastered + memorised else 0.0
        scores[f"score_{kind}"] = (mastered + HALF_POINT * counts["IG"]) / total
    return scores


def _need_columns(graded: Sequence[Graded], names: tuple[str, ...]) -> None:
    missing = [name for name in names if any(name not in prompt.columns for prompt in graded)]
    if missing:
        raise UserError(
            f"the rows lack {', '.join(missing)}: score the set from its own source, not from a bundle."
        )


OWN_METRICS: dict[str, Callable[[Sequence[Graded]], dict[str, float]]] = {
    "hallusionbench": hallusionbench,
    "we-math": we_math,
}
"""Benchmark -> the metric of its own, beside the accuracy."""


def score(benchmark: str, graded: Sequence[Graded], seed: int = 0) -> dict[str, Any]:
    """One benchmark's part of `scores.json`; `metrics_note` says why its own metric is missing, if it is."""
    if not graded:
        raise UserError(f"{benchmark} has no graded sample: evaluate it first.")
    num_samples = min(len(prompt.correct) for prompt in graded)
    powers = [2**i for i in range(num_samples.bit_length()) if 2**i <= num_samples]
    scores: dict[str, Any] = {
        "samples": num_samples,
        "prompts": len(graded),
        "accuracy": accuracy(graded),
        "interval": list(bootstrap_interval(graded, seed=seed)),
        "pass_at_k": {str(k): mean_pass_at_k(graded, k) for k in sorted({*powers, num_samples})},
        "categories": by_category(graded),
    }
    if benchmark in OWN_METRICS:
        try:
            scores["metrics"] = OWN_METRICS[benchmark](graded)
        except UserError as incomplete:
            scores["metrics_note"] = str(incomplete)
    return scores
