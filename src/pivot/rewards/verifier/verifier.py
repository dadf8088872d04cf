"""The reward of a response: is the answer in its box right, and does it follow the template?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from pivot.types import Reward

from .box import MAX_BOX_CHARS, SEARCHED_CHARS, follows_papo_format, follows_template, last_box, papo_box
from .check import judge
from .pool import Job, WorkerPool
from .reason import Reason

Settled = tuple[Reason | Job, str]
"""The outcome or the job that will have it, and the path that decides."""


@dataclass(frozen=True)
class Grader:
    """One way of grading: what is taken from a response, how it is judged, and what the format is."""

    extract: Callable[[str], str | None]
    """The answer that a response gives; None without a box."""
    settle: Callable[[str | None, str], Settled]
    """(extracted, answer) -> how it is decided."""
    follows_format: Callable[[str], bool]
    max_chars: int
    """A longer box is `too long`."""
    library: str


class Verifier:
    """Grades responses against answers; every call returns, whatever the model wrote.

    `pivot` decides nearly everything with `check_answer` in this process and asks math-verify about the
    rest; `mathruler` gives PAPO's accuracy and format, for parity with its numbers. Libraries run in processes
    of their own, started at the first need and ended with the `with` block. A question to one may take
    `seconds` of processor time, 1.5 times that by the clock, and `megabytes` of memory.

    Example:
        with Verifier() as verifier:
            verifier.grade("<think>...</think> \\boxed{5\\sqrt{3}}", "5*√3").reason == "correct"
    """

    def __init__(
        self, grader: str = "pivot", workers: int = 2, seconds: float = 1.0, megabytes: int = 512
    ) -> None:
        if grader not in GRADERS:
            raise ValueError(f"grader must be one of {', '.join(GRADERS)}, got {grader!r}")
        self.grader = grader
        self._grader = GRADERS[grader]
        self.pool = WorkerPool(self._grader.library, workers, seconds, megabytes)

    def __enter__(self) -> Verifier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the library's processes; a later call would start new ones."""
        self.pool.close()

    def grade(self, response: str, answer: str) -> Reward:
        return self.grade_many([response], [answer])[0]

    def grade_many(self, responses: Sequence[str], answers: Sequence[str]) -> list[Reward]:
        """The rewards in the responses' order; what needs the library is asked in parallel."""
        if len(responses) != len(answers):
            raise ValueError(f"{len(responses)} responses, but {len(answers)} answers")
        extracted = list(map(self._grader.extract, responses))
        settled = list(map(self._grader.settle, extracted, answers))
        jobs = [outcome for outcome, _ in settled if isinstance(outcome, Job)]
        if jobs:
            self.pool.run(jobs)
        return list(map(self._reward, responses, extracted, settled))

    def look(self, response: str) -> tuple[float, str | None]:
        """The format reward and the extracted answer, which is not graded."""
        return float(self._grader.follows_format(response)), self._shown(self._grader.extract(response))

    def _reward(self, response: str, extracted: str | None, settled: Settled) -> Reward:
        outcome, path = settled
        reason = outcome.outcome if isinstance(outcome, Job) else outcome
        assert reason is not None
        if extracted is None and reason is not Reason.CORRECT:
            reason = Reason.NO_BOX
        return Reward(
            accuracy=float(reason is Reason.CORRECT),
            format=float(self._grader.follows_format(response)),
            reason=reason,
            extracted=self._shown(extracted),
            path=path,
        )

    def _shown(self, extracted: str | None) -> str | None:
        return None if extracted is None or len(extracted) > self._grader.max_chars else extracted


def _content(response: str) -> str | None:
    box = last_box(response)
    return None if box is None else box.content


def _settle_by_pivot(extracted: str | None, answer: str) -> Settled:
    if extracted is None:
        return Reason.NO_BOX, "fast"
    if len(extracted) > MAX_BOX_CHARS:
        return Reason.TOO_LONG, "fast"
    verdict = judge(extracted, answer)
    if verdict.reason is not None:
        return verdict.reason, verdict.path
    assert verdict.question is not None
    return Job(*verdict.question), verdict.path


def _settle_by_mathruler(extracted: str | None, answer: str) -> Settled:
    """PAPO's way: mathruler decides everything, and a response without a box is graded as the text `None`."""
    given = "None" if extracted is None else extracted
    if max(len(given), len(answer)) > SEARCHED_CHARS:
        return Reason.TOO_LONG, "fast"
    return Job(given, answer), "library"


GRADERS: dict[str, Grader] = {
    "pivot": Grader(_content, _settle_by_pivot, follows_template, MAX_BOX_CHARS, "math-verify"),
    "mathruler": Grader(papo_box, _settle_by_mathruler, follows_papo_format, SEARCHED_CHARS, "mathruler"),
}
"""The values of `reward.grader`."""
