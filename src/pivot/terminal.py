"""Text from data, models and files that is safe to print to a terminal."""

from __future__ import annotations

import sys
import unicodedata
from functools import cache

_KEPT = "\n\t"
_BIDIRECTIONAL = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Marks that change the order in which text is displayed."""


def printable(text: str) -> str:
    """The text with control characters, bidirectional marks and surrogates as visible escapes (`\\u001b`).

    Newlines and tabs are kept. The escapes are JSON's, so JSON stays valid and keeps its value.
    """
    if text.isprintable() and text.isascii():
        return text
    return "".join(f"\\u{ord(char):04x}" if _is_unsafe(char) else char for char in text)


def _is_unsafe(char: str) -> bool:
    return char not in _KEPT and (unicodedata.category(char) in ("Cc", "Cs") or char in _BIDIRECTIONAL)


@cache
def warn(sentence: str) -> None:
    """Print a sentence on standard error, once per process."""
    print(printable(sentence), file=sys.stderr)
