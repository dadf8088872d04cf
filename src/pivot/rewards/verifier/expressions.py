"""Evaluate a unified text exactly: a bounded tokenizer and a shunting-yard parser without recursion."""

from __future__ import annotations

import re
from fractions import Fraction

from .exact import Exact, OutOfBounds, Unreadable

MAX_CHARS = 400
MAX_TOKENS = 160
MAX_DIGITS = 60

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2}(?![0-9.]))?)"
    r"|(?P<letter>[A-Za-zα-ω](?![A-Za-z]))|(?P<root>√(?:\[[2-9]\])?)|(?P<frac>\\frac)|(?P<sign>[-+*/^!(){}]))"
)
_SHORT_FRACTION = re.compile(r"\\frac\s*([0-9a-zπ])\s*(?=[0-9a-zπ{])")
_SHORT_BOTTOM = re.compile(r"(\\frac\{[^{}]*\})\s*([0-9a-zπ])")
# A whole number before a proper fraction is a mixed number, as in 7\frac{3}{4} and 7 3/4, unless it is the
# operand of a preceding operator.
_MIXED = re.compile(
    r"(?<![0-9.^/*√)}A-Za-zπ])([0-9]{1,9})"
    r"(?:\s*\\frac\{([0-9]{1,9})\}\{([0-9]{1,9})\}|\s([0-9]{1,9})/([0-9]{1,9})(?!/))(?![0-9.])"
)
_THOUSANDS = re.compile(
    r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9,])"
    r"|(?<![0-9.,] )(?<![0-9.,])[1-9][0-9]{0,2}(?: [0-9]{3})+(?! ?[0-9/])"
)
_NUMERAL = r"[-+]?(?:[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?|\.[0-9]+)"
_AMBIGUOUS = re.compile(
    rf"{_NUMERAL}(?: ?- ?{_NUMERAL})+|{_NUMERAL}(?: ?\* ?{_NUMERAL})+|{_NUMERAL}(?: ?/ ?{_NUMERAL}){{2,}}"
)
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "neg": 3, "^": 4}
_OPENING, _CLOSING = {"(": ")", "{": "}"}, (")", "}")


def evaluate(text: str) -> Exact:
    """The value of a unified text; raises Unreadable or OutOfBounds."""
    if len(text) > MAX_CHARS:
        raise OutOfBounds
    text = _THOUSANDS.sub(lambda number: number.group().replace(",", "").replace(" ", ""), text)
    if "\\frac" in text:
        text = _SHORT_BOTTOM.sub(r"\1{\2}", _SHORT_FRACTION.sub(r"\\frac{\1}", text))
    return _shunt(_with_products(_spell_out_fractions(_tokens(_MIXED.sub(_mixed_number, text)))))


def is_ambiguous(text: str) -> bool:
    """Whether a text such as `10-15`, `3*4` or `1/5/2020` is a range, a size or a date, not an expression."""
    return _AMBIGUOUS.fullmatch(text) is not None


def _mixed_number(found: re.Match[str]) -> str:
    whole, top, bottom = found.group(1), found.group(2) or found.group(4), found.group(3) or found.group(5)
    return f"({whole}+{top}/{bottom})" if int(top) < int(bottom) else found.group()


def _tokens(text: str) -> list[str | Exact]:
    """Tokens: operands as values, everything else as its symbol."""
    tokens: list[str | Exact] = []
    place, end = 0, len(text.rstrip())
    while place < end:
        found = _TOKEN.match(text, place)
        if found is None:
            raise Unreadable
        kind, word = found.lastgroup, found.group().strip()
        if kind == "number":
            tokens.append(_number(word))
        elif kind == "letter":
            tokens.append(Exact.letter(word))
        else:
            tokens.append(word)
        place = found.end()
        if len(tokens) > MAX_TOKENS:
            raise OutOfBounds
    return tokens


def _number(word: str) -> Exact:
    if len(word) > MAX_DIGITS:
        raise OutOfBounds
    return Exact.rational(Fraction(word.removesuffix(".")))


def _spell_out_fractions(tokens: list[str | Exact]) -> list[str | Exact]:
    r"""Rewrite `\frac A B` as `( A / B )`, where A and B are groups or single tokens."""
    if "\\frac" not in tokens:
        return tokens
    partner = _partners(tokens)
    after: dict[int, list[str]] = {}
    for place, token in enumerate(tokens):
        if token == "\\frac":
            end_of_top = partner.get(place + 1, place + 1)
            end_of_bottom = partner.get(end_of_top + 1, end_of_top + 1)
            if end_of_bottom >= len(tokens):
                raise Unreadable
            after.setdefault(end_of_top, []).append("/")
            after.setdefault(end_of_bottom, []).append(")")
    spelled: list[str | Exact] = []
    for place, token in enumerate(tokens):
        spelled.append("(" if token == "\\frac" else token)
        spelled.extend(after.get(place, ()))
    return spelled


