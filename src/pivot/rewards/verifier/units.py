"""Units and names: split `25π cm^2` into `25π` and (("cm", 2),), and normalise the left side of `m∠ABC = 50`.

Units are products of powers and are never converted: 5 m and 500 cm are different answers, and so are 5 cm and
5 cm^2. Only known units and a list of commonly counted things are units; any other word makes the text unreadable.
"""

from __future__ import annotations

import re
from typing import NamedTuple

Unit = tuple[tuple[str, int], ...]
"""((base, power), ...), sorted; empty without a unit."""
PERCENT: Unit = (("%", 1),)

_SPELLINGS = {
    "°": "degree degrees deg degs 度",
    "rad": "radian radians",
    "mm": "millimeter millimeters millimetre millimetres 毫米",
    "cm": "centimeter centimeters centimetre centimetres cms 厘米",
    "dm": "decimeter decimeters decimetre decimetres 分米",
    "m": "meter meters metre metres 米",
    "km": "kilometer kilometers kilometre kilometres kms 千米 公里",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard yards yds",
    "mi": "mile miles",
    "nmi": "海里",
    "": "unit units 个",
    "mg": "milligram milligrams",
    "g": "gram grams 克",
    "kg": "kilogram kilograms kgs 千克",
    "ton": "tons tonne tonnes 吨",
    "lb": "lbs pound pounds",
    "oz": "ounce ounces",
    "mL": "ml milliliter milliliters millilitre millilitres 毫升",
    "L": "l liter liters litre litres 升",
    "gal": "gallon gallons",
    "s": "second seconds sec secs 秒",
    "min": "minute minutes mins 分钟",
    "h": "hour hours hr hrs 小时",
    "day": "days 天",
    "week": "weeks",
    "month": "months",
    "year": "years yr yrs 岁 年",
    "$": "＄ dollar dollars usd",
    "€": "euro euros eur",
    "£": "gbp",
    "¥": "yuan rmb 元",
    "₹": "rupee rupees rs",
    "cent": "cents ¢",
    "mol": "mole moles",
    "N": "newton newtons",
    "J": "joule joules",
    "W": "watt watts",
    "V": "volt volts",
    "A": "amp amps ampere amperes",
    "C": "coulomb coulombs",
    "Ω": "ohm ohms",
    "K": "kelvin kelvins",
    "Hz": "hertz",
    "Pa": "pascal pascals",
    "eV": "",
    "acre": "acres",
}
_THINGS = (
    "angle apple bag ball banana bead bird block book bottle box boy brick bus cake candy car card cat chair "
    "child choice circle class coin cookie cow cube cup cupcake customer desk diagonal diamond digit dog dot "
    "edge egg element employee face family fish flower friend game girl glass group guest house item kid "
    "kitten leg lemon letter line loop marble member monkey mug object option orange outcome page "
    "parallelogram part path pattern peach pear pen pencil pentagon hexagon octagon piece plane plant plate "
    "player point quadrilateral question rectangle rose row room segment shape shirt shoe shop side solution "
    "sphere square star step sticker stone store student subset symbol table teacher team term test ticket "
    "tile toy train tree triangle turn vertex video visitor way word worker"
)
_COUNTED = _THINGS.split()
"""Things in the singular. Words that change the number, such as `dozen` or `pair`, must not be listed here."""
_IRREGULAR = {"people": "person", "persons": "person", "person": "person", "children": "child", "men": "man",
              "women": "woman", "vertices": "vertex", "boxes": "box", "axes": "axis", "axis": "axis",
              "dishes": "dish", "classes": "class", "glasses": "glass", "buses": "bus", "families": "family",
              "candies": "candy", "peaches": "peach", "matches": "match"}  # fmt: skip
_PREFIXED = {
    f"{prefix}{base}"
    for prefixes, bases in (
        ("kMGmμnp", "g s A N J W V F C Ω Hz Pa eV mol"),
        ("cd", "g L"),
        ("kμn", "m L"),
        ("m", "L"),
    )
    for prefix in prefixes
    for base in bases.split()
}
_SYMBOLS = {
    **{unit: unit for unit in (*_SPELLINGS, *_PREFIXED) if unit},
    "l": "L",
    "ml": "mL",
    "°C": "°C",
    "°F": "°F",
    "°T": "°T",
    "＄": "$",
}
_NAMES = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings.split()}
_NAMES |= {thing: thing for thing in _COUNTED} | {f"{thing}s": thing for thing in _COUNTED} | _IRREGULAR
_NAMES |= {
    unit.lower(): unit
    for unit in ("cm", "mm", "km", "kg", "mph", "kph", "Hz", "Pa", "kPa", "eV", "rad", "min")
}
_COMPOUND = {"mph": (("h", -1), ("mi", 1)), "kph": (("h", -1), ("km", 1))}
_POWER_WORDS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "平方": 2, "立方": 3, "squared": 2, "cubed": 3}

