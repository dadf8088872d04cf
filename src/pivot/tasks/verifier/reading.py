"""Everything that a short answer may mean, as a set of hashable normal forms.

Two answers agree when they share a form. A text may have several: `B. 48` is the choice B and the number 48;
`50%` is 50 of a unit and the share 1/2; `(11,300)` is a point and a number in thousands.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from .exact import Exact, OutOfBounds, Unreadable
from .expression import evaluate
from .sequences import Sequence, split_sequence
from .spelling import compact, unify
from .units import split_unit

CACHED_CHARS = 200
CACHED_READINGS = 4096

_PLAIN_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?", re.ASCII)
_LABELLED = re.compile(r"(?:\(([A-Z])\)|([A-Z]) ?(?:[.)]|:\s))\s*(.+)", re.DOTALL)
_OTHER_LABEL = re.compile(r"(?:^|[^A-Za-z])(?:\(?[A-Z] ?[.):]|(?:or|and) |\(?[A-Z]\)?$)")
_SINGLE = re.compile(r"\(?([A-Za-z])\)?[.)]?")
_LETTERS = re.compile(r"[A-J](?:(?: ?[,;&/] ?|\n| and |, and | or | )[A-J]){1,9}|[A-J]{2,6}")
_ANNOUNCED = re.compile(
    r"(?:the )?(?:(?:correct|final|right) )?(?:answer|option|choice)(?: is| ?:)? ?:? ?", re.IGNORECASE
)
_SAYS = re.compile(r"(yes|no|true|false)(?:[,.:;]\s*(.*))?", re.IGNORECASE | re.DOTALL)
_SAYS_OTHERWISE = re.compile(r"\b(?:yes|no|true|false)\b", re.IGNORECASE)
_RELATION = re.compile(r"[=≈<>≤≥]")
_NAME = re.compile(r"(?:[A-Za-zα-ω∠△][A-Za-zα-ω0-9∠△_{}' ]{0,40}|\\[a-z]+ ?[A-Za-z]{0,3})(?:\([A-Za-z]\))?")
_CLOCK = re.compile(r"([01]?[0-9]|2[0-4]):([0-5][0-9])")
_WORD = re.compile(r"[^\W\d_]{2,}")
_MATHEMATICAL = frozenset("\\+*/^=<>≤≥√π_|±∪∩∈∞")
_GEOMETRICAL = frozenset("∠△≅∼∥⊥")
_COMPUTABLE = frozenset("\\√<>≤≥|±∪∩∈∞")
_FUNCTION = re.compile(r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|exp|lim|max|min|mod|inf", re.IGNORECASE)


@dataclass(frozen=True)
class Reading:
    """What a text means, as far as it was understood.

    Example:
        read("B. 48 cm") has the forms ("text", "48cm"), ("value", 48), the choice "B" and the unit "cm"
    """

    forms: frozenset[Hashable]
    complete: bool
    """Understood as a whole, so that sharing no form with another complete reading means being different."""
    refused: bool = False
    """Beyond the bounds of exact arithmetic, or malformed (`5+?`, `3^`): no library shall be asked."""
    choice: str = ""
    """The letter of an option, alone or before its text."""
    clock: tuple[int, int] | None = None
    """Hours and minutes: 3:30 is not 1:10, though the ratios are equal."""
    unit: str = ""
    name: str = ""
    """The left side of `x = 5`."""
    numeric: bool = False
    """There are digits in the text of a labelled option."""


def read(text: str) -> Reading:
    """Read a text of at most a few thousand characters; short ones are remembered."""
    return _remembered(text) if len(text) <= CACHED_CHARS else _read(text)


@lru_cache(CACHED_READINGS)
def _remembered(text: str) -> Reading:
    return _read(text)


def _read(text: str) -> Reading:
    if _PLAIN_NUMBER.fullmatch(text):  # Nine of ten answers: the long way would give the same.
        value = Exact.rational(Fraction(text))
        return Reading(frozenset({("text", text), *_value_forms(value, "")}), complete=True)
    text = unify(text)
    announced = _ANNOUNCED.match(text)
    if announced and announced.end() < len(text):
        text = text[announced.end() :].strip()
    if not text:
        return Reading(frozenset(), complete=True, refused=True)
    single = _SINGLE.fullmatch(text)
    if single:
        letter = single.group(1)
        return Reading(frozenset({("text", letter.lower())}), complete=True, choice=letter.upper())
    labelled = _LABELLED.fullmatch(text)
    if labelled and not _OTHER_LABEL.search(labelled.group(3)):
        label, text = labelled.group(1) or labelled.group(2), labelled.group(3)
        body = _read_body(text)
        numeric = any(sign.isdigit() for sign in text)
        return Reading(body.forms, complete=True, choice=label, unit=body.unit, numeric=numeric)
    return _read_body(text)


def _read_body(text: str) -> Reading:
    """All but option letters: the text itself, yes or no, letters, a clock, a scalar, a sequence."""
    forms: set[Hashable] = {("text", compact(text))}
    says = _SAYS.fullmatch(text)
    if says and not _SAYS_OTHERWISE.search(says.group(2) or ""):
        return Reading(frozenset({*forms, ("says", says.group(1).lower())}), complete=True)
    if _LETTERS.fullmatch(text.strip("()[]⦃⦄")):
        letters = [sign for sign in text if "A" <= sign <= "J"]
        # Letters run together are a list of options only in order; BA is a segment.
        if not text.isalpha() or letters == sorted(set(letters)):
            return Reading(frozenset({*forms, ("letters", frozenset(letters))}), complete=True)
    clock = _CLOCK.fullmatch(text)
    if clock:
        hours, minutes = int(clock.group(1)), int(clock.group(2))
        return Reading(frozenset({*forms, *_ratio(text)}), complete=True, clock=(hours, minutes))
    return _read_mathematics(text, forms)


def _read_mathematics(text: str, forms: set[Hashable]) -> Reading:
    name, unit, value, refused = "", "", None, False
    try:
        name, unit, value, found = _scalar(text)
        forms |= found
    except OutOfBounds:
        refused = True
    except Unreadable:
        pass
    understood = value is not None or len(forms) > 1
    sequence = split_sequence(text)
    if sequence is not None:
        items, whole = _items(sequence)
        forms |= sequence.forms(items)
        understood = understood or whole
    ratio = _ratio(text)
    if ratio:
        forms |= {*ratio, *(("value", quotient) for _, (quotient, *rest) in ratio if not rest)}
        understood = True
    complete = understood or _is_words(text)
    refused = not complete and (refused or not _is_computable(text))
    return Reading(frozenset(forms), complete, refused, unit=unit, name=name)


def _scalar(text: str) -> tuple[str, str, Exact | None, set[Hashable]]:
    """(name, unit, value, forms) of an expression, `x = 5`, `2 + 3 = 5`, an equation or an inequality."""
    relations = _RELATION.findall(text)
    if not relations:
        measured = split_unit(text)
        value = evaluate(measured.text)
        return "", measured.unit, value, _value_forms(value, measured.unit)
    parts = [part.strip() for part in _RELATION.split(text)]
    forms: set[Hashable] = set()
    if len(parts) == 2:
        with suppress(Unreadable):
            forms |= _relation_forms(evaluate(parts[0]), relations[0], evaluate(split_unit(parts[1]).text))
    equality, named = set(relations) <= {"=", "≈"}, bool(_NAME.fullmatch(parts[0]))
    if forms and not (equality and named):
        return "", "", None, forms
    measured = split_unit(parts[-1])
    value = evaluate(measured.text)
    if not equality or not (named or all(evaluate(part) == value for part in parts[:-1])):
        raise Unreadable
    name = compact(parts[0]) if named else ""
    return name, measured.unit, value, forms | _value_forms(value, measured.unit)


def _value_forms(value: Exact, unit: str) -> set[Hashable]:
    """A bare number agrees with a percentage both as 50 and as 1/2; two percentages only as they stand."""
    share = value * Exact.rational(1) / Exact.rational(100) if unit == "%" else value
    return {("value", value), ("share", share)}


def _relation_forms(left: Exact, sign: str, right: Exact) -> set[Hashable]:
    """Equations up to a factor, inequalities up to a positive one, written with < or ≤."""
    if sign in "=≈":
        return {("=", (left - right).direction(signed=True))}
    if sign in ">≥":
        left, right = right, left
    return {("<" if sign in "<>" else "≤", (left - right).direction(signed=False))}


def _items(sequence: Sequence) -> tuple[tuple[Hashable, ...], bool]:
    """The items' values, or their texts; and whether each was understood."""
    items: list[Hashable] = []
    whole = True
    for text in sequence.items:
        try:
            _, _, value, forms = _scalar(text)
            items.append(value if value is not None else frozenset(forms))
        except (Unreadable, OutOfBounds):
            items.append(compact(text))
            whole = whole and _is_words(text)
    return tuple(items), whole


def _ratio(text: str) -> set[tuple[str, tuple[Exact, ...]]]:
    """`2:3` and `4:6` as the quotients of the last part; nothing where it is no ratio."""
    parts = text.split(":")
    if not 2 <= len(parts) <= 4:
        return set()
    try:
        *values, last = (evaluate(part) for part in parts)
        return {("ratio", tuple(value / last for value in values))}
    except (Unreadable, OutOfBounds):
        return set()


def _is_computable(text: str) -> bool:
    """There is a function, a root, a relation, a command or a product of letters that a library may know."""
    return not _COMPUTABLE.isdisjoint(text) or _WORD.search(text) is not None


def _is_words(text: str) -> bool:
    """Prose, a statement like ∠1 ≅ ∠4, or nothing that could be computed: no library needs to be asked."""
    if not any(sign.isalnum() for sign in text) or not _GEOMETRICAL.isdisjoint(text):
        return True
    words = _WORD.findall(text)
    if not _MATHEMATICAL.isdisjoint(text) or any(map(_FUNCTION.fullmatch, words)):
        return False
    # Two small letters may be a product (`ab`), capitals name points or options.
    return any(len(word) >= 3 for word in words) or (text == text.upper() and not any(map(str.isdigit, text)))
