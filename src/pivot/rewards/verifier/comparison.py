"""The meanings a short answer can have, and when a given meaning agrees with the true one.

One principle: parts may be missing (a unit, a name, brackets), but nothing may contradict. `agrees` returns True,
False, or None if only the library can decide.
"""

from __future__ import annotations

from collections.abc import Sequence as AnySequence
from dataclasses import dataclass

from .exact import Exact
from .units import PERCENT, Unit, names_agree, units_agree


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with its unit and its name. `value` is None if only the library can evaluate `source`."""

    value: Exact | None
    source: str
    unit: Unit = ()
    name: str = ""
    tied: bool = False
    """The unit is written like a variable (`5m`) and counts only if the other side has a unit."""

    def agrees(self, truth: Meaning) -> bool | None:
        if isinstance(truth, Ratio):
            return truth.agrees(self)
        if not isinstance(truth, Quantity):
            return False
        if self.value is not None and self.value == truth.value and not self.unit and not truth.unit:
            return not self.name or not truth.name or names_agree(self.name, truth.name)
        if not names_agree(self.name, truth.name) or not units_agree(self.unit, truth.unit):
            return False
        if (self.tied and not truth.unit) or (truth.tied and not self.unit):
            return False
        if self.value is None or truth.value is None:
            return True if self.source == truth.source else None
        if self.value == truth.value:
            return True
        if (self.unit == PERCENT) == (truth.unit == PERCENT):
            return False
        return self._share() == truth._share()

    def _share(self) -> Exact | None:
        if self.unit != PERCENT or self.value is None:
            return self.value
        return self.value / Exact.rational(100)


@dataclass(frozen=True, slots=True)
class Relation:
    """An equation or an inequality: `left - right` up to a factor, with the sign =, < or ≤."""

    sign: str
    side: Exact
    unit: Unit = ()

    def agrees(self, truth: Meaning) -> bool | None:
        return (
            isinstance(truth, Relation)
            and (self.sign, self.side) == (truth.sign, truth.side)
            and units_agree(self.unit, truth.unit)
        )


@dataclass(frozen=True, slots=True)
class Region:
    """A set of real numbers: disjoint intervals (low, low is closed, high, high is closed) in order."""

    intervals: tuple[Interval, ...]
    letter: str = ""

    def agrees(self, truth: Meaning) -> bool | None:
        return (
            isinstance(truth, Region)
            and self.intervals == truth.intervals
            and names_agree(self.letter, truth.letter)
        )


Interval = tuple[Exact | None, bool, Exact | None, bool]
"""None stands for minus or plus infinity."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """`2:3`, as quotients by the last part; in words (`2 to 3`) it does not equal a number."""

    quotients: tuple[Exact, ...]
    in_words: bool = False
    name: str = ""

    def agrees(self, truth: Meaning) -> bool | None:
        if isinstance(truth, Quantity) and not self.in_words:
            return not truth.unit and self.quotients == (truth.value,) and names_agree(self.name, truth.name)
        return (
            isinstance(truth, Ratio)
            and self.quotients == truth.quotients
            and names_agree(self.name, truth.name)
        )


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock time: seconds since midnight as written, and `am`, `pm` or an empty string."""

    seconds: int
    half: str = ""

    def agrees(self, truth: Meaning) -> bool | None:
        """A ground truth of `3:30` accepts `3:30 pm`; one of `3:30 pm` does not accept `3:30`."""
        if not isinstance(truth, Clock):
            return False
        if self.half and not truth.half and truth.seconds < 13 * 3600:
            return (self.seconds - truth.seconds) % (12 * 3600) == 0
        return self.seconds == truth.seconds


@dataclass(frozen=True, slots=True)
class Tagged:
    """Anything compared by plain equality: a date, a set of option letters."""

    kind: str
    content: object

    def agrees(self, truth: Meaning) -> bool | None:
        return self == truth


@dataclass(frozen=True, slots=True)
class Span:
    """Two or more quantities in order: `10-15 cm` and `2 to 3` (kind "range"), `3 x 4` (kind "size")."""

    kind: str
    parts: tuple[Quantity, ...]

    def agrees(self, truth: Meaning) -> bool | None:
        if not isinstance(truth, Span) or self.kind != truth.kind or len(self.parts) != len(truth.parts):
            return False
        return all(a.agrees(b) is True for a, b in zip(self.parts, truth.parts, strict=True))


