"""The library's side: whether two formulas are exactly equal. Imported only in the library's own process.

math-verify reads the LaTeX; the comparison is ours, for its own rounds to six digits, drops units and takes
lists in any order. Two formulas are equal when sympy proves that their difference is zero.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

DIGITS = 40
"""Of the numerical test that sorts out what is different before anything is simplified."""
SAMPLES = ((5, 7), (11, 13), (3, 17))
"""Letters are replaced by fractions near these for the numerical test."""


def load() -> Callable[[str, str], bool]:
    """Import the library; what it gives says whether two formulas in LaTeX are equal."""
    import sympy
    from math_verify import LatexExtractionConfig, parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # It warns that its own limits are off.
    # The whole text or nothing: by default the last number in a text that cannot be parsed would be its value.
    whole = [LatexExtractionConfig()]

    def formula(text: str) -> sympy.Expr:
        # 0 turns its own limits (signals and threads) off: the process has better ones.
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
