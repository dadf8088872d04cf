"""Decide whether two short answers are the same, without any library."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .meanings import Quantity, Reading, Relation, agree
from .reading import read
from .reason import Reason
from .symbols import to_latex

MAX_ANSWER_CHARS = 2_000
_EITHER = re.compile(r"(.+?)\s*\(\s*or\b(.+)\)[\s.]*", re.DOTALL | re.IGNORECASE)
"""A truth that names a second form of itself: `$x \\geq 2$ (or $x > 2$)`."""


@dataclass(frozen=True)
class Verdict:
    """The outcome, and which path gave it: `fast` (one value or text), `structured`, or `library`."""

    reason: Reason | None
    path: str
    question: tuple[str, str] | None = None
    """For the library, in LaTeX: (given, answer)."""


def check_answer(extracted: str, answer: str) -> Reason | None:
    """Correct, wrong or unparsable; None where only the library can say.

    Pure and bounded: no evaluation of code, no unbounded recursion, no process.
    """
    return judge(extracted, answer).reason


def judge(extracted: str, answer: str) -> Verdict:
    if len(extracted) > MAX_ANSWER_CHARS or len(answer) > MAX_ANSWER_CHARS:
        return Verdict(Reason.CORRECT if extracted.strip() == answer.strip() else Reason.WRONG, "fast")
    given, truth = read(extracted), read(answer)
    if not given.text:
        return Verdict(Reason.UNPARSABLE, "fast")
    path = "structured" if _is_structured(truth) else "fast"
    verdict = agree(given, truth)
    if verdict is None:
        return Verdict(None, "library", _question(given, truth))
    if not verdict and "(" in answer and _agrees_with_either(given, answer):
        verdict, path = True, "structured"
    if verdict:
        return Verdict(Reason.CORRECT, path)
    return Verdict(Reason.WRONG if given.readable else Reason.UNPARSABLE, path)


def _agrees_with_either(given: Reading, answer: str) -> bool:
    either = _EITHER.fullmatch(answer)
    return either is not None and any(agree(given, read(one)) is True for one in either.groups())


def _is_structured(reading: Reading) -> bool:
    return any(not isinstance(meaning, Quantity | Relation) for meaning in reading.meanings)


def _question(given: Reading, truth: Reading) -> tuple[str, str]:
    """The first two values that agree as far as one can see."""
    pairs = (
        (one, other)
        for one in _body(given).meanings
        for other in _body(truth).meanings
        if one.agrees(other) is None
    )
    one, other = next(pairs)
    assert isinstance(one, Quantity)
    assert isinstance(other, Quantity)
    return to_latex(one), to_latex(other)


def _body(reading: Reading) -> Reading:
    return reading.choice.body if reading.choice and reading.choice.body else reading
