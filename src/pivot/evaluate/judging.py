"""How an evaluation grades: the verifier of training, with what each benchmark's kind of answer allows."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from pivot.evaluate.benchmarks import matching
from pivot.rewards.verifier import Verifier
from pivot.types import Prompt, Reward

SECOND_LOOK = {"pivot": True, "mathruler": False}
"""Grader -> whether the row's kind of answer may accept more; mathruler alone is PAPO's number."""


class BenchmarkJudge:
    """Exact match on benchmarks.

    Example:
        with BenchmarkJudge("pivot") as judge:
            judge.judge([prompt], ["<think>...</think> \\boxed{(B) 70}"])
    """

    def __init__(self, grader: str = "pivot", workers: int = 2) -> None:
        self._second_look = SECOND_LOOK[grader]
        self._verifier = Verifier(grader=grader, workers=workers)

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Reward]:
        if self._second_look:
            return matching.grade(prompts, responses, self._verifier)
        return self._verifier.grade_many(responses, [prompt.answer for prompt in prompts])

    def close(self) -> None:
        self._verifier.close()

    def __enter__(self) -> BenchmarkJudge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