@dataclass(frozen=True, slots=True)
class Items:
    """A list, point, set or numbered parts; each item is parsed separately."""

    items: tuple[Reading, ...]
    brackets: str = ""
    """`()`, `[]`, `⦃⦄` or an empty string."""
    unordered: bool = False
    name: str = ""
    """The name of a point: `A` in `A(3,-4)`."""

    def agrees(self, truth: Meaning) -> bool | None:
        if not isinstance(truth, Items) or len(self.items) != len(truth.items):
            return False
        if not names_agree(self.name, truth.name) or not self._brackets_agree(truth):
            return False
        if truth.unordered or (self._is_named() and truth._is_named()):
            return _match(self.items, truth.items)
        return all(agree(a, b) is True for a, b in zip(self.items, truth.items, strict=True))

    def _brackets_agree(self, truth: Items) -> bool:
        if self.brackets and truth.brackets:
            return self.brackets == truth.brackets
        # Two numbers in square brackets are more likely an interval than a list.
        return (
            len(self.items) > 2
            or "[]" not in (self.brackets, truth.brackets)
            or self.brackets == truth.brackets
        )

    def _is_named(self) -> bool:
        return all(
            any(isinstance(m, Quantity | Items) and m.name for m in item.meanings) for item in self.items
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """An option's letter and, if given, the option's text."""

    letter: str
    body: Reading | None = None


Meaning = Quantity | Relation | Region | Ratio | Clock | Tagged | Span | Items


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything a text may mean. Two texts agree if they are equal or share a meaning."""

    text: str
    """Without whitespace."""
    meanings: tuple[Meaning, ...] = ()
    choice: Choice | None = None
    words: str = ""
    """The text without case, if it is prose."""
    prefix: str = ""
    """`yes`, `no`, `true` or `false` before an explanation; matches a ground truth of that word alone."""
    readable: bool = True
    """False if the text is malformed or exceeds the bounds of exact arithmetic."""


def agree(given: Reading, truth: Reading) -> bool | None:
    """Whether the given answer is correct; None if only the library can decide."""
    if given.text == truth.text or (given.words and given.words == truth.words):
        return bool(given.text)
    if given.choice or truth.choice:
        return _choices_agree(given, truth)
    if given.prefix and given.prefix == truth.words:
        return True
    return _meanings_agree(given.meanings, truth.meanings)


def _meanings_agree(given: tuple[Meaning, ...], truth: tuple[Meaning, ...]) -> bool | None:
    if given and truth and isinstance(given[0], Clock) and isinstance(truth[0], Clock):
        return given[0].agrees(truth[0])  # As ratios, 3:30 and 1:10 would be equal.
    unknown = False
    for one in given:
        for other in truth:
            verdict = one.agrees(other)
            if verdict:
                return True
            unknown = unknown or verdict is None
    return None if unknown else False


def _choices_agree(given: Reading, truth: Reading) -> bool | None:
    """The letter decides, unless both sides give a text and the texts differ."""
    if given.choice and truth.choice:
        if given.choice.letter != truth.choice.letter:
            return False
        bodies = given.choice.body, truth.choice.body
        return not (bodies[0] and bodies[1]) or agree(bodies[0], bodies[1]) is True
    if given.choice:
        return (
            agree(given.choice.body, truth)
            if given.choice.body
            else _meanings_agree(given.meanings, truth.meanings)
        )
    assert truth.choice is not None
    return (
        agree(given, truth.choice.body)
        if truth.choice.body
        else _meanings_agree(given.meanings, truth.meanings)
    )


def _match(given: AnySequence[Reading], truth: AnySequence[Reading]) -> bool:
    """Whether the items match one to one, in any order; `structures.MAX_ITEMS` bounds both."""
    left = list(truth)
    for item in given:
        found = next((place for place, other in enumerate(left) if agree(item, other) is True), None)
        if found is None:
            return False
        del left[found]
    return not left
