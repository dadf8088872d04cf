"""The left side of `x = 5`, `m∠ABC = 50` or `Area = 12` in one spelling, and whether two names may be the same."""

from __future__ import annotations

import re

_FUNCTION = r"\\?(?:sin|cos|tan|cot|sec|csc|log|ln)"
_SYMBOL = re.compile(
    rf"(?:{_FUNCTION} ?)?(?:m ?)?[∠△⊙]? ?(?:[A-Z]{{1,4}}|[A-Za-zα-ωΩ]|(?<=[∠ ])[0-9])"
    r"(?:_ ?(?:\{[∠△]? ?[A-Za-z0-9]{1,6}\}|[A-Za-z0-9]))?'{0,3}(?:\([A-Za-z0-9α-ω,+ -]{1,12}\))?"
)
_RATIO = re.compile(r"([A-Z]{1,3}) ?([:/]) ?([A-Z]{1,3})")
_QUANTITY_WORDS = (
    "angle arc area average base chord circumference coordinates cost count degree diameter difference "
    "distance edge height hypotenuse length measure mass maximum mean median minimum mode number percentage "
    "perimeter point price probability product quotient radius range ratio side slope speed sum surface time "
    "triangle volume weight width of the a an total lateral major minor shaded region circle rectangle square "
    "sector cylinder cone sphere segment line"
)
_WORDS = frozenset(_QUANTITY_WORDS.split())
_EMPTY_WORDS = frozenset(
    ("answer", "value", "result", "the answer", "final answer", "the value", "the result")
)
_WORD = re.compile(r"[A-Za-z]+")
_ARTICLES = frozenset(("the", "a", "an", "of"))
MAX_CHARS = 48


def read_name(text: str) -> str | None:
    """The name in one spelling; empty where it says nothing (`Answer = 5`); None where it is no name."""
    if not text or len(text) > MAX_CHARS:
        return None
    ratio = _RATIO.fullmatch(text)
    if ratio:
        return f"{_points(ratio.group(1))}:{_points(ratio.group(3))}"
    if _SYMBOL.fullmatch(text):
        plain = re.sub(r"[ {}\\]", "", text)
        bare = re.fullmatch(r"(?:m(?=∠))?([∠△⊙]?)([A-Z]{1,4})", plain)
        return bare.group(1) + _points(bare.group(2)) if bare else plain
    if text.lower() in _EMPTY_WORDS:
        return ""
    words = text.split(" ")
    if len(words) <= 6 and all(_is_word(word) for word in words):
        return " ".join(
            word if word.isupper() else word.lower() for word in words if word.lower() not in _ARTICLES
        )
    return None


def names_agree(given: str, truth: str) -> bool:
    """A name may be missing; `∠B` may be `∠ABC`, and `y` is `f(x)`."""
    if not given or not truth or given == truth:
        return True
    short, long = sorted((given, truth), key=len)
    if (short, long) == ("y", "f(x)"):
        return True
    return len(short) == 2 and len(long) == 4 and short[0] == long[0] == "∠" and long[2] == short[1]


def _is_word(word: str) -> bool:
    return word.lower() in _WORDS or re.fullmatch("[∠△]?[A-Z]{1,4}", word) is not None


def _points(letters: str) -> str:
    """AB is BA, ABC is CBA; the points of a quadrilateral stay."""
    return min(letters, letters[::-1]) if len(letters) <= 3 else letters
