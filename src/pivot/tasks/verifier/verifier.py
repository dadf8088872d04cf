"""The reward of a response: is the answer in its box right, and does it follow the template?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

from pivot.types import Reward

from .box import MAX_BOX_CHARS, Box, follows_template, last_box, very_last_box
from .check import MAX_ANSWER_CHARS, judge
from .pool import Job, WorkerPool
from .reason import Reason

Settled = tuple[Box | None, Reason | Job, str]
"""The box that is graded, the outcome or the job that will have it, and the path that decides."""


class Verifier:
    """Grades responses against answers; every call returns, whatever the model wrote.

    `pivot` decides nearly everything with `check_answer` in this process and asks math-verify about the
    rest; `mathruler` gives PAPO's accuracy, for parity with its numbers. Libraries run in processes of their
    own, started at the first need and ended with the `with` block. A question to one may take `seconds` of
    processor time, 1.5 times that by the clock, and `megabytes` of memory.

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
        self._settle, library = GRADERS[grader]
        self.pool = WorkerPool(library, workers, seconds, megabytes)

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
        settled = list(map(self._settle, responses, answers))
        jobs = [outcome for _, outcome, _ in settled if isinstance(outcome, Job)]
        if jobs:
            self.pool.run(jobs)
        return [_reward(response, *one) for response, one in zip(responses, settled, strict=True)]


def _settle_by_pivot(response: str, answer: str) -> Settled:
    box = last_box(response)
    if box is None:
        return box, Reason.NO_BOX, "fast"
    if len(box.content) > MAX_BOX_CHARS:
        return box, Reason.TOO_LONG, "fast"
    verdict = judge(box.content, answer)
    if verdict.reason is not None:
        return box, verdict.reason, verdict.path
    assert verdict.question is not None
    return box, Job(*verdict.question), verdict.path


def _settle_by_mathruler(response: str, answer: str) -> Settled:
    """PAPO's way: mathruler decides everything, and a response without a box is graded as the text `None`."""
    box = very_last_box(response)
    if box is not None and len(box.content) > MAX_BOX_CHARS:
        return box, Reason.TOO_LONG, "fast"
    return box, Job("None" if box is None else box.content, answer[:MAX_ANSWER_CHARS]), "library"


def _reward(response: str, box: Box | None, outcome: Reason | Job, path: str) -> Reward:
    reason = outcome.outcome if isinstance(outcome, Job) else outcome
    assert reason is not None
    if box is None and reason is not Reason.CORRECT:
        reason = Reason.NO_BOX
    return Reward(
        accuracy=float(reason is Reason.CORRECT),
        format=float(follows_template(response)),
        reason=reason,
        extracted=None if box is None or reason is Reason.TOO_LONG else box.content,
        path=path,
    )


GRADERS: dict[str, tuple[Callable[[str, str], Settled], str]] = {
    "pivot": (_settle_by_pivot, "math-verify"),
    "mathruler": (_settle_by_mathruler, "mathruler"),
}
"""Grader -> how a response is settled or made a job, and for which library."""
