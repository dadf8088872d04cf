"""The reward of a response: is the answer in its box correct, and does the response follow the template?"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from pivot.errors import UserError
from pivot.types import Reward

from .answers import BOXED, SEARCH_SECONDS, answer_finder, follows_prompt
from .comparison import Quantity, Reading, Relation, agree
from .library import to_latex
from .pool import Job, Reason, WorkerPool
from .reading import read
from .response import MAX_BOX_CHARS, SEARCHED_CHARS, follows_papo_format, papo_box

MAX_ANSWER_CHARS = 2_000
_TWO_FORMS = re.compile(r"(.+?)\s*\(\s*or\b(.+)\)[\s.]*", re.DOTALL | re.IGNORECASE)
"""A ground truth that gives an alternative: `$x \\geq 2$ (or $x > 2$)`."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison and the path that decided: `fast` (one value or text), `structured`, `library`."""

    reason: Reason | None
    """None if only the library can decide."""
    path: str
    question: tuple[str, str] | None = None
    """(given, answer) in LaTeX, for the library."""


def check_answer(extracted: str, answer: str) -> Reason | None:
    """Correct, wrong or unparsable; None if only the library can decide.

    Pure and bounded: no code evaluation, no unbounded recursion, no process.
    """
    return judge(extracted, answer).reason


def judge(extracted: str, answer: str) -> Verdict:
    """Compare an extracted answer with the ground truth without the library."""
    if len(extracted) > MAX_ANSWER_CHARS or len(answer) > MAX_ANSWER_CHARS:
        return Verdict(Reason.CORRECT if extracted.strip() == answer.strip() else Reason.WRONG, "fast")
    given, truth = read(extracted), read(answer)
    if not given.text:
        return Verdict(Reason.UNPARSABLE, "fast")
    path = "structured" if _is_structured(truth) else "fast"
    equal = agree(given, truth)
    if equal is None:
        return Verdict(None, "library", _question(given, truth))
    if not equal and "(" in answer and _agrees_with_either_form(given, answer):
        equal, path = True, "structured"
    if equal:
        return Verdict(Reason.CORRECT, path)
    return Verdict(Reason.WRONG if given.readable else Reason.UNPARSABLE, path)


def _agrees_with_either_form(given: Reading, answer: str) -> bool:
    forms = _TWO_FORMS.fullmatch(answer)
    return forms is not None and any(agree(given, read(form)) is True for form in forms.groups())


def _is_structured(reading: Reading) -> bool:
    return any(not isinstance(meaning, Quantity | Relation) for meaning in reading.meanings)


def _question(given: Reading, truth: Reading) -> tuple[str, str]:
    """The first pair of values that only the library can compare."""
    pairs = (
        (one, other)
        for one in _body(given).meanings
        for other in _body(truth).meanings
        if one.agrees(other) is None
    )
    one, other = next(pairs)
    assert isinstance(one, Quantity)
    assert isinstance(other, Quantity)
    return to_latex(one.value, one.source), to_latex(other.value, other.source)


def _body(reading: Reading) -> Reading:
    return reading.choice.body if reading.choice and reading.choice.body else reading


Settled = tuple[Reason | Job, str]
"""(outcome, or the library job that will have it; the path that decides)."""


@dataclass(frozen=True)
class Found:
    """What a response says, before it is compared with the ground truth."""

    answer: str | None
    """None without one."""
    follows_format: bool
    reason: Reason | None = None
    """Why there is no answer."""


Look = Callable[[str], Found]


@dataclass(frozen=True)
class Grader:
    """One set of grading rules: how an answer is compared, and how PAPO's finds it."""

    settle: Callable[[str | None, str], Settled]
    """(extracted, answer) -> outcome or library job."""
    max_chars: int
    """A longer box is `too long`."""
    library: str
    look: Look | None = None
    """Its own rules for the paper's prompt; None: those of `look_for`."""


def look_for(form: str, think: bool) -> Look:
    """Finds answers of a form (`prompt.answer`); with `think` a `<think>` part belongs to the format."""
    find = answer_finder(form)

    def look(response: str) -> Found:
        try:
            answer = find(response)
        except TimeoutError:
            return Found(None, False, Reason.TIMED_OUT)
        missing = Reason.NO_BOX if form == BOXED else Reason.NO_ANSWER
        follows = follows_prompt(response, answer, think=think)
        return Found(None, False, missing) if answer is None else Found(answer.content, follows)

    return look


