"""Structures that must not be evaluated to one number: times, dates, ratios, ranges, sizes, lists, numbered parts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .comparison import Clock, Meaning, Quantity, Ratio, Span, Tagged
from .exact import OutOfBounds, Unreadable
from .expressions import evaluate, is_ambiguous
from .quantities import read_quantity
from .units import read_name

_CLOCK = re.compile(
    r"(?:at )?([0-9]{1,2})(?::([0-5][0-9]))?(?::([0-5][0-9]))? ?([ap]\.? ?m\b\.?)?(?: o'clock)?",
    re.IGNORECASE,
)
_SLASH_DATE = re.compile(r"([0-9]{1,2})([/.-])([0-9]{1,2})\2([0-9]{4})")
_ISO_DATE = re.compile(r"([0-9]{4})([/.-])([0-9]{1,2})\2([0-9]{1,2})")
_MONTH_NAMES = "january february march april may june july august september october november december"
_MONTHS = _MONTH_NAMES.split()
_MONTH = "|".join(sorted((*_MONTHS, *(month[:3] for month in _MONTHS), "sept"), key=len, reverse=True))
_MONTH_FIRST = re.compile(rf"({_MONTH})\.? ([0-9]{{1,2}})(?:st|nd|rd|th)?(?:,? ([0-9]{{4}}))?", re.IGNORECASE)
_DAY_FIRST = re.compile(
    rf"([0-9]{{1,2}})(?:st|nd|rd|th)?(?: of)? ({_MONTH})\.?(?:,? ([0-9]{{4}}))?", re.IGNORECASE
)
_DASH = re.compile(r"([0-9.,]+(?: ?[^\W\d]+| ?%|°)?) ?- ?([0-9.,]+(?: ?[^\W\d].*| ?%|°)?)")
_TO = re.compile(r"(?:from )?([^ ].*?) to ([^ ].*)|between (.+?) and (.+)", re.IGNORECASE)
_BY = re.compile(r" by |(?<=[0-9a-z.°]) ?\* ?(?=[0-9])|(?<=[0-9]) x (?=[0-9])")
_MAX_CHARS = 80


def read_structure(text: str) -> list[Meaning]:
    """The meanings of a unified text as a time, date, ratio, range or size; empty for anything else."""
    if len(text) > _MAX_CHARS:
        return []
    found: list[Meaning] = []
    for reader in (_clock, _date, _ratio, _range, _size):
        try:
            meanings = reader(text)
        except (Unreadable, OutOfBounds):
            continue
        found.extend(meanings)
    return found


def _clock(text: str) -> list[Meaning]:
    found = _CLOCK.fullmatch(text)
    if found is None or not (found.group(2) or found.group(4) or "o'clock" in text):
        return []
    hours, minutes, seconds = (int(group or 0) for group in found.groups()[:3])
    half = (found.group(4) or "").replace(".", "").replace(" ", "").lower()
    if hours > (12 if half else 24) or (half and hours == 0):
        return []
    if half:
        hours = hours % 12 + (12 if half == "pm" else 0)
    return [Clock(3600 * hours + 60 * minutes + seconds, half)]


def _date(text: str) -> list[Meaning]:
    """(year, month, day), 0 if missing; `1/5/2020` is ambiguous and only equals the same digits."""
    slashes, iso = _SLASH_DATE.fullmatch(text), _ISO_DATE.fullmatch(text)
    if slashes:
        first, second, year = int(slashes.group(1)), int(slashes.group(3)), int(slashes.group(4))
        if first > 12 or second > 12 or first == second:
            month, day = sorted((first, second))
            return [Tagged("date", (year, month, day))] if month <= 12 and day <= 31 else []
        return [Tagged("numeric date", (year, first, second))]
    if iso:
        year, month, day = int(iso.group(1)), int(iso.group(3)), int(iso.group(4))
        return [Tagged("date", (year, month, day))] if month <= 12 and day <= 31 else []
    named = _MONTH_FIRST.fullmatch(text)
    if named:
        month, day, year = named.groups()
    else:
        named = _DAY_FIRST.fullmatch(text)
        if named is None:
            return []
        day, month, year = named.groups()
    number = [name[:3] for name in _MONTHS].index(month[:3].lower()) + 1
    return [Tagged("date", (int(year or 0), number, int(day)))] if int(day) <= 31 else []


def _ratio(text: str) -> list[Meaning]:
    left, equals, right = text.partition("=")
    name = read_name(left.strip()) if equals else ""
    if name is None:
        return []
    text = right.strip() if equals else text
    parts, in_words = text.split(":"), False
    if len(parts) == 1:
        found = _TO.fullmatch(text)
        if found is None or not found.group(1) or text.lower().startswith("from "):
            return []
        parts, in_words = [found.group(1), found.group(2)], True
    if not 2 <= len(parts) <= 4 or any(map(is_ambiguous, parts)):
        return []
    *values, last = (evaluate(part) for part in parts)
    return [Ratio(tuple(value / last for value in values), in_words, name)]


def _range(text: str) -> list[Meaning]:
    """`10-15 cm`, `10 cm to 15 cm`; a unit at the end applies to both."""
    found = _DASH.fullmatch(text) or _TO.fullmatch(text)
    if found is None:
        return []
    return _span("range", [group for group in found.groups() if group])


def _size(text: str) -> list[Meaning]:
    """`3 x 4`, `3 cm by 4 cm`; a number times a power of ten is a number, not a size."""
    parts = _BY.split(text)
    if "*" in text and read_quantity(text) is not None:
        return []
    return _span("size", parts) if 2 <= len(parts) <= 4 else []


def _span(kind: str, texts: list[str]) -> list[Meaning]:
    parts = [read_quantity(text.strip()) for text in texts]
    if any(part is None or part.value is None or part.value.letters for part in parts):
        return []
    known = [part for part in parts if part is not None]
    unit = known[-1].unit
    return [Span(kind, tuple(Quantity(p.value, p.source, p.unit or unit, tied=False) for p in known))]


MAX_ITEMS = 64

_OPENING, _CLOSING = "([{⦃⟨", ")]}⦄⟩"
_WRAPPED = {"(": ")", "[": "]", "⦃": "⦄", "⟨": "⟩"}
_ALTERNATIVE = re.compile(r",? ?(?<![A-Za-z])(?:or|and)(?![A-Za-z]) ?", re.IGNORECASE)
_COUNTED = re.compile(r"(?:angles?|∠) ?(?=[0-9])", re.IGNORECASE)
_MARKERS = (
    (re.compile(r"(?:part )?\(([1-9])\):? ?", re.IGNORECASE), "123456789"),
    (re.compile(r"(?:part )?\(([a-h])\):? ?", re.IGNORECASE), "abcdefgh"),
    (re.compile(r"(?<![0-9A-Za-z(.])([1-9])\) ?"), "123456789"),
    (re.compile(r"(?<![0-9A-Za-z(.^])([1-9])\. (?=[^0-9]|[0-9])"), "123456789"),
)
_THOUSANDS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])")
_NAMED_POINT = re.compile(r"(?:([A-Z](?:_\{?[0-9]\}?|')?)(?: ?[=:] ?)?|([A-Za-z]{1,2}) ?= ?)(?=[(⟨])")
_MEMBER = re.compile(r"^[A-Za-zα-ω] ?∈ ?(?=⦃)")


@dataclass(frozen=True)
class Sequence:
    """Items in order, with their brackets (empty if there are none)."""

    items: tuple[str, ...]
    brackets: str = ""
    unordered: bool = False
    """True for a set, or items joined by `or`, `and` or ±."""
    name: str = ""
    """The name of a point."""


def split_sequence(text: str) -> Sequence | None:
    """Split `(1, 2)`, `{3, 5}`, `1; 10.5`, `(1) 5 (2) 6`, `x = 3 or x = 5` or `3 ± √2`; None if it is not a list."""
    if text.count("±") == 1:
        return _plus_and_minus(text)
    parts = _numbered(text)
    if parts is not None:
        return parts
    if "=" not in text:
        text = _COUNTED.sub("", text)
    text = _MEMBER.sub("", text)
    point = _NAMED_POINT.match(text)
    if point:
        inner = _listed(text[point.end() :])
        if inner is not None and inner.brackets == "()":
            name = re.sub(r"[{}_]", "", point.group(1) or point.group(2))
            return Sequence(inner.items, inner.brackets, inner.unordered, name)
    return _listed(text)


def _plus_and_minus(text: str) -> Sequence | None:
    """`3 ± √2`, `x = ±2`: one item per sign."""
    if any(sign in ",;\n<>≤≥" for sign in text):
        return None
    before, after = text.split("±")
    if not before.rstrip() or before.rstrip().endswith("="):
        return Sequence((f"{before}{after}", f"{before}-({after})"), unordered=True)
    return Sequence((f"{before}+({after})", f"{before}-({after})"), unordered=True)


def _numbered(text: str) -> Sequence | None:
    """`(1) 5 (2) 6`: the text starts with a marker, and the markers count up from the first."""
    for marker, order in _MARKERS:
        if not marker.match(text):
            continue
        found = list(marker.finditer(text))
        if len(found) < 2 or [one.group(1).lower() for one in found] != list(order[: len(found)]):
            continue
        ends = [*(one.start() for one in found[1:]), len(text)]
        items = [text[one.end() : end].strip(" ,;.\n") for one, end in zip(found, ends, strict=True)]
        return Sequence(tuple(items)) if all(items) else None
    return None


def _listed(text: str) -> Sequence | None:
    brackets, inner = "", text[1:-1]
    if inner and _WRAPPED.get(text[0]) == text[-1] and _is_balanced(inner):
        brackets, text = text[0] + text[-1], inner.strip()
    outer = _split(text, ";\n")
    if len(outer) > 1:
        return Sequence(tuple(outer), *_kind(brackets)) if len(outer) <= MAX_ITEMS else None
    joined = _ALTERNATIVE.sub(";", text)
    if ", " in joined or ";" in joined or (brackets and not _THOUSANDS.search(joined)):
        joined = (
            _THOUSANDS.sub(lambda found: found.group().replace(",", ""), joined) if ", " in joined else joined
        )
    elif not brackets and _is_one_number(joined):
        return None
    items = _split(joined, ",;")
    if len(items) > MAX_ITEMS or (len(items) < 2 and brackets not in ("⦃⦄", "[]")):
        return None
    kind, unordered = _kind(brackets)
    return Sequence(tuple(items), kind, unordered or ";" in joined)


def _kind(brackets: str) -> tuple[str, bool]:
    """(brackets, unordered): angle brackets count as round ones, set braces as unordered."""
    return ("()" if brackets == "⟨⟩" else brackets), brackets == "⦃⦄"


def _is_one_number(text: str) -> bool:
    """`1,000` and `12,345,678` are numbers."""
    return re.fullmatch(r"[^,]*?(?<![0-9.])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])[^,]*", text) is not None


def _is_balanced(text: str) -> bool:
    depth = 0
    for sign in text:
        depth += (sign in _OPENING) - (sign in _CLOSING)
        if depth < 0:
            return False
    return depth == 0


def _split(text: str, separators: str) -> list[str]:
    """Split at separators outside brackets."""
    items, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign in _OPENING) - (sign in _CLOSING)
        if depth == 0 and sign in separators:
            items.append(text[start:place].strip())
            start = place + 1
    items.append(text[start:].strip())
    return [item for item in items if item]
