"""Split `(1, 2)`, `[0, 2, 1]`, `{3, 5}`, `1; 10.5`, `x = 3 or x = 5` and `±2` into items."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

MAX_ITEMS = 64

_OPENING, _CLOSING = "([{⦃", ")]}⦄"
_ALTERNATIVE = re.compile(r",? ?(?<![A-Za-z])(?:or|and)(?![A-Za-z]) ?")
_COUNTED = re.compile(r"(?:angles?|∠) ?(?=[0-9])", re.IGNORECASE)
_NUMBERED = re.compile(r"\(([1-9])\)")
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")


@dataclass(frozen=True)
class Sequence:
    """Items in their order, with their brackets (empty where there are none)."""

    items: tuple[str, ...]
    brackets: str
    alternatives: bool = False
    """Joined by `or`, `and` or ±: the order means nothing."""

    def forms(self, items: tuple[Hashable, ...]) -> set[Hashable]:
        """The normal forms of these items.

        Without brackets a list agrees with each kind of brackets, in its order; `(0,1)` and `[0,1]` are
        different (intervals); sets and alternatives have no order.
        """
        if self.brackets == "⦃⦄" or self.alternatives:
            return {("set", frozenset(Counter(items).items())), ("list", items)}
        if not self.brackets:
            return {("list", items), ("()", items), ("[]", items)}
        return {(self.brackets, items)}


def split_sequence(text: str) -> Sequence | None:
    """The items of a unified text, or None where it is no list."""
    if text.startswith("±"):
        return Sequence((text[1:], f"-({text[1:]})"), "", alternatives=True)
    text = _COUNTED.sub("", text)
    if text.startswith("(1)") and "(2)" in text:
        return Sequence(tuple(_split(_NUMBERED.sub(";", text))[:MAX_ITEMS]), "")
    brackets, inner = "", text[1:-1]
    if inner and text[0] in "([⦃" and text[-1] in ")]⦄" and _is_balanced(inner):
        brackets, text = text[0] + text[-1], inner
    joined = _ALTERNATIVE.sub(";", text)
    if ", " in joined or ";" in joined:
        joined = _THOUSANDS.sub("", joined)
    items = _split(joined)
    if len(items) > MAX_ITEMS or (len(items) < 2 and brackets != "⦃⦄"):
        return None
    return Sequence(tuple(items), brackets, alternatives=joined.count(";") > text.count(";"))


def _is_balanced(text: str) -> bool:
    depth = 0
    for sign in text:
        depth += (sign in _OPENING) - (sign in _CLOSING)
        if depth < 0:
            return False
    return depth == 0


def _split(text: str) -> list[str]:
    """Cut at commas, semicolons and line ends outside of brackets."""
    items, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign in _OPENING) - (sign in _CLOSING)
        if depth == 0 and sign in ",;\n":
            items.append(text[start:place].strip())
            start = place + 1
    items.append(text[start:].strip())
    return [item for item in items if item]
