"""Who computes rewards: the built-in verifier, or reward functions with weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pivot.data.images import open_rgb
from pivot.rewards.calling import IMAGES
from pivot.rewards.process import RewardProcess
from pivot.rewards.thread import RewardThread
from pivot.rewards.verifier import Verifier
from pivot.types import Prompt, Reward

ACCURACY, FORMAT = "accuracy", "format"
BUILT_IN = (ACCURACY, FORMAT)
"""The names in `reward.functions` that are not a user's: the verifier's two rewards."""
MEMORY = "memory:"
"""Prefix for the name of a function of the calling process, which `reward.functions` cannot hold."""
NOT_REWARDED = "not rewarded"
"""The reason where no function applies to a row."""
TAKEN = {
    "accuracy",
    "format",
    "fresh_accuracy",
    "mean",
    "overlong",
    "replay_accuracy",
    "solved_prompts",
    "unrewarded",
    "unsolved_prompts",
}
"""`reward/` metrics with a meaning of their own."""

RewardSource = str | Callable[..., Any]
"""A function by name (a built-in, `package.module:function`, `file.py:function`), or the function itself."""


class Judge(Protocol):
    """Computes the rewards of responses."""

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Reward]:
        """One reward per response; `responses[i]` answers `prompts[i]`."""
        ...

    def close(self) -> None: ...


class Function(Protocol):
    """A reward function, wherever it runs."""

    name: str
    wants_images: bool

    def call(self, columns: Mapping[str, Any]) -> list[float | None]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class RewardRules:
    """How responses are rewarded.

    Example:
        RewardRules(functions=("accuracy", "rw.py:brevity"), weights=(1.0, 0.2))
    """

    functions: tuple[RewardSource, ...] = ()
    """Empty: the verifier's accuracy."""
    weights: tuple[float, ...] = ()
    """One per function; empty: 1 each."""
    threshold: float = 0.5
    """A response is correct if its total without format exceeds this."""
    timeout: float = 60.0
    """Seconds per call of a function."""
    grader: str = "pivot"
    workers: int = 1
    answer: str = "boxed"
    """Where a response gives its answer."""
    think: bool = True
    """Whether a `<think>` part belongs to the format."""


def open_judge(rules: RewardRules) -> Judge:
    """The verifier alone, or functions with weights."""
    return FunctionJudge(rules) if rules.functions else VerifierJudge(rules=rules)


class VerifierJudge:
    """Exact match against the ground truth, by the verifier."""

    def __init__(self, grader: str = "pivot", workers: int = 1, rules: RewardRules | None = None) -> None:
        self._verifier = _verifier(rules or RewardRules(grader=grader, workers=workers))

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Reward]:
        return self._verifier.grade_many(responses, [p.answer for p in prompts])

    def close(self) -> None:
        self._verifier.close()