_PHRASES = {
    "nautical miles": "海里",
    "nautical mile": "海里",
    "degrees Celsius": "°C",
    "degrees Fahrenheit": "°F",
}

_TOKEN = r"(?:°[CFT]?|[＄€£¥₹¢]|[^\W\d_π]+\.?)(?:\^\{?-?[0-9]\}?)?"
_TAIL = re.compile(
    rf"(?:(?<=[0-9)}}π.])|(?<=[0-9)}}π.] )|(?<=°))({_TOKEN}(?:(?: ?[/*] ?| |-){_TOKEN}){{0,5}})$"
)
_PIECE = re.compile(r"(°[CFT]?|[＄€£¥₹¢]|[^\W\d_]+)\.?(?:\^\{?(-?[0-9])\}?)?|([/*])")
_CHINESE_POWER = re.compile("^(平方|立方)(?=.)")
_CURRENCY = re.compile(r"^(-?) ?([＄€£¥₹]) ?(?=[-0-9.(])")
_SUM = re.compile(r"(?<=[^(*/^])[+-]")
"""After a sum, as in `2 + 3 m`, a single letter is a variable."""
_TAIL_CHARS = 60


class Measured(NamedTuple):
    """A text without its unit; `unit` is empty if there was none."""

    text: str
    unit: Unit
    tied: bool = False
    """The unit is written like a variable (`5m`) and counts only if the other side has a unit."""


def split_unit(text: str) -> Measured:
    """Remove a percent sign, a currency or a known unit; returns the whole text if none is recognised."""
    if text.endswith("%"):
        return Measured(text[:-1].rstrip(), PERCENT)
    currency = _CURRENCY.match(text)
    if currency:
        return Measured(currency.group(1) + text[currency.end() :], ((_SYMBOLS[currency.group(2)], 1),))
    found = _TAIL.search(text, max(0, len(text) - _TAIL_CHARS))
    if found is None:
        return Measured(text, ())
    number, tail = text[: found.start()].rstrip(), found.group(1)
    if tail.lower() in ("percent", "per cent"):
        return Measured(number, PERCENT)
    unit = _parse(tail)
    if unit is None:
        return Measured(text, ())
    first = re.match(r"[^\W\d_]*", tail)
    if first is not None and (len(first.group()) == 1 or first.group() == "in") and tail.isascii():
        if _SUM.search(number):
            return Measured(text, ())
        return Measured(number, unit, tied=text[found.start() - 1] != " ")
    return Measured(number, unit)


def units_agree(given: Unit, truth: Unit) -> bool:
    """Whether two units are equal; one may be missing, and `°` matches any kind of degree."""
    if not given or not truth or given == truth:
        return True
    pair = {given, truth}
    return (("°", 1),) in pair and not pair.isdisjoint({(("°C", 1),), (("°F", 1),), (("°T", 1),)})


def _parse(tail: str) -> Unit | None:
    """Parse `kg m/s^2`, `square feet`, `miles per hour` or `cm squared`; None if a word is unknown."""
    total: dict[str, int] = {}
    sign, pending, last = 1, 1, ""
    for spelling, short in _PHRASES.items():
        tail = tail.replace(spelling, short)
    for word, power, mark in _PIECE.findall(_CHINESE_POWER.sub(r"\1 ", tail)):
        if mark or word == "per":
            sign = -1 if mark != "*" else sign
            continue
        if word.lower() in _POWER_WORDS and not power:
            number = _POWER_WORDS[word.lower()]
            if last and word.lower() in ("squared", "cubed"):
                total[last] *= number
            else:
                pending = number
            continue
        base = _SYMBOLS.get(word, _NAMES.get(word.lower()))
        if base is None:
            return None
        for part, exponent in _COMPOUND.get(base, ((base, 1),)):
            total[part] = total.get(part, 0) + sign * exponent * pending * int(power or 1)
        last, pending = base, 1
    if not total or pending != 1 or tail.endswith("per"):
        return None
    total.pop("", None)
    return tuple(sorted((base, power) for base, power in total.items() if power))


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
    """A name in normal form; empty if it carries no information (`Answer = 5`), None if it is not a name."""
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
    """Whether two names are equal; one may be missing, `∠B` matches `∠ABC`, and `y` matches `f(x)`."""
    if not given or not truth or given == truth:
        return True
    short, long = sorted((given, truth), key=len)
    if (short, long) == ("y", "f(x)"):
        return True
    return len(short) == 2 and len(long) == 4 and short[0] == long[0] == "∠" and long[2] == short[1]


def _is_word(word: str) -> bool:
    return word.lower() in _WORDS or re.fullmatch("[∠△]?[A-Z]{1,4}", word) is not None


def _points(letters: str) -> str:
    """Normal order of point names: AB equals BA, ABC equals CBA; quadrilaterals keep their order."""
    return min(letters, letters[::-1]) if len(letters) <= 3 else letters
