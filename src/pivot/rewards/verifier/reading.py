"""Parse a short answer into everything it may mean.

An answer can be ambiguous: `(1,2)` is a point and an interval, `2 to 3` a ratio and a range, `B. 48` the option B
and the number 48. Structured answers are kept as structures and never evaluated to a single number.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from .comparison import Choice, Items, Meaning, Quantity, Reading, Tagged
from .exact import Exact, OutOfBounds, Unreadable
from .notation import compact, unify
from .quantities import read_scalar
from .regions import is_pair, read_region
from .structures import read_structure, split_sequence

CACHED_CHARS = 200
CACHED_READINGS = 4096
MAX_DEPTH = 3
"""Nesting of lists; deeper content is compared as text."""

_PLAIN_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?", re.ASCII)
_LABELLED = re.compile(r"(?:[(\[]([A-Z])[)\]]|([A-Z]) ?(?:[.)]|:\s))\s*(.+)", re.DOTALL)
_OTHER_LABEL = re.compile(r"(?:^|[^A-Za-z])(?:\(?[A-Z] ?[.):]|(?:or|and) |\(?[A-Z]\)?$)")
_SINGLE = re.compile(r"[(\[]?([A-Za-z])[)\]]?[.)]?")
_LETTERS = re.compile(r"[A-J](?:(?: ?[,;&] ?|\n| and |, and | )[A-J]){1,9}|[A-J]{2,6}")
_ANNOUNCED = re.compile(
    r"(?:the )?(?:(?:correct|final|right) )?(?:answer|option|choice)(?: is| ?:)? ?:? ?", re.IGNORECASE
)
_YES_NO = re.compile(r"(yes|no|true|false)\b([,.:;]?)\s*(.*)", re.IGNORECASE | re.DOTALL)
_RESERVATIONS = (
    "yes no not cannot never neither nor none true false wrong incorrect but however although though or "
    "unless except if only maybe perhaps possibly sometimes"
)
_CONTRADICTS = re.compile(rf"\b(?:{_RESERVATIONS.replace(' ', '|')})\b|n't\b", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]{2,}")
_MATHEMATICAL = frozenset("\\+*/^=<>≤≥√π_|±∪∩∈∞")
_GEOMETRICAL = frozenset("∠△≅∼∥⊥")


def read(text: str) -> Reading:
    """Parse a text of at most a few thousand characters; short ones are cached."""
    return _cached_read(text) if len(text) <= CACHED_CHARS else _read(text)


@lru_cache(CACHED_READINGS)
def _cached_read(text: str) -> Reading:
    return _read(text)


def _read(text: str) -> Reading:
    if _PLAIN_NUMBER.fullmatch(text):  # A shortcut for most answers, with the same result.
        return Reading(text, (Quantity(Exact.rational(Fraction(text)), text),))
    text = unify(text)
    announced = _ANNOUNCED.match(text)
    if announced and announced.end() < len(text):
        text = text[announced.end() :].strip()
    text = text.removeprefix("=").removeprefix("≈").lstrip()
    if text == "+∞":
        text = "∞"
    if not text:
        return Reading("", readable=False)
    single = _SINGLE.fullmatch(text)
    if single:
        letter = single.group(1)
        meanings = (Quantity(Exact.letter(letter), letter),)
        # Options are named in capitals or small letters; x and X are different variables.
        return Reading(letter, meanings, Choice(letter.upper() if letter.upper() <= "L" else letter))
    labelled = _LABELLED.fullmatch(text)
    if labelled and not _OTHER_LABEL.search(labelled.group(3)):
        choice = Choice(labelled.group(1) or labelled.group(2), _read_body(labelled.group(3), 0))
        return Reading(compact(text), choice=choice)
    return _read_body(text, 0)


def _read_body(text: str, depth: int) -> Reading:
    """Parse everything but a single option: yes or no, several letters, prose, a structure, a scalar, a list."""
    said = _YES_NO.fullmatch(text)
    if said and said.group(2) and not _CONTRADICTS.search(said.group(3)):
        return Reading(compact(text), words=_words(text), prefix=said.group(1).lower())
    letters = _option_letters(text)
    # Letters without separators are a list of options only in alphabetical order; BA is a segment.
    if letters and (not text.isalpha() or letters == sorted(set(letters))):
        return Reading(compact(text), (Tagged("letters", frozenset(letters)),))
    words = _words(text)
    try:
        meanings = _meanings(text, depth)
    except (OutOfBounds, Unreadable):
        return Reading(compact(text), words=words, readable=False)
    return Reading(compact(text), tuple(meanings), words=words, readable=bool(meanings or words))


def _option_letters(text: str) -> list[str]:
    """Several option letters, as in `A, C`, `C and A` or `AC`; empty if the text is anything else."""
    return [sign for sign in text if "A" <= sign <= "J"] if _LETTERS.fullmatch(text.strip("()[]⦃⦄")) else []


def _meanings(text: str, depth: int) -> list[Meaning]:
    meanings = read_structure(text)
    if not any(isinstance(meaning, Tagged) for meaning in meanings):
        meanings += read_scalar(text)
    region = read_region(text)
    if region is not None:
        meanings.append(region)
        if not is_pair(text):
            return meanings
    if depth < MAX_DEPTH:
        sequence = split_sequence(text)
        if sequence is not None and len(sequence.items) == 1:
            return [*meanings, *_read_body(sequence.items[0], depth + 1).meanings]
        if sequence is not None:
            items = tuple(_read_body(item, depth + 1) for item in sequence.items)
            unordered = sequence.unordered or _is_repeated(items)
            meanings.append(Items(items, sequence.brackets, unordered, sequence.name))
            if "±" in text:
                meanings.append(Items(items[::-1]))
    return meanings


def _is_repeated(items: tuple[Reading, ...]) -> bool:
    """Whether every item has the same name (`x = 2, x = 3`): alternative values, in any order."""
    names = {next((m.name for m in item.meanings if isinstance(m, Quantity)), "") for item in items}
    return len(names) == 1 and names != {""}


def _words(text: str) -> str:
    """The text without case and whitespace if it is prose or a statement such as ∠1 ≅ ∠4, else an empty string."""
    if not _GEOMETRICAL.isdisjoint(text) and "=" not in text:
        return compact(text)
    prose = text.lower() == "no" or any(len(word) >= 3 for word in _WORD.findall(text))
    if not prose or text[0].isdigit() or not _MATHEMATICAL.isdisjoint(text):
        return ""
    return compact(text).casefold()