def _partners(tokens: list[str | Exact]) -> dict[int, int]:
    """Index of each opening bracket -> index of its closing bracket."""
    partner, opened = {}, []
    for place, token in enumerate(tokens):
        if token in ("(", "{"):
            opened.append(place)
        elif token in _CLOSING:
            if not opened:
                raise Unreadable
            partner[opened.pop()] = place
    return partner


def _with_products(tokens: list[str | Exact]) -> list[str | Exact]:
    """Insert implied multiplication signs and distinguish unary from binary minus."""
    written: list[str | Exact] = []
    operand_before = False
    for place, token in enumerate(tokens):
        begins = isinstance(token, Exact) or token in _OPENING or str(token).startswith("√")
        if operand_before and begins:
            if _is_number(token) or _is_single(tokens, place):
                raise Unreadable  # `1 2`, `x 2`, `{1}{2}` and `(1) 5 (2) 6` are not products.
            written.append("*")
        if token in ("-", "+") and not operand_before:
            if tokens[place + 1 : place + 2] in (["-"], ["+"]):
                raise Unreadable  # `+-5` may stand for ±5.
            if token == "-":
                written.append("neg")
            continue
        written.append(token)
        if token == "!" and written[-2:-1] == ["!"]:
            raise Unreadable  # A double factorial is not a factorial of a factorial.
        operand_before = isinstance(token, Exact) or token in _CLOSING or token == "!"
    return written


def _is_single(tokens: list[str | Exact], place: int) -> bool:
    """Whether a bracket with a single number in it starts here."""
    inside = tokens[place + 1 : place + 4]
    if inside[:1] == ["-"]:
        inside = inside[1:]
    return tokens[place] in _OPENING and len(inside) > 1 and _is_number(inside[0]) and inside[1] in _CLOSING


def _is_number(token: str | Exact) -> bool:
    return isinstance(token, Exact) and token.as_rational is not None


def _shunt(tokens: list[str | Exact]) -> Exact:
    """Shunting-yard on explicit stacks; `*` and `/` are left-associative: 22/5π is (22/5)π."""
    values: list[Exact] = []
    waiting: list[str] = []
    for token in tokens:
        if isinstance(token, Exact):
            values.append(token)
            _apply_roots(values, waiting)
        elif token in _OPENING or token == "neg" or token.startswith("√"):
            waiting.append(token)
        elif token in _CLOSING:
            while waiting and waiting[-1] not in _OPENING:
                _apply(values, waiting.pop())
            if not waiting or _OPENING[waiting.pop()] != token:
                raise Unreadable
            _apply_roots(values, waiting)
        elif token == "!":
            values.append(_pop(values).factorial())
        else:
            while waiting and _binds_first(waiting[-1], token):
                _apply(values, waiting.pop())
            waiting.append(token)
    while waiting:
        _apply(values, waiting.pop())
    if len(values) != 1:
        raise Unreadable
    return values[0]


def _apply_roots(values: list[Exact], waiting: list[str]) -> None:
    """Apply pending roots to the operand just read: √3/2 is (√3)/2."""
    while waiting and waiting[-1].startswith("√"):
        sign = waiting.pop()
        values.append(_pop(values).root(2 if sign == "√" else int(sign[2])))


def _binds_first(before: str, now: str) -> bool:
    if before not in _PRECEDENCE:  # An open bracket, or a root that waits for its operand.
        return False
    return _PRECEDENCE[before] > _PRECEDENCE[now] or (_PRECEDENCE[before] == _PRECEDENCE[now] and now != "^")


def _apply(values: list[Exact], operator: str) -> None:
    if operator in _OPENING or operator.startswith("√"):
        raise Unreadable
    right = _pop(values)
    if operator == "neg":
        values.append(-right)
        return
    left = _pop(values)
    if operator == "+":
        values.append(left + right)
    elif operator == "-":
        values.append(left - right)
    elif operator == "*":
        values.append(left * right)
    elif operator == "/":
        values.append(left / right)
    else:
        values.append(left.power(right))


def _pop(values: list[Exact]) -> Exact:
    if not values:
        raise Unreadable
    return values.pop()
