"""Numbers in words: `five`, `twenty-five cm`, `5 hundred thousand`, `3 halves`, `5 squared`.

Each becomes digits and signs, so that a word is never taken for the thing that is counted.
"""

from __future__ import annotations

import re

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ORDINALS = "third fourth fifth sixth seventh eighth ninth tenth"
_SMALL = {word: number for number, word in enumerate(_ONES.split())} | {
    word: 10 * number for number, word in enumerate(_TENS.split(), 2)
}
_SIZES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {"half": 2, "halves": 2, "quarter": 4, "quarters": 4} | {
    f"{word}{plural}": number for number, word in enumerate(_ORDINALS.split(), 3) for plural in ("", "s")
}
_PARTS |= {"hundredth": 100, "hundredths": 100, "thousandth": 1000, "thousandths": 1000}
_AFTER = (
    {size: f"*{number}" for size, number in _SIZES.items()}
    | {f"{size}s": f"*{number}" for size, number in _SIZES.items()}
    | {part: f"/{number}" for part, number in _PARTS.items()}
    | {"dozen": "*12", "dozens": "*12", "squared": "^2", "cubed": "^3"}
)
"""What a word right after a number does to it."""

_FIRST = "|".join((*_SMALL, "half", "minus", "negative", "an?"))
_BEGINS = re.compile(rf"(?:{_FIRST})\b(?!')", re.IGNORECASE)
_NUMBER_WORD = re.compile(r"([A-Za-z]+)(?:[ -]|$)")
_CHANGED = re.compile(
    rf"(?<![A-Za-z0-9.^_])([0-9]+(?:[.,][0-9]+)*)((?: ?-? ?(?:{'|'.join(_AFTER)})\b){{1,4}})", re.IGNORECASE
)
_MAX_WORDS = 8


def digits_for_words(text: str) -> str:
    """The text with a number in words at its beginning, and what words do to digits, written in digits."""
    if not any(map(str.isalpha, text)):
        return text
    if _BEGINS.match(text):
        text = _spelled_at_start(text)
    return _CHANGED.sub(_change, text)


def _change(found: re.Match[str]) -> str:
    number = found.group(1)
    for word in re.findall("[a-z]+", found.group(2).lower()):
        number = f"({number}{_AFTER[word]})"
    return number


def _spelled_at_start(text: str) -> str:
    """`minus twenty-five cm` becomes `-25 cm`; the text itself where its first words are no number."""
    sign, rest = "", text
    signed = re.match(r"(?:minus|negative) ", text, re.IGNORECASE)
    if signed:
        sign, rest = "-", text[signed.end() :]
    words, place = [], 0
    while len(words) < _MAX_WORDS:
        found = _NUMBER_WORD.match(rest, place)
        if found is None or found.group(1).lower() not in _KNOWN:
            break
        words.append(found.group(1).lower())
        place = found.end()
    if signed and not words and rest[:1].isdigit():
        return sign + rest
    number = _value(words)
    return text if number is None else f"{sign}{number} {rest[place:]}".strip()


_KNOWN = frozenset((*_SMALL, *_SIZES, *_PARTS, "a", "an", "and"))


def _value(words: list[str]) -> str | None:
    """`two thirds`, `half`, `one hundred and twenty`: in digits, or None where that is not how one counts."""
    if words in (["half"], ["a", "half"]):
        return "1/2"
    if len(words) == 2 and words[1] in _PARTS:
        top = 1 if words[0] == "a" else _SMALL.get(words[0])
        return None if top is None else f"{top}/{_PARTS[words[1]]}"
    total, group, last = 0, None, 1000
    for place, word in enumerate(words):
        if word in _SMALL:
            if _SMALL[word] >= last or (last == 10 and _SMALL[word] == 0):
                return None
            group, last = (group or 0) + _SMALL[word], 10 if _SMALL[word] >= 20 else 0
        elif word == "hundred" and group is not None and group < 100:
            group, last = group * 100, 100
        elif word in _SIZES and group is not None and word != "hundred":
            total, group, last = total + group * _SIZES[word], None, 1000
        elif not (word == "and" and last == 100 and place < len(words) - 1):
            return None
    return None if not words else str(total + (group or 0))
