"""Take the unit off the end of a unified text: `25π cm^2` is `25π` with the unit `cm`."""

from __future__ import annotations

import re
from typing import NamedTuple

_SPELLINGS = {
    "°": "degree degrees deg °c °f °t",
    "rad": "radian radians rad",
    "mm": "millimeter millimeters millimetre millimetres 毫米",
    "cm": "centimeter centimeters centimetre centimetres cms 厘米",
    "m": "meter meters metre metres 米",
    "km": "kilometer kilometers kilometre kilometres kms 千米 公里",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard yards yds",
    "mi": "mile miles",
    "nmi": "海里",
    "unit": "units",
    "mg": "milligram milligrams",
    "g": "gram grams 克",
    "kg": "kilogram kilograms kgs 千克",
    "lb": "lbs pound pounds",
    "oz": "ounce ounces",
    "ml": "milliliter milliliters millilitre millilitres 毫升",
    "l": "liter liters litre litres 升",
    "s": "second seconds sec secs 秒",
    "min": "minute minutes mins 分钟",
    "h": "hour hours hr hrs 小时",
    "day": "days 天",
    "week": "weeks",
    "month": "months",
    "year": "years yr yrs 岁 年",
    "dollar": "dollars usd",
    "yuan": "rmb 元",
    "cent": "cents",
    "mph": "",
    "kph": "",
    "hz": "",
    "pa": "",
    "kpa": "",
    "ev": "",
    "mol": "mole moles",
    "n": "newton newtons",
    "j": "joule joules",
    "w": "watt watts",
    "v": "volt volts",
    "k": "kelvin",
}
_UNITS = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in (unit, *spellings.split())}
_ONE_LETTER = frozenset("mgshLNJWVK")
"""Letters that are read as units, in this case and after a blank (`m` also without); others are variables."""
_SIZES = {"hundred": "10^2", "thousand": "10^3", "million": "10^6", "billion": "10^9", "trillion": "10^12"}
_DROPPED = frozenset(("square", "sq", "cubic", "cu", "per", "of", "平方", "立方"))
_NO_NOUN = re.compile(
    "and|not|nor|but|none|all|the|more|less|than|over|about|plus|minus|times|divided|equals|between|through|mod|"
    "(?:arc)?(?:sin|cos|tan|cot|sec|csc)|log|exp|lim|max|min|infinity|approximately"
)
"""Words that change what the number before them means, so they are no counted things."""

_TAIL = re.compile(
    r"(?:(?<=[0-9)}π.%])|(?<=[0-9)}π.%] )|(?<=°))"
    r"((?:°[CFT]?|[^\W\d_π]+\.?)(?:(?: | ?/ ?|-)(?:°[CFT]?|[^\W\d_π]+\.?)){0,3})(?:\^\{?-?[0-9]\}?)?$"
)
_WORD = re.compile(r"°[CFT]?|[^\W\d_]+")


class Measured(NamedTuple):
    """A text without its unit; `unit` is empty where there was none."""

    text: str
    unit: str


def split_unit(text: str) -> Measured:
    """Cut a known unit, or one or two nouns of at least three letters (`12 apples`), off the end.

    Powers of units and `square`/`cubic` are dropped: `25 cm` and `25 cm^2` agree, as in mathruler. A single
    letter counts as a unit only where it is one (`5 m`). `3 million` becomes `3*10^6`.
    """
    if text.endswith("%"):
        return Measured(text[:-1].rstrip(), "%")
    found = _TAIL.search(text, max(0, len(text) - 60))
    if found is None:
        return Measured(text, "")
    words = _WORD.findall(found.group(1))
    blank = text[found.start() - 1] == " "
    if len(words[0]) == 1 and words[0].isascii() and words[0] not in (_ONE_LETTER if blank else "m"):
        return Measured(text, "")
    words = [word.lower() for word in words if word.lower() not in _DROPPED]
    number = text[: found.start()].rstrip()
    if words and words[0] in _SIZES:
        number, words = f"({number})*{_SIZES[words[0]]}", words[1:]
    if words == ["percent"]:
        return Measured(number, "%")
    names = [_UNITS.get(word) or (_noun(word) if blank else None) for word in words]
    if any(name is None for name in names):
        return Measured(text, "")
    unit = " ".join(name for name in names if name)
    return Measured(number, "nmi" if unit == "nautical mi" else unit)


def _noun(word: str) -> str | None:
    """A counted thing without its plural, or None."""
    if len(word) < 3 or not (word.isascii() and word.isalpha()) or _NO_NOUN.fullmatch(word):
        return None
    return word.removesuffix("s")
