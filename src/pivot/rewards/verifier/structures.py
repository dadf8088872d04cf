"""Clock times, dates, ratios, ranges and sizes: structures that must not be computed to one number."""

from __future__ import annotations

import re

from .exact import OutOfBounds, Unreadable
from .expression import evaluate, is_ambiguous
from .meanings import Clock, Meaning, Quantity, Ratio, Span, Tagged
from .names import read_name
from .quantities import read_quantity

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
    """What a unified text means as a time, a date, a ratio, a range or a size; empty where it is none."""
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
    """(year, month, day), with 0 for what is missing; `1/5/2020` stays as it is written, for it may be either."""
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
    """`10-15 cm`, `10 cm to 15 cm`; a unit at the end is that of both."""
    found = _DASH.fullmatch(text) or _TO.fullmatch(text)
    if found is None:
        return []
    return _span("range", [group for group in found.groups() if group])


def _size(text: str) -> list[Meaning]:
    """`3 x 4`, `3 cm by 4 cm`; a product of a number and a power of ten is a number."""
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
