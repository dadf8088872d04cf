"""How a benchmark's answers are matched: the verifier first, then what the kind of answer allows.

A row says its kind in `prompt.columns["matching"]`. The second look only ever accepts: a letter with its
text, the text alone, letters in any order, yes or no as the first word, a list with other blanks, one of
several accepted texts.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from pivot.evaluate.benchmarks.choices import letter_of, letters_in, plain, without_latex_text
from pivot.types import Prompt, Reward

MATH = "math"
LETTER = "letter"
LETTER_SET = "letters"
YES_NO = "yes-no"
LIST = "list"
TEXT = "text"


class Grader(Protocol):
    """What grades whole responses against answers: the verifier, in training and here."""

    def grade_many(self, responses: Sequence[str], answers: Sequence[str]) -> list[Reward]: ...


def grade(prompts: Sequence[Prompt], responses: Sequence[str], grader: Grader) -> list[Reward]:
    """The reward of one response for each prompt (repeat a prompt for each of its samples)."""
    rewards = grader.grade_many(responses, [prompt.answer for prompt in prompts])
    return [
        replace(reward, accuracy=1.0, reason="correct")
        if not reward.correct and reward.extracted is not None and matches(reward.extracted, prompt)
        else reward
        for prompt, reward in zip(prompts, rewards, strict=True)
    ]


def matches(extracted: str, prompt: Prompt) -> bool:
    """Whether an extracted answer is the right one by the rules of the prompt's kind alone."""
    kind = prompt.columns.get("matching", MATH)
    if kind == LETTER:
        return letter_of(extracted, prompt.columns.get("choices", [])) == prompt.answer
    if kind == LETTER_SET:
        return letters_in(extracted) == letters_in(prompt.answer)
    if kind == YES_NO:
        return _yes_no(extracted) == _yes_no(prompt.answer)
    if kind == LIST:
        return _items(extracted) == _items(prompt.answer)
    if kind == TEXT:
        return plain(extracted) in {
            plain(text) for text in (prompt.answer, *prompt.columns.get("accepted", []))
        }
    return False


def kind_of(answer: str) -> str:
    """The kind that an answer key shows by its form, for rows that say nothing else."""
    if len(answer) == 1 and answer.isupper() and answer.isascii():
        return LETTER
    if answer.casefold() in ("yes", "no"):
        return YES_NO
    if len(answer) > 1 and "," in answer and letters_in(answer) is not None:
        return LETTER_SET
    if answer.startswith("[") and answer.endswith("]"):
        return LIST
    return MATH


def _yes_no(text: str) -> str | None:
    words = plain(text).replace(",", " ").replace(".", " ").split()
    return words[0] if words and words[0] in ("yes", "no") else None


def _items(text: str) -> list[str] | None:
    """The elements of a list that is written as Python or LaTeX writes it; numbers by value."""
    inner = without_latex_text(text).strip().replace("\\left", "").replace("\\right", "").strip()
    if not (inner.startswith("[") and inner.endswith("]")):
        return None
    try:
        parsed = ast.literal_eval(inner)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        parsed = inner[1:-1].split(",")
    return [_element(item) for item in parsed] if isinstance(parsed, list) else None


def _element(item: object) -> str:
    text = plain(str(item))
    try:
        return repr(float(text))
    except ValueError:
        return text
