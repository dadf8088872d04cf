"""Sets of real numbers as sorted disjoint intervals: `(-∞,2)∪(3,∞)`, `x<2 or x>3`, `0<x≤1`, `x≠2`, `ℝ`."""

from __future__ import annotations

import re

from .comparison import Interval, Region
from .exact import Exact, Unreadable
from .expressions import evaluate, is_ambiguous

MAX_INTERVALS = 16
MAX_CHARS = 200

_SIGNS = frozenset("<>≤≥≠∪∈∞ℝ")
_ALL: tuple[Interval, ...] = ((None, False, None, False),)
_REALS = re.compile(r"(?:ℝ|(?:all|any) reals?(?: numbers?)?|(?:all|the set of) real numbers)", re.IGNORECASE)
_MEMBER = re.compile(r"([A-Za-zα-ω])(?: ?∈ ?| is (?:in )?)(?=[\[(ℝAaT])")
_BUILDER = re.compile(r"⦃([A-Za-zα-ω]) ?[|:] ?(.+)⦄")
_UNION, _MEET = re.compile(r"∪| or |, or "), re.compile(r"∩| and ")
_BRACKETS = re.compile(r"([(\[])([^,;]+)[,;]([^,;]+)([)\]])")
_RELATION = re.compile(r"[<>≤≥≠]")


def read_region(text: str) -> Region | None:
    """The set that a unified text describes, or None; `(1,2)` is an interval here, though it may also be a point."""
    if len(text) > MAX_CHARS or not (
        text[:1] in "([" or _REALS.fullmatch(text) or not _SIGNS.isdisjoint(text)
    ):
        return None
    letter = ""
    builder, member = _BUILDER.fullmatch(text), _MEMBER.match(text)
    if builder:
        letter, text = builder.groups()
    elif member:
        letter, text = member.group(1), text[member.end() :]
    try:
        return _union(text, letter)
    except Unreadable:
        return None


def is_pair(text: str) -> bool:
    """Whether the text is like `(1,2)` or `[1,2]`, which may also be a point or a list."""
    return text[0] + text[-1] in ("()", "[]") and _SIGNS.isdisjoint(text)


def _union(text: str, letter: str) -> Region:
    intervals: list[Interval] = []
    for part in _UNION.split(text):
        pieces = _ALL
        for piece in _MEET.split(part):
            found, named = _piece(piece.strip())
            if named and letter and named != letter:
                raise Unreadable
            letter = letter or named
            pieces = _intersect(pieces, found)
        intervals.extend(pieces)
    return Region(_disjoint(intervals), letter)


def _piece(text: str) -> tuple[tuple[Interval, ...], str]:
    """One bracketed interval, one inequality, or all reals; with the variable if one is named."""
    if _REALS.fullmatch(text):
        return _ALL, ""
    member = _MEMBER.match(text)
    if member:
        return _piece(text[member.end() :])[0], member.group(1)
    brackets = _BRACKETS.fullmatch(text)
    if brackets:
        opening, low, high, closing = brackets.groups()
        interval = (_bound(low, "-"), opening == "[", _bound(high, ""), closing == "]")
        if not _is_proper(interval):
            raise Unreadable
        return (interval,), ""
    return _inequality(text)


def _inequality(text: str) -> tuple[tuple[Interval, ...], str]:
    """`x<2`, `2>x`, `3-x≤5`, `0<x≤1`, `x≠2`."""
    signs = _RELATION.findall(text)
    parts = [part.strip() for part in _RELATION.split(text)]
    if "=" in text or "≈" in text or len(parts) not in (2, 3):
        raise Unreadable
    if len(parts) == 3:
        rising = set(signs) <= {"<", "≤"}
        if not rising and not set(signs) <= {">", "≥"}:
            raise Unreadable
        first, letter = _half_line(parts[0], signs[0], parts[1])
        second, _ = _half_line(parts[1], signs[1], parts[2])
        return _intersect((first,), (second,)), letter
    if signs == ["≠"]:
        (below, letter), (above, _) = _half_line(parts[0], "<", parts[1]), _half_line(parts[0], ">", parts[1])
        return (below, above), letter
    interval, letter = _half_line(parts[0], signs[0], parts[1])
    return (interval,), letter