def look_as_papo(response: str) -> Found:
    return Found(papo_box(response), follows_papo_format(response), Reason.NO_BOX)


MAX_TIMEOUTS = 20
"""Responses of one call in which an expression may run out of time; more would take minutes per step."""


class Verifier:
    """Grades responses against ground truths; every call returns in bounded time.

    `pivot` decides nearly everything in this process and asks math-verify about the rest; `mathruler` computes PAPO's
    accuracy and format, for comparison with its published numbers. The libraries run in their own processes, which
    start when first needed and end with the `with` block.

    Args:
        answer: where a response says its answer: `boxed`, `tag` or a regular expression with one group.
        think: whether a `<think>` part belongs to the format.
        seconds: processor time per library call; the wall-clock limit is 1.5 times that.
        megabytes: memory per library process.

    Example:
        with Verifier() as verifier:
            verifier.grade("<think>...</think> \\boxed{5\\sqrt{3}}", "5*√3").reason == "correct"
    """

    def __init__(
        self,
        grader: str = "pivot",
        workers: int = 2,
        seconds: float = 1.0,
        megabytes: int = 512,
        *,
        answer: str = BOXED,
        think: bool = True,
    ) -> None:
        if grader not in GRADERS:
            raise ValueError(f"grader must be one of {', '.join(GRADERS)}, got {grader!r}")
        self._grader, self._form = GRADERS[grader], answer
        own = self._grader.look if answer == BOXED and think else None
        self._look = own or look_for(answer, think)
        self.pool = WorkerPool(self._grader.library, workers, seconds, megabytes)

    def __enter__(self) -> Verifier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the library processes; a later call starts new ones."""
        self.pool.close()

    def grade(self, response: str, answer: str) -> Reward:
        return self.grade_many([response], [answer])[0]

    def grade_many(self, responses: Sequence[str], answers: Sequence[str]) -> list[Reward]:
        """One reward per response, in order; library calls run in parallel."""
        if len(responses) != len(answers):
            raise ValueError(f"{len(responses)} responses, but {len(answers)} answers")
        found = self._look_at(responses)
        settled = [self._settle(one, answer) for one, answer in zip(found, answers, strict=True)]
        jobs = [outcome for outcome, _ in settled if isinstance(outcome, Job)]
        if jobs:
            self.pool.run(jobs)
        return list(map(self._reward, found, settled))

    def look(self, responses: Sequence[str]) -> list[tuple[float, str | None]]:
        """The format reward and the extracted answer of each response, without grading it."""
        return [(float(one.follows_format), self._shown(one.answer)) for one in self._look_at(responses)]

    def _look_at(self, responses: Sequence[str]) -> list[Found]:
        found: list[Found] = []
        num_timeouts = 0
        for response in responses:
            found.append(self._look(response))
            num_timeouts += found[-1].reason is Reason.TIMED_OUT
            if num_timeouts == MAX_TIMEOUTS:
                raise UserError(
                    f"the answer form {self._form!r} took more than {SEARCH_SECONDS:g} s on each of "
                    f"{num_timeouts} responses; write it without nested repetitions such as (a+)+."
                )
        return found

    def _settle(self, found: Found, answer: str) -> Settled:
        if found.reason is Reason.TIMED_OUT:
            return found.reason, "fast"
        return self._grader.settle(found.answer, answer)

    def _reward(self, found: Found, settled: Settled) -> Reward:
        outcome, path = settled
        reason = outcome.outcome if isinstance(outcome, Job) else outcome
        assert reason is not None
        if found.answer is None and reason is not Reason.CORRECT:
            assert found.reason is not None
            reason = found.reason
        return Reward(
            accuracy=float(reason is Reason.CORRECT),
            format=float(found.follows_format),
            reason=reason,
            extracted=self._shown(found.answer),
            path=path,
        )

    def _shown(self, extracted: str | None) -> str | None:
        return None if extracted is None or len(extracted) > self._grader.max_chars else extracted


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
    """As PAPO does: mathruler decides everything, and a response without a box is graded as the text `None`."""
    given = "None" if extracted is None else extracted
    if max(len(given), len(answer)) > SEARCHED_CHARS:
        return Reason.TOO_LONG, "fast"
    return Job(given, answer), "library"


GRADERS: dict[str, Grader] = {
    "pivot": Grader(_settle_by_pivot, MAX_BOX_CHARS, "math-verify"),
    "mathruler": Grader(_settle_by_mathruler, SEARCHED_CHARS, "mathruler", look_as_papo),
}
"""The values of `reward.grader`."""