class FunctionJudge:
    """R = sum of weight x value over the functions that apply to a row (those that do not return None).

    A response is correct if R without format exceeds the threshold: that decides k, p-hat, s and sign protection, while
    advantages take R itself. A row to which no function applies has R = 0 and is wrong. Values that are not finite
    are passed on: the trainer skips such updates.

    Functions are called with TRL's convention: `f(completions=..., prompts=..., answer=..., **columns)`, where
    `prompts` are the questions and columns those of the data. A parameter `images` receives each row's images.
    """

    def __init__(self, rules: RewardRules) -> None:
        self._rules = rules
        self._weights = rules.weights or (1.0,) * len(rules.functions)
        self._labels = metric_names(rules.functions)
        self._verifier = _verifier(rules)
        self.functions: list[Function | str] = []
        try:
            self.functions += [_open(source, rules.timeout) for source in rules.functions]
        except BaseException:
            self.close()
            raise

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Reward]:
        if ACCURACY in self.functions:
            graded = self._verifier.grade_many(responses, [p.answer for p in prompts])
        else:
            graded = [
                Reward(0.0, form, NOT_REWARDED, extracted)
                for form, extracted in self._verifier.look(responses)
            ]
        columns = self._columns(prompts, responses)
        by_function = [self._values(function, prompts, columns, graded) for function in self.functions]
        return [self._total(one, values) for one, *values in zip(graded, *by_function, strict=True)]

    def close(self) -> None:
        for function in self.functions:
            if not isinstance(function, str):
                function.close()
        self._verifier.close()

    def _columns(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> dict[str, list[Any]]:
        names = sorted({name for prompt in prompts for name in prompt.columns})
        columns: dict[str, list[Any]] = {name: [p.columns.get(name) for p in prompts] for name in names}
        columns["answer"] = [p.answer for p in prompts]
        columns["prompts"] = [p.question for p in prompts]
        columns["completions"] = list(responses)
        return columns

    def _values(
        self,
        function: Function | str,
        prompts: Sequence[Prompt],
        columns: Mapping[str, list[Any]],
        graded: Sequence[Reward],
    ) -> Sequence[float | None]:
        if isinstance(function, str):
            return [reward.format if function == FORMAT else reward.accuracy for reward in graded]
        if function.wants_images:
            # The responses of a prompt share its images.
            opened = {p.id: [open_rgb(source) for source in p.images] for p in prompts}
            columns = {**columns, IMAGES: [opened[p.id] for p in prompts]}
        return function.call(columns)

    def _total(self, graded: Reward, values: Sequence[float | None]) -> Reward:
        terms = [
            (function, weight * value)
            for function, weight, value in zip(self.functions, self._weights, values, strict=True)
            if value is not None
        ]
        total = sum(term for _, term in terms)
        own = [term for function, term in terms if function != FORMAT]
        success = bool(own) and sum(own) > self._rules.threshold
        return Reward(
            accuracy=total,
            format=graded.format,
            reason=_reason(total, success) if own else NOT_REWARDED,
            extracted=graded.extracted,
            path=graded.path,
            success=success,
            parts=dict(zip(self._labels, values, strict=True)),
        )


def metric_names(functions: Sequence[RewardSource]) -> list[str]:
    """NAME of `reward/NAME` for each function: its own name, with its module where that is ambiguous or taken."""
    names = [_plain_names(source) for source in functions]
    counts = Counter(short for short, _ in names)
    labels: list[str] = []
    for short, long in names:
        label = long if counts[short] > 1 or short in TAKEN else short
        same = sum(known == label or known.startswith(f"{label}_") for known in labels)
        labels.append(f"{label}_{same + 1}" if label in labels else label)
    return labels


def name_of(source: RewardSource) -> str:
    """As `reward.functions` lists it."""
    if isinstance(source, str):
        return source
    return MEMORY + str(getattr(source, "__name__", type(source).__name__))


def _plain_names(source: RewardSource) -> tuple[str, str]:
    if isinstance(source, str) and source in BUILT_IN:
        return source, f"verifier_{source}"
    module, _, name = name_of(source).rpartition(":")
    module = Path(module).stem if module.endswith(".py") else module.rpartition(".")[2]
    name = name.strip("<>")  # of <lambda>
    return name, f"{module}.{name}"


def _open(source: RewardSource, timeout: float) -> Function | str:
    if not isinstance(source, str):
        return RewardThread(source, name_of(source).removeprefix(MEMORY), timeout)
    return source if source in BUILT_IN else RewardProcess(source, timeout)


def _verifier(rules: RewardRules) -> Verifier:
    return Verifier(rules.grader, rules.workers, answer=rules.answer, think=rules.think)


def _reason(total: float, success: bool) -> str:
    if not math.isfinite(total):
        return "not finite"
    return "correct" if success else "wrong"


def overlong_penalty(length: int, longest: int, cache: int) -> float:
    """0 up to `longest - cache` tokens, then linearly down to -1 at `longest` (DAPO's soft penalty, its Eq. 13).

    Example:
        overlong_penalty(1792, longest=2048, cache=512) == -0.5
    """
    return -min(1.0, max(0, length - (longest - cache)) / cache)