def _half_line(left: str, sign: str, right: str) -> tuple[Interval, str]:
    """The solutions of `left sign right`, for sides that are linear in one letter."""
    if "∞" in left or "∞" in right or is_ambiguous(left) or is_ambiguous(right):
        raise Unreadable
    slope, rest, letter = _linear(evaluate(left) - evaluate(right))
    bound = -rest / slope
    below = (sign in "<≤") == (slope.approximate() > 0)
    closed = sign in "≤≥"
    return ((None, False, bound, closed) if below else (bound, closed, None, False)), letter


def _linear(value: Exact) -> tuple[Exact, Exact, str]:
    """(slope, rest, letter) of slope * letter + rest."""
    letters = value.letters
    if len(letters) != 1:
        raise Unreadable
    (letter,) = letters
    slope, rest = [], []
    for (radicand, powers), coefficient in value.terms:
        power = dict(powers).get(letter, 0)
        others = tuple(item for item in powers if item[0] != letter)
        if power not in (0, 1):
            raise Unreadable
        (slope if power else rest).append(((radicand, others), coefficient))
    return Exact.of(slope), Exact.of(rest), letter


def _bound(text: str, infinite_sign: str) -> Exact | None:
    """A number, or None for infinity on this side."""
    text = text.strip()
    if "∞" in text:
        if text.replace("+", "") != f"{infinite_sign}∞":
            raise Unreadable
        return None
    if is_ambiguous(text):
        raise Unreadable
    value = evaluate(text)
    value.approximate()  # Raises Unreadable if it contains letters.
    return value


def _is_proper(interval: Interval) -> bool:
    low, low_closed, high, high_closed = interval
    if (low is None and low_closed) or (high is None and high_closed):
        return False
    return low is None or high is None or _less(low, high)


def _less(a: Exact, b: Exact) -> bool:
    """Whether a < b; raises Unreadable if the values differ but their floats do not."""
    if a == b:
        return False
    difference = (a - b).approximate()
    if difference == 0.0:
        raise Unreadable
    return difference < 0


def _lower(a: Interval, b: Interval) -> bool:
    """Whether a starts before b."""
    if a[0] is None or b[0] is None:
        return a[0] is None and b[0] is not None
    return _less(a[0], b[0]) or (a[0] == b[0] and a[1] and not b[1])


def _intersect(first: tuple[Interval, ...], second: tuple[Interval, ...]) -> tuple[Interval, ...]:
    found = []
    for a in first:
        for b in second:
            low, low_closed = (b if _lower(a, b) else a)[:2]
            if a[0] is not None and a[0] == b[0]:
                low_closed = a[1] and b[1]
            high, high_closed = (a if _ends_first(a, b) else b)[2:]
            if a[2] is not None and a[2] == b[2]:
                high_closed = a[3] and b[3]
            if _is_proper((low, low_closed, high, high_closed)):
                found.append((low, low_closed, high, high_closed))
    return tuple(found)


def _ends_first(a: Interval, b: Interval) -> bool:
    if a[2] is None or b[2] is None:
        return a[2] is not None
    return _less(a[2], b[2])


def _disjoint(intervals: list[Interval]) -> tuple[Interval, ...]:
    """Sorted, with overlapping and touching intervals merged; raises Unreadable for none or too many."""
    if not 1 <= len(intervals) <= MAX_INTERVALS:
        raise Unreadable
    left, ordered = list(intervals), []
    while left:
        first = left[0]
        for other in left[1:]:
            first = other if _lower(other, first) else first
        left.remove(first)
        ordered.append(first)
    joined = [ordered[0]]
    for low, low_closed, high, high_closed in ordered[1:]:
        last = joined[-1]
        touches = last[2] is not None and low == last[2] and (low_closed or last[3])
        if last[2] is None or low is None or _less(low, last[2]) or touches:
            keep = (
                last[2:]
                if not _ends_first(last, (low, low_closed, high, high_closed))
                else (high, high_closed)
            )
            if last[2] is not None and last[2] == high:
                keep = (high, high_closed or last[3])
            joined[-1] = (last[0], last[1], *keep)
        else:
            joined.append((low, low_closed, high, high_closed))
    return tuple(joined)
