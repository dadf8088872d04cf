"""Exact arithmetic with hard bounds: sums of rational * sqrt(integer) * powers of pi and of letters.

    v = sum_i  q_i * sqrt(n_i) * prod_s s^(k_is),     q_i rational, n_i square-free, s a letter or pi

Square roots of distinct square-free integers are linearly independent over the rationals, and pi and the
letters are treated as transcendental, so two values are equal if and only if their terms are. There are no floats
and no tolerance: 5*sqrt(3) is not 8.66, as in the paper's exact-match evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, isqrt, pi, sqrt

MAX_TERMS = 24
MAX_BITS = 512
"""Size of any numerator or denominator."""
MAX_POWER = 128
MAX_FACTORIAL = 20
_TRIAL_DIVISORS = (2, *range(3, 10_000, 2))
_TRIAL_LIMIT = 10**12
"""Below this, the cofactor after trial division to 10^4 is a prime, the square of one, or a product of two."""

Monomial = tuple[int, tuple[tuple[str, int], ...]]
"""(square-free radicand, ((letter, power), ...) sorted by letter)."""
_ONE: Monomial = (1, ())


class Unreadable(ValueError):
    """Not an expression of this arithmetic; the library may be able to parse it."""


class OutOfBounds(ValueError):
    """An expression that exceeds the bounds; it is not passed to the library either."""


@dataclass(frozen=True, slots=True)
class Exact:
    """An immutable, hashable value in normal form: no zero coefficients, no repeated monomials."""

    terms: frozenset[tuple[Monomial, Fraction]]

    @staticmethod
    def rational(number: Fraction | int) -> Exact:
        return Exact.of([(_ONE, Fraction(number))])

    @staticmethod
    def letter(name: str) -> Exact:
        return Exact(frozenset({((1, ((name, 1),)), Fraction(1))}))

    @staticmethod
    def of(terms: Iterable[tuple[Monomial, Fraction]]) -> Exact:
        """Collect like terms and check the bounds."""
        total: dict[Monomial, Fraction] = {}
        for monomial, coefficient in terms:
            total[monomial] = total.get(monomial, Fraction(0)) + coefficient
        kept = frozenset(item for item in total.items() if item[1])
        if len(kept) > MAX_TERMS or any(_bits(coefficient) > MAX_BITS for _, coefficient in kept):
            raise OutOfBounds
        return Exact(kept)

    @property
    def as_rational(self) -> Fraction | None:
        """The rational number, or None if the value contains a root, pi or a letter."""
        if not self.terms:
            return Fraction(0)
        (monomial, coefficient), *rest = self.terms
        return coefficient if not rest and monomial == _ONE else None

    @property
    def letters(self) -> frozenset[str]:
        return frozenset(name for (_, powers), _ in self.terms for name, _ in powers) - {"π"}

    def approximate(self) -> float:
        """A float for ordering values; raises Unreadable if it contains letters or overflows."""
        if self.letters:
            raise Unreadable
        try:
            return sum(
                float(coefficient) * sqrt(radicand) * pi ** sum(power for _, power in powers)
                for (radicand, powers), coefficient in self.terms
            )
        except OverflowError as error:
            raise Unreadable from error

    def __add__(self, other: Exact) -> Exact:
        return Exact.of([*self.terms, *other.terms])

    def __neg__(self) -> Exact:
        return Exact(frozenset((monomial, -coefficient) for monomial, coefficient in self.terms))

    def __sub__(self, other: Exact) -> Exact:
        return self + -other

    def __mul__(self, other: Exact) -> Exact:
        return Exact.of(_product(a, b) for a in self.terms for b in other.terms)

    def __truediv__(self, other: Exact) -> Exact:
        if not other.terms:
            raise Unreadable
        if len(other.terms) == 2:  # (a + b)(a - b) is one term if both are roots of rationals.
            first, second = (Exact(frozenset({term})) for term in other.terms)
            conjugate = first - second
            return (self * conjugate) / _single(other * conjugate)
        return self * _inverse(_single(other))

    def power(self, exponent: Exact) -> Exact:
        number = exponent.as_rational
        if number is None or number.denominator > 9:
            raise Unreadable
        if abs(number) > MAX_POWER:
            raise OutOfBounds
        base = self if number.denominator == 1 else self.root(number.denominator)
        result, square, count = Exact.rational(1), base, abs(number.numerator)
        while count:
            if count & 1:
                result = result * square
            count >>= 1
            if count:
                square = square * square
        return Exact.rational(1) / result if number < 0 else result

    def root(self, degree: int) -> Exact:
        """The real root of a rational number; for degrees above 2 the root must be rational."""
        number = self.as_rational
        if number is None or (number < 0 and degree % 2 == 0):
            raise Unreadable
        if degree == 2:
            outside, radicand = _square_free(number.numerator * number.denominator)
            return Exact.of([((radicand, ()), Fraction(outside, number.denominator))])
        sign = -1 if number < 0 else 1
        top, bottom = _integer_root(abs(number.numerator), degree), _integer_root(number.denominator, degree)
        return Exact.rational(Fraction(sign * top, bottom))

    def factorial(self) -> Exact:
        number = self.as_rational
        if number is None or number.denominator != 1 or number < 0:
            raise Unreadable
        if number > MAX_FACTORIAL:
            raise OutOfBounds
        result = 1
        for factor in range(2, int(number) + 1):
            result *= factor
        return Exact.rational(result)

    def direction(self, *, signed: bool) -> Exact:
        """The value divided by its leading coefficient (or by its absolute value): a normal form for equations."""
        if not self.terms:
            raise Unreadable
        _, leading = max(self.terms)
        return self * Exact.rational(1 / (leading if signed else abs(leading)))


def _bits(number: Fraction) -> int:
    return max(number.numerator.bit_length(), number.denominator.bit_length())


def _single(value: Exact) -> Exact:
    if len(value.terms) != 1:
        raise Unreadable
    return value


def _inverse(value: Exact) -> Exact:
    """1/(q sqrt(n) m) = sqrt(n)/(q n) * 1/m, for a single term."""
    (((radicand, powers), coefficient),) = value.terms
    inverse = tuple((name, -power) for name, power in powers)
    return Exact.of([((radicand, inverse), 1 / (coefficient * radicand))])


def _product(a: tuple[Monomial, Fraction], b: tuple[Monomial, Fraction]) -> tuple[Monomial, Fraction]:
    ((radicand_a, powers_a), coefficient_a), ((radicand_b, powers_b), coefficient_b) = a, b
    shared = gcd(radicand_a, radicand_b)
    radicand = (radicand_a // shared) * (radicand_b // shared)
    if radicand.bit_length() > MAX_BITS:
        raise OutOfBounds
    powers = powers_a or powers_b
    if powers_a and powers_b:
        total = dict(powers_a)
        for name, power in powers_b:
            total[name] = total.get(name, 0) + power
        powers = tuple(sorted((name, power) for name, power in total.items() if power))
        if any(abs(power) > MAX_POWER for _, power in powers):
            raise OutOfBounds
    return (radicand, powers), coefficient_a * coefficient_b * shared


def _square_free(number: int) -> tuple[int, int]:
    """(s, r) with number = s^2 * r and r square-free, by bounded trial division."""
    if number == 0:
        return 0, 1
    outside, radicand = 1, 1
    for divisor in _TRIAL_DIVISORS:
        if divisor * divisor > number:
            break
        power = 0
        while number % divisor == 0:
            number //= divisor
            power += 1
        outside *= divisor ** (power // 2)
        radicand *= divisor ** (power % 2)
    whole = isqrt(number)
    if whole * whole == number:
        return outside * whole, radicand
    if number >= _TRIAL_LIMIT:
        raise Unreadable
    return outside, radicand * number


def _integer_root(number: int, degree: int) -> int:
    """The exact integer root, by bisection."""
    low, high = 0, 1 << (number.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= number else (low, middle - 1)
    if low**degree != number:
        raise Unreadable
    return low
