"""Parse a unified text as a quantity, an equation or an inequality."""

from __future__ import annotations

import re

from .comparison import Meaning, Quantity, Relation
from .exact import Exact, OutOfBounds, Unreadable
from .expressions import evaluate, is_ambiguous
from .library import is_symbolic
from .notation import digits_for_words
from .units import PERCENT, Measured, read_name, split_unit

_RELATION = re.compile(r"[=≈<>≤≥≠]")
_DECIMALS = re.compile(r"-?[0-9]+(?:\.([0-9]+))?")
_POINT = re.compile(r"\([^()]*,[^()]*\)")
"""`(11,300)` is not a number."""
MAX_SIDES = 6
_DEGREES = (("°", 1),)


def read_scalar(text: str) -> list[Meaning]:
    """The meanings of an expression, `x = 5`, `2 + 3 = 5`, an equation or an inequality; empty for anything else.

    Raises OutOfBounds if the value is too large to compute.
    """
    relations = _RELATION.findall(text)
    if not relations:
        quantity = read_quantity(text)
        if quantity is None:
            return []
        return [quantity, *_as_variable(text, quantity)]
    parts = [part.strip() for part in _RELATION.split(text)]
    if len(parts) > MAX_SIDES or "≠" in relations:
        return []
    meanings: list[Meaning] = _relations(parts, relations)
    if set(relations) <= {"=", "≈"}:
        named = _equality(parts, relations)
        if named is not None:
            meanings.insert(0, named)
    return meanings


def read_quantity(text: str) -> Quantity | None:
    """A number or a formula with its unit; None for anything else."""
    measured = split_unit(digits_for_words(text))
    if is_ambiguous(measured.text) or _POINT.fullmatch(measured.text):
        return None
    try:
        value = evaluate(measured.text)
    except Unreadable:
        return _for_the_library(text, measured)
    return Quantity(value, measured.text, measured.unit, tied=measured.tied)


def _as_variable(text: str, quantity: Quantity) -> list[Quantity]:
    """The second reading of `5m`: five times m."""
    if not quantity.tied:
        return []
    try:
        return [Quantity(evaluate(text), text)]
    except Unreadable:
        return []


def _for_the_library(text: str, measured: Measured) -> Quantity | None:
    """A formula with functions, nested roots or quotients of polynomials; a final degree sign is part of it."""
    if measured.unit == _DEGREES or measured.unit == PERCENT or measured.tied:
        measured = Measured(text, ())
    if not is_symbolic(measured.text):
        return None
    return Quantity(None, measured.text, measured.unit)


def _relations(parts: list[str], signs: list[str]) -> list[Meaning]:
    """Equations up to a factor, inequalities up to a positive factor, normalised to < or ≤."""
    if len(parts) != 2 or is_ambiguous(parts[0]) or is_ambiguous(parts[1]):
        return []
    sign = signs[0]
    try:
        measured = split_unit(parts[1])
        if measured.tied:
            measured = Measured(parts[1], ())
        left, right = evaluate(parts[0]), evaluate(measured.text)
        if not (left - right).letters:
            return []
        if sign in "=≈":
            return [Relation("=", (left - right).direction(signed=True), measured.unit)]
        if sign in ">≥":
            left, right = right, left
        return [Relation("<" if sign in "<>" else "≤", (left - right).direction(signed=False), measured.unit)]
    except Unreadable:
        return []


def _equality(parts: list[str], signs: list[str]) -> Quantity | None:
    """The value of `x = 2 + 3 = 5`: all sides after the name must be equal; one after ≈ must be a rounding."""
    name = read_name(parts[0])
    values = parts if name is None else parts[1:]
    if name is None:
        signs = ["=", *signs]
    if not values:
        return None
    last = read_quantity(values[-1])
    if len(values) == 1:
        return None if last is None or name is None else _named(last, name)
    measured = [split_unit(digits_for_words(value)) for value in values]
    sides = [_plain(one) for one in measured]
    exact = sides[0]
    if exact is None or last is None or len({one.unit for one in measured if one.unit}) > 1:
        return None
    for value, one, sign in zip(sides[1:], measured[1:], signs[1:], strict=True):
        if value is None or (value != exact and not (sign == "≈" and _is_rounding(exact, value, one.text))):
            return None
    share = Exact.rational(100) if last.unit == PERCENT else Exact.rational(1)
    return Quantity(exact * share, values[0], last.unit, name or "", last.tied)


def _named(quantity: Quantity, name: str) -> Quantity:
    return Quantity(quantity.value, quantity.source, quantity.unit, name, quantity.tied)


def _plain(measured: Measured) -> Exact | None:
    """The number (a percentage as a fraction of 1); None if it contains letters or cannot be evaluated."""
    try:
        value = evaluate(measured.text)
    except (Unreadable, OutOfBounds):
        return None
    if value.letters:
        return None
    return value / Exact.rational(100) if measured.unit == PERCENT else value


def _is_rounding(exact: Exact, rounded: Exact, text: str) -> bool:
    """Whether `rounded` is `exact` to as many decimals as are written, as in `5√3 ≈ 8.66`."""
    found = _DECIMALS.fullmatch(text)
    if found is None:
        return False
    try:
        return abs(exact.approximate() - rounded.approximate()) < 10.0 ** -len(found.group(1) or "")
    except Unreadable:
        return False
