"""Split `(1, 2)`, `{3, 5}`, `1; 10.5`, `(1) 5 (2) 6`, `x = 3 or x = 5` and `3 ± √2` into their items."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_NAMED_POINT = re.compile(r"(?:([A-Z](?:_\{?[0-9]\}?|')?)(?: ?[=:] ?)?|([A-Za-z]{1,2}) ?= ?)(?=[(⟨])")
_MEMBER = re.compile(r"^[A-Za-zα-ω] ?∈ ?(?=⦃)")


@dataclass(frozen=True)
class Sequence:
    """Items in their order, with their brackets (empty where there are none)."""

    items: tuple[str, ...]
    brackets: str = ""
    unordered: bool = False
    """A set, or items joined by `or`, `and` or ±."""
    name: str = ""
    """Of a point."""


def split_sequence(text: str) -> Sequence | None:
    """The items of a unified text, or None where it is no list."""
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
    """`3 ± √2`, `x = ±2`: with each sign."""
    if any(sign in ",;\n<>≤≥" for sign in text):
        return None
    before, after = text.split("±")
    if not before.rstrip() or before.rstrip().endswith("="):
        return Sequence((f"{before}{after}", f"{before}-({after})"), unordered=True)
    return Sequence((f"{before}+({after})", f"{before}-({after})"), unordered=True)


def _numbered(text: str) -> Sequence | None:
    """`(1) 5 (2) 6`: markers that begin the text and count up from the first."""
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
        joined = _THOUSANDS.sub("", joined) if ", " in joined else joined
    elif not brackets and _is_one_number(joined):
        return None
    items = _split(joined, ",;")
    if len(items) > MAX_ITEMS or (len(items) < 2 and brackets not in ("⦃⦄", "[]")):
        return None
    kind, unordered = _kind(brackets)
    return Sequence(tuple(items), kind, unordered or ";" in joined)


def _kind(brackets: str) -> tuple[str, bool]:
    """Angle brackets are a vector's, like round ones."""
    return ("()" if brackets == "⟨⟩" else brackets), brackets == "⦃⦄"


def _is_one_number(text: str) -> bool:
    """`1,000` and `12,345,678` are numbers."""
    return re.fullmatch(r"[^,]*?[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])[^,]*", text) is not None


def _is_balanced(text: str) -> bool:
    depth = 0
    for sign in text:
        depth += (sign in _OPENING) - (sign in _CLOSING)
        if depth < 0:
            return False
    return depth == 0


def _split(text: str, separators: str) -> list[str]:
    """Cut outside of brackets."""
    items, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign in _OPENING) - (sign in _CLOSING)
        if depth == 0 and sign in separators:
            items.append(text[start:place].strip())
            start = place + 1
    items.append(text[start:].strip())
    return [item for item in items if item]
