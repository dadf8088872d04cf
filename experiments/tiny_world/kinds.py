"""Kinds of tokens in a response: read off the image, computed, answer, or words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

Kind = Literal["right percept", "wrong percept", "guessed", "computed", "answer", "words"]
KINDS: tuple[Kind, ...] = ("right percept", "wrong percept", "guessed", "computed", "answer", "words")

Origin = Literal["looked right", "looked wrong", "guessed"]
ORIGINS: tuple[Origin, ...] = ("looked right", "looked wrong", "guessed")
"""Where a response comes from: all percepts named and true, at least one wrong or missing, or none named."""

_BOX = re.compile(r"\\boxed\{([^}]*)\}")
_DIGITS = re.compile(r"\d+")


def char_kinds(text: str, percepts: Mapping[str, int]) -> list[Kind]:
    """The kind of each character; everything but digits is words.

    Digits are percepts where a percept's name and `=` stand before them, the answer in the box, computed elsewhere
    after a percept was named, and guessed where none was.
    """
    kinds: list[Kind] = ["words"] * len(text)
    named = named_percepts(text, percepts)
    elsewhere: Kind = "computed" if named else "guessed"
    for match in _DIGITS.finditer(text):
        _fill(kinds, match.span(), elsewhere)
    for name, (value, span) in named.items():
        _fill(kinds, span, "right percept" if value == percepts[name] else "wrong percept")
    for match in _BOX.finditer(text):
        for digits in _DIGITS.finditer(match[1]):
            _fill(kinds, (match.start(1) + digits.start(), match.start(1) + digits.end()), "answer")
    return kinds


def named_percepts(text: str, percepts: Mapping[str, int]) -> dict[str, tuple[int, tuple[int, int]]]:
    """Percept -> the value that the response gives it and where that stands; the first mention counts."""
    found = {}
    for name in percepts:
        match = re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}=(\d+)", text)
        if match is not None:
            found[name] = int(match[1]), match.span(1)
    return found


def origin(text: str, percepts: Mapping[str, int]) -> Origin:
    named = named_percepts(text, percepts)
    if not named:
        return "guessed"
    return "looked right" if {n: v for n, (v, _) in named.items()} == dict(percepts) else "looked wrong"


def token_kinds(tokens: Sequence[str], percepts: Mapping[str, int]) -> list[Kind]:
    """The kind of each token of a response, from its own pieces of text: that of its last character."""
    kinds = char_kinds("".join(tokens), percepts)
    found: list[Kind] = []
    end = 0
    for token in tokens:
        end += len(token)
        found.append(kinds[end - 1] if token else "words")
    return found


def _fill(kinds: list[Kind], span: tuple[int, int], kind: Kind) -> None:
    for place in range(*span):
        kinds[place] = kind
