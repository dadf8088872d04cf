"""How benchmark answers are graded: the training verifier first, then rules for the kind of answer.

Each row names its kind in `prompt.columns["matching"]`. These rules run only where the verifier says "wrong", and
they only accept more: a letter with its option's text, the text alone, letters in any order, yes or no as the first
word, a list with different spacing, one of several accepted texts. They are separate from the verifier because they
use what only a benchmark row knows (its kind and its options), and may therefore be more lenient.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

from pivot.config import PromptConfig
from pivot.rewards.verifier import Verifier
from pivot.types import Prompt, Reward

MATH = "math"
LETTER = "letter"
LETTER_SET = "letters"
YES_NO = "yes-no"
LIST = "list"
TEXT = "text"

GRADERS = {"pivot": True, "mathruler": False}
"""Grader -> whether the rules of this file apply; mathruler alone reproduces PAPO's numbers."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LINE_LABEL = re.compile(r"^[ \t]*\(?([A-Z])[).:．、][ \t]*", re.MULTILINE)
_INLINE_LABEL = re.compile(r"\(([A-Z])\)\s*")
_LABELLED = re.compile(r"^\(?([A-Z])(?:[).:．、]+\s*(.*)|)$", re.DOTALL)
_OTHER_LABEL = re.compile(r"(?<![A-Za-z])\(?[A-Z] ?[.):]|\b(?:or|and) \(?[A-Z]\b")


class BenchmarkJudge:
    """Grades responses to benchmark rows by exact match.

    Example:
        with BenchmarkJudge("pivot") as judge:
            judge.judge([prompt], ["<think>...</think> \\boxed{(B) 70}"])
    """

    def __init__(self, grader: str = "pivot", workers: int = 2, prompt: PromptConfig | None = None) -> None:
        prompt = prompt or PromptConfig()
        self._apply_rules = GRADERS[grader]
        self._verifier = Verifier(grader, workers, answer=prompt.answer, think=prompt.style.asks_to_think)

    def judge(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> list[Reward]:
        """One reward per response; repeat a prompt for each of its samples."""
        rewards = self._verifier.grade_many(responses, [prompt.answer for prompt in prompts])
        if not self._apply_rules:
            return rewards
        return [
            replace(reward, accuracy=1.0, reason="correct")
            if not reward.correct and reward.extracted is not None and matches(reward.extracted, prompt)
            else reward
            for prompt, reward in zip(prompts, rewards, strict=True)
        ]

    def close(self) -> None:
        self._verifier.close()

    def __enter__(self) -> BenchmarkJudge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def matches(extracted: str, prompt: Prompt) -> bool:
    """Whether an extracted answer is right by the rules of the prompt's kind alone."""
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
        accepted = (prompt.answer, *prompt.columns.get("accepted", []))
        return _plain(extracted) in {_plain(text) for text in accepted}
    return False


def kind_of(answer: str) -> str:
    """The kind of an answer key, guessed from its spelling, for rows that do not say."""
    if len(answer) == 1 and answer.isupper() and answer.isascii():
        return LETTER
    if answer.casefold() in ("yes", "no"):
        return YES_NO
    if len(answer) > 1 and "," in answer and letters_in(answer) is not None:
        return LETTER_SET
    if answer.startswith("[") and answer.endswith("]"):
        return LIST
    return MATH


def lettered(options: list[str]) -> str:
    """One option per line: `A. first`."""
    return "\n".join(f"{LETTERS[i]}. {option.strip()}" for i, option in enumerate(options))


def options_in(text: str) -> list[str]:
    """The texts of the options A, B, C, ... in a question; empty if it has none."""
    for pattern in (_LINE_LABEL, _INLINE_LABEL):
        labels = list(pattern.finditer(text))
        start = max((i for i, label in enumerate(labels) if label[1] == "A"), default=None)
        if start is None:
            continue
        run = labels[start:]
        run = run[: next((i for i, label in enumerate(run) if label[1] != LETTERS[i]), len(run))]
        if len(run) > 1:
            ends = [label.start() for label in run[1:]] + [len(text)]
            bodies = [text[label.end() : end] for label, end in zip(run, ends, strict=True)]
            if pattern is _LINE_LABEL:
                bodies = [body.split("\n")[0] for body in bodies]
            return [body.strip(" \t\r\n,;") for body in bodies]
    return []


def letter_of(text: str, options: list[str]) -> str | None:
    """The option that an answer names: `B`, `(B)`, `B. forty`, or the text of exactly one option."""
    text = _without_text_commands(text).strip()
    labelled = _LABELLED.match(text.rstrip("."))
    if labelled and (not options or LETTERS.index(labelled[1]) < len(options)):
        option = options[LETTERS.index(labelled[1])] if options else ""
        names_others = _OTHER_LABEL.search(labelled[2] or "") and _plain(option) != _plain(labelled[2])
        return None if names_others else labelled[1]
    same = [i for i, option in enumerate(options) if _plain(option) == _plain(text) != ""]
    return LETTERS[same[0]] if len(same) == 1 else None


def letters_in(text: str) -> frozenset[str] | None:
    """Several letters in any order with any separator (`A, C`, `AC`, `C and A`); None if there is other text."""
    cleaned = re.sub(r"\band\b|[\s,;&.()\[\]{}、，]", "", _without_text_commands(text))
    return frozenset(cleaned) if re.fullmatch(r"[A-Z]+", cleaned) else None


def _yes_no(text: str) -> str | None:
    words = _plain(text).replace(",", " ").replace(".", " ").split()
    return words[0] if words and words[0] in ("yes", "no") and words[1:2] not in (["or"], ["and"]) else None


def _items(text: str) -> list[str] | None:
    """The elements of a list in Python or LaTeX notation; numbers by value."""
    inner = _without_text_commands(text).strip().replace("\\left", "").replace("\\right", "").strip()
    if not (inner.startswith("[") and inner.endswith("]")):
        return None
    try:
        parsed = ast.literal_eval(inner)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        parsed = inner[1:-1].split(",")
    return [_element(item) for item in parsed] if isinstance(parsed, list) else None


def _element(item: object) -> str:
    text = _plain(str(item))
    try:
        return repr(float(text))
    except ValueError:
        return text


def _without_text_commands(text: str) -> str:
    """`\\text{B}` -> `B`, for LaTeX's usual text commands."""
    return re.sub(r"\\(?:text|textbf|mathrm|mathbf|textrm|mbox)\s*\{([^{}]*)\}", r"\1", text)


def _plain(text: str) -> str:
    """Drops case, spacing, quotes, dollar and percent signs, thousands separators and a final full stop."""
    text = _without_text_commands(text).casefold().replace("\\", "")
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    text = re.sub(r"[\s\"'$%{}]+", " ", text).strip()
    return text.removesuffix(".").strip()
