"""Exact arithmetic: hand-computed values, agreement with floats, and its bounds."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivot.rewards.verifier.exact import Exact, OutOfBounds, Unreadable
from pivot.rewards.verifier.expressions import evaluate


def as_float(value: Exact) -> float:
    """The naive value, letters excluded."""
    return sum(
        float(coefficient) * math.sqrt(radicand) * math.prod(math.pi**power for _, power in powers)
        for (radicand, powers), coefficient in value.terms
    )


def number(value: int | Fraction) -> Exact:
    return Exact.rational(value)


def test_normal_forms_by_hand() -> None:
    assert evaluate("√12") == evaluate("2√3")
    assert evaluate("√(1/2)") == evaluate("√2/2")
    assert evaluate("(√2+√3)^2") == evaluate("5+2√6")
    assert evaluate("(x+1)(x-1)") == evaluate("x^2-1")
    assert evaluate("22/5π") == evaluate("22π/5")
    assert evaluate("-2^2") == number(-4)
    assert evaluate("2^-3") == number(Fraction(1, 8))
    assert evaluate("2^3^2") == number(512)
    assert evaluate("8^(1/3)") == number(2)
    assert evaluate("√[3]27") == number(3)
    assert evaluate(r"\frac{\frac12}3") == number(Fraction(1, 6))
    assert evaluate("7 3/4") == number(Fraction(31, 4))
    assert evaluate("5--3") == number(8)


@pytest.mark.parametrize(
    "text", ["", "1 2", "(5", "5)", "3^", "*5", "√", "√-1", "1/0", "ab", "5+?", r"\frac{1}", "{5)"]
)
def test_malformed_text_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        evaluate(text)


@pytest.mark.parametrize(
    "text", ["9^9^9", "10^1000", "21!", "(a+b+c+d)^60", "1" * 61, "(" * 300, "1+" * 100 + "1", "x" * 401]
)
def test_bounds_are_enforced_before_the_work_is_done(text: str) -> None:
    with pytest.raises(OutOfBounds):
        evaluate(text)


leaves = st.one_of(
    st.integers(0, 40).map(str),
    st.integers(2, 30).map(lambda n: f"√{n}"),
    st.just("π"),
    st.tuples(st.integers(0, 9), st.integers(1, 9)).map(lambda ab: f"\\frac{{{ab[0]}}}{{{ab[1]}}}"),
)
expressions = st.recursive(
    leaves,
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]}){t[1]}({t[2]})"),
    max_leaves=6,
)


def naive(text: str) -> float:
    """Python's own arithmetic on text that this test generated."""
    text = text.replace("√", "1*math.sqrt ").replace("π", "math.pi").replace("}{", ")/(")
    text = text.replace("\\frac{", "(1.0*(").replace("}", "))")
    pieces = []
    for piece in text.split("math.sqrt "):
        digits = len(piece) - len(piece.lstrip("0123456789"))
        pieces.append(f"({piece[:digits]}){piece[digits:]}" if pieces else piece)
    return float(eval("math.sqrt".join(pieces), {"math": math}))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(expressions)
def test_values_agree_with_floats(text: str) -> None:
    try:
        value = evaluate(text)
    except OutOfBounds:
        return
    assert as_float(value) == pytest.approx(naive(text), rel=1e-9, abs=1e-6)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 10**7), st.integers(1, 10**4))
def test_roots_are_exact_and_square_free(top: int, bottom: int) -> None:
    root = number(Fraction(top, bottom)).root(2)
    assert root * root == number(Fraction(top, bottom))
    for (radicand, _), _ in root.terms:
        assert all(radicand % (divisor * divisor) for divisor in range(2, math.isqrt(radicand) + 1))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(expressions, expressions)
def test_quotients_undo_products(a: str, b: str) -> None:
    try:
        left, right = evaluate(a), evaluate(b)
        product = left * right
        quotient = product / right
    except (OutOfBounds, Unreadable):
        return  # beyond the bounds, or a divisor with more than two terms
    assert quotient == left
