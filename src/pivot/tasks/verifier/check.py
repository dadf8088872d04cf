"""Decide whether two short answers are the same, without any library."""

from __future__ import annotations

from .reading import Reading, read
from .reason import Reason

MAX_ANSWER_CHARS = 2_000


def check_answer(extracted: str, answer: str) -> Reason | None:
    """Correct, wrong or unparsable; None where neither text was understood well enough to say.

    Pure and bounded: no evaluation of code, no recursion, no process.
    """
    if len(extracted) > MAX_ANSWER_CHARS or len(answer) > MAX_ANSWER_CHARS:
        return Reason.CORRECT if extracted.strip() == answer.strip() else Reason.WRONG
    given, truth = read(extracted), read(answer)
    if not given.forms:
        return Reason.UNPARSABLE
    same = _agree(given, truth)
    if same is not None:
        return Reason.CORRECT if same else Reason.WRONG
    if given.refused:
        return Reason.UNPARSABLE
    return Reason.WRONG if truth.refused else None


def _agree(given: Reading, truth: Reading) -> bool | None:
    if given.choice and truth.choice:
        return given.choice == truth.choice and not _differ(given, truth)
    if given.clock and truth.clock:
        return given.clock == truth.clock
    if given.unit and truth.unit and given.unit != truth.unit and not _same_text(given, truth):
        return False
    if len(given.name) == len(truth.name) == 1 and given.name != truth.name:
        return False
    if not given.forms.isdisjoint(truth.forms):
        return True
    return False if given.complete and truth.complete else None


def _differ(given: Reading, truth: Reading) -> bool:
    """`B. 48` and `B. 50`: the letter agrees, the numbers that both give don't."""
    return given.numeric and truth.numeric and given.forms.isdisjoint(truth.forms)


def _same_text(given: Reading, truth: Reading) -> bool:
    return any(form in truth.forms for form in given.forms if isinstance(form, tuple) and form[0] == "text")
