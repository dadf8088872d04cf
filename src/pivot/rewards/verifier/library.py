"""Formulas that exact arithmetic cannot decide: which ones, their LaTeX for math-verify, and the comparison.

Only a single formula of numbers, letters, known functions and operators qualifies; no words, units or lists. Decimals
become fractions and degrees become radians, so the library computes exactly. `load_math_verify` runs in the
library's own process and is the only function that imports it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from fractions import Fraction

from .exact import Exact, Monomial

FUNCTIONS = ("arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "sin", "cos", "tan", "cot", "sec", "csc",
             "log", "ln", "lg", "exp")  # fmt: skip
_GREEK_NAMES = "alpha beta gamma delta theta lambda mu rho sigma tau omega pi phi"
_GREEK = {sign: f"\\{name} " for sign, name in zip("αβγδθλμρστωπφ", _GREEK_NAMES.split(), strict=True)}
_TOKEN = re.compile(
    rf"\s*(?:(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
    rf"|(?P<function>\\?(?:{'|'.join(FUNCTIONS)})(?![A-Za-z])(?:_(?:\{{[0-9a-z.]{{1,6}}\}}|[0-9a-z]))?"
    r"(?:\^(?:\{-?[0-9]\}|[0-9]))?)"
    r"|(?P<command>\\frac|\\binom|√(?:\[[0-9a-z]\])?)|(?P<letter>[A-Za-zα-ω](?:_(?:\{[A-Za-z0-9]{1,3}\}|[A-Za-z0-9]))?)"
    r"|(?P<degree>°)|(?P<open>[({])|(?P<close>[)}])|(?P<sign>[-+*/^!|]))"
)
_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")
_PRODUCT = re.compile(r"[a-z]{2,3}")
_SHORT_WORDS = (
    "am an as at be by cm do ft go he hr if in is it kg km lb me mg mi ml mm my no of oh ok on or oz pm so to "
    "up us we yd th st nd rd bn and are but for had has her his how its not one out per set six sum ten the "
    "two use was way who why yes you all any max min mod lim ppm mil sup inf gcd lcm sgn arg det dim ker deg "
    "Hz sq cu nor"
)
_NO_PRODUCT = frozenset(_SHORT_WORDS.split())
_DEGREES = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)°")
_DECIMAL = re.compile(r"([0-9]*)\.([0-9]+)")
_BARE_FUNCTION = re.compile(rf"(?<![A-Za-z\\])({'|'.join(FUNCTIONS)})(?![A-Za-z])")
_ROOT_BEFORE = re.compile(r"√(?:\[[0-9a-z]\])?$")
_BARE_ROOT = re.compile(r"(√(?:\[[0-9a-z]\])?)\s*([0-9]+|[A-Za-zα-ω])")
_TWO_SIGNS = re.compile(r"[-+]\s*[-+]")
MAX_CHARS = 400


def is_symbolic(text: str) -> bool:
    """Whether a unified text is one formula that the library can parse."""
    if not text or len(text) > MAX_CHARS or not _are_functions_or_products(text):
        return False
    place, before, num_arguments = 0, "", 0
    opened: list[int] = []
    # `+-5` may stand for ±5.
    if "{}" in text or "()" in text or text[-1] in "-+*/^" or _TWO_SIGNS.search(text):
        return False
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None or found.lastgroup is None:
            return False
        kind = found.lastgroup
        if kind == "number" and before in ("number", "close", "letter", "degree"):
            return False  # `1 2` and `(1) 5 (2) 6` are not products.
        if kind == "degree" and before != "number":
            return False
        if text.startswith("!!", found.end() - 1):
            return False  # A double factorial is not a factorial of a factorial.
        if kind == "open":
            adjacent = before in ("number", "close", "letter", "degree") and not num_arguments
            if adjacent and _holds_one_number(text, found.end()):
                return False
            opened.append(num_arguments)
        elif kind == "close" and not opened:
            return False
        num_arguments = _arguments_left(
            kind, found.group(), opened.pop() if kind == "close" else num_arguments
        )
        place, before = found.end(), kind
    return not opened


def to_latex(value: Exact | None, source: str) -> str:
    """An exact value, or else its source text, in LaTeX with fractions for decimals and radians for degrees."""
    if value is not None:
        return " + ".join(_term(*term) for term in sorted(value.terms)) or "0"
    text = _DEGREES.sub(r"{\\frac{\1π}{180}}", source)
    text = _DECIMAL.sub(_fraction, text)
    text = _BARE_FUNCTION.sub(r"\\\1", text).replace("\\lg", "\\log_{10}")
    text = _BARE_ROOT.sub(r"\1{\2}", _braces_after_roots(text))
    text = "".join(_GREEK.get(sign, sign) for sign in text)
    return text.replace("√", "\\sqrt").replace("*", " \\cdot ")


def _term(monomial: Monomial, coefficient: Fraction) -> str:
    radicand, powers = monomial
    letters = " ".join(f"{_GREEK.get(name, name)}^{{{power}}}" for name, power in powers)
    top, bottom = coefficient.numerator, coefficient.denominator
    return f"\\frac{{{top}}}{{{bottom}}} \\cdot \\sqrt{{{radicand}}} {letters and chr(92) + 'cdot'} {letters}"


def _fraction(found: re.Match[str]) -> str:
    whole, decimals = found.groups()
    return f"{{\\frac{{{int(whole + decimals)}}}{{{10 ** len(decimals)}}}}}"


def _braces_after_roots(text: str) -> str:
    """Rewrite `√(2+x)` as `√{2+x}`."""
    signs, opened = list(text), []
    for place, sign in enumerate(text):
        if sign in "({":
            opened.append(place)
        elif sign in ")}" and opened:
            start = opened.pop()
            if _ROOT_BEFORE.search(text, max(0, start - 4), start):
                signs[start], signs[place] = "{", "}"
    return "".join(signs)


def _holds_one_number(text: str, place: int) -> bool:
    return re.match(r"\s*-?[0-9.]+\s*[)}]", text[place : place + 64]) is not None


def _arguments_left(kind: str, token: str, before: int) -> int:
    """How many groups the last fraction or binomial still takes after this token."""
    if kind == "command":
        return 2 if token.strip() in ("\\frac", "\\binom") else 0
    return 0 if kind == "open" else max(0, before - 1)


def _are_functions_or_products(text: str) -> bool:
    """Whether each word is a function name or a product of two or three letters."""
    return all(
        word in FUNCTIONS or (_PRODUCT.fullmatch(word) and word not in _NO_PRODUCT)
        for word in _WORD.findall(text)
    )


DIGITS = 40
"""Precision of the numerical test that rules out different values before anything is simplified."""
SAMPLES = ((5, 7), (11, 13), (3, 17))
"""Numerator and denominator of the fractions that replace the letters in the numerical test."""


def load_math_verify() -> Callable[[str, str], bool]:
    """Import math-verify and return a function that says whether two LaTeX formulas are exactly equal.

    math-verify only parses. Its own comparison rounds to six digits, drops units and ignores the order of lists;
    here two formulas are equal only if sympy proves that their difference is zero.
    """
    import sympy
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # It warns that its own limits are off.
    # Parse the whole text or nothing: by default the last number in an unparsable text becomes its value.
    # Change nothing in it either: by default a last letter is dropped as a unit: `\ln 2 t` became `\ln 2`.
    literal = NormalizationConfig(False, False, False, False, "none")
    whole = [LatexExtractionConfig(normalization_config=literal)]

    def formula(text: str) -> sympy.Expr:
        # 0 turns its own time limits (signals and threads) off; the worker process has kernel limits.
        found = parse(f"${text}$", whole, parsing_timeout=0)
        value = found[0] if found else None
        if not isinstance(value, sympy.Expr) or value.has(sympy.Float, sympy.nan, sympy.zoo, sympy.oo):
            raise ValueError(text)
        return value

    def is_zero_at(difference: sympy.Expr, top: int, bottom: int) -> bool:
        letters = sorted(difference.free_symbols, key=str)
        numbers = [(letter, sympy.Rational(top + place, bottom)) for place, letter in enumerate(letters)]
        size = sympy.Abs(sympy.N(difference.subs(numbers), DIGITS))
        return bool(size < sympy.Float(10) ** (-DIGITS // 2))

    def agree(given: str, answer: str) -> bool:
        left, right = formula(given), formula(answer)
        if left == right:
            return True
        difference = left - right
        if not all(is_zero_at(difference, *sample) for sample in SAMPLES):
            return False
        return sympy.simplify(difference) == 0 or difference.equals(0) is True

    return agree
