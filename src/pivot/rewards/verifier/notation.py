"""One notation for LaTeX, Unicode and plain text, and digits for number words.

`unify` rewrites `$\\dfrac{1}{2}\\,\\text{cm}$`, `5\\sqrt{3}`, `5√3`, `70^{\\circ}` and `70°` in a small alphabet:
ASCII, the symbols of `_NAMES`, Greek letters, and ⦃⦄ for set braces, so that `{}` only groups. `digits_for_words`
rewrites `twenty-five cm`, `3 halves` and `5 squared`, so that a number word never counts as a noun. Every step is one
linear pass over a text whose length the caller bounds.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import groupby

_SIGNS = {
    "-": "−–—‒﹣",
    "*": "×·⋅∙∗✕",
    "/": "÷∕⁄",
    ":": "∶：",
    "°": "∘º˚",
    "≤": "≦⩽",
    "≥": "≧⩾",
    ",": "、，",
    ";": "；",
    ".": "。",
    "'": "’′",
    '"': "“”″",
    "△": "∆Δ",
    "√[3]": "∛",
    "√[4]": "∜",
    "¥": "￥",
    **dict(zip(("mm^2", "cm^2", "m^2", "km^2", "cm^3", "m^3"), "㎟㎠㎡㎢㎤㎥", strict=True)),
    " or ": "或∨",
    **{f"\\mathbb{{{letter}}}": sign for letter, sign in zip("RZNQC", "ℝℤℕℚℂ", strict=True)},
}
"""Unified form -> the symbols it replaces."""
_FRACTIONS = {"1/2": "½", "1/3": "⅓", "2/3": "⅔", "1/4": "¼", "3/4": "¾", "1/5": "⅕", "2/5": "⅖", "3/5": "⅗",
              "4/5": "⅘", "1/6": "⅙", "5/6": "⅚", "1/7": "⅐", "1/8": "⅛", "3/8": "⅜", "5/8": "⅝", "7/8": "⅞",
              "1/9": "⅑", "1/10": "⅒"}  # fmt: skip
_PLAIN = str.maketrans({sign: plain for plain, signs in (_SIGNS | _FRACTIONS).items() for sign in signs})
_MIXED = re.compile(f"([0-9]) ?(?=[{''.join(_FRACTIONS.values())}])")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
# Invisible operators (U+2062 to U+2064) are kept: `5⁢6` is a product.
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060\u2061\u2065-\u206f\ufe00-\ufe0f\ufeff]")

_WRAPPER = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt|cal|frak)|operatorname\*?|mbox|hbox|boldsymbol|bm|"
    r"overrightarrow|vec|widehat|number|boxed|fbox|ce)\s*\{([^{}]*)\}"
)
# A bar over two points denotes a segment and is dropped; any other bar is kept.
_SEGMENT = re.compile(r"\\(?:overline|bar)\s*\{\s*([A-Z]\s*[A-Z])\s*\}")
_NUMBER_SET = re.compile(r"\\mathbb\s*(?:\{\s*([RZNQC])\s*\}|([RZNQC]))")
_REPEATING = re.compile(
    r"([0-9]{1,20})\.([0-9]{0,20})"
    r"(?:\\(?:overline|bar|dot)\s*(?:\{\s*([0-9]{1,20})\s*\}|([0-9]))(?:([0-9]{0,18})\\dot\s*\{?([0-9])\}?)?)(?![0-9])"
)
_WRAPPER_DEPTH = 3
_COMMAND = re.compile(
    r"\\(angle|triangle|pi|sqrt|cdot|times|circ)(?![a-z])|\\([a-zA-Z]+)\*?|\\(.)", re.DOTALL
)
_GREEK = ("alpha", "beta", "gamma", "delta", "theta", "lambda", "mu", "rho", "sigma", "tau", "omega", "pi")
_NAMES = {
    "": "left right big Big bigg Bigg bigl bigr Bigl Bigr displaystyle textstyle limits rm bf it ! ( ) [ ]",
    "＄": "$",
    "\n": "\\ newline cr",
    " ": "quad qquad space thinspace enspace , ; :",
    "\\frac": "frac dfrac tfrac cfrac",
    "√": "sqrt",
    "*": "cdot times ast",
    "/": "div",
    "±": "pm",
    " or ": "lor vee",
    "<": "lt",
    ">": "gt",
    "≤": "le leq leqslant leqq",
    "≥": "ge geq geqslant geqq",
    "≠": "ne neq",
    "≈": "approx thickapprox",
    "°": "circ degree",
    "'": "prime",
    ":": "colon",
    "⦃": "lbrace {",
    "⦄": "rbrace }",
    "∠": "angle",
    "△": "triangle Delta",
    "Ω": "Omega",
    "∅": "emptyset varnothing",
    "|": "mid lvert rvert vert",
    "⟨": "langle",
    "⟩": "rangle",
    "...": "ldots dots cdots",
    "≅": "cong",
    "∼": "sim",
    "∥": "parallel",
    "⊥": "perp",
    "∪": "cup",
    "∩": "cap",
    "∈": "in",
    "∞": "infty",
    "φ": "phi varphi",
    **dict(zip("αβγδθλμρστωπ", _GREEK, strict=True)),
    **dict(zip("%#&_", "%#&_", strict=True)),
}
"""Unified form -> the LaTeX commands it replaces."""
_COMMANDS = {name: plain for plain, names in _NAMES.items() for name in names.split()}
_COMMANDS |= dict.fromkeys((" ", "\n"), " ")

_ROOT_WORD = re.compile(r"(?<![A-Za-z\\])sqrt(?![A-Za-z])")
_INFINITY_WORD = re.compile(r"(?<![A-Za-z\\])infinity(?![A-Za-z])", re.IGNORECASE)
_TIMES_TEN = re.compile(r"(?<=[0-9.]) ?[xX] ?(?=10 ?\^)")
_PI_WORD = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])", re.IGNORECASE)
_AND_A_PART = re.compile(r" and (?:a|one) (half|third|quarter)(?![a-z])", re.IGNORECASE)
_BETWEEN_DIGITS = re.compile(r"(?<=[0-9]) ?~ ?(?=[0-9])")
_SHORT_INDEX = re.compile(r"_ ?\{ ?([A-Za-z0-9]) ?\}")
_NO_DELIMITER = re.compile(r"\\(?:left|right) ?\.")
_MATRIX = re.compile(r"(?<=\\begin\{)[bB]matrix(?=\})|(?<=\\end\{)[bB]matrix(?=\})")
_MINUTES = re.compile(r"(?<![0-9.])([0-9]{1,3})° ?([0-5]?[0-9])'(?: ?([0-5]?[0-9](?:\.[0-9]{1,6})?)\")?")
_EMPTY_SET = re.compile("⦃ ?⦄")
_DEGREE = re.compile(r"\^ ?(?:\{ ?° ?\}|°)|\{ ?° ?\}")
_BLANKS = re.compile(r"[ ~]*\n[ ~\n]*|[ ~]+")
_LOOSE = re.compile(r" ?([\^_√({⦃]) ?| (?=[)}⦄])")
_DIGIT_GAP = re.compile(r" (?![0-9])|(?<![0-9])(?<![0-9],) |(?<=[0-9],) (?![0-9]{3}(?![0-9]))")


def unify(text: str) -> str:
    """The text in unified notation: whitespace collapsed; outer dollars, braces and the final full stop removed."""
    if not text.isascii():
        text = _unify_unicode(text)
    text = _CONTROL.sub(" ", text)
    if "\\" in text:
        text = _unify_latex(text)
    text = text.replace("$", " ").replace("{,}", ",").replace("**", "^")
    text = _PI_WORD.sub("π", _ROOT_WORD.sub("√", _INFINITY_WORD.sub("∞", text)))
    text = _TIMES_TEN.sub("*", _MINUTES.sub(_minutes, _DEGREE.sub("°", text)))
    text = _SHORT_INDEX.sub(r"_\1", _EMPTY_SET.sub("∅", _BETWEEN_DIGITS.sub("-", text)))
    text = _AND_A_PART.sub(lambda found: f" 1/{_PARTS[found.group(1).lower()]}", text)
    text = _BLANKS.sub(lambda blank: "\n" if "\n" in blank.group() else " ", text)
    text = _LOOSE.sub(lambda found: found.group(1) or "", text).strip(" ;\n")
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].rstrip()
    return _strip_outer(text)


def compact(text: str) -> str:
    """A unified text without whitespace, except where digits would become one number (`1 2`, `1, 000`)."""
    return _DIGIT_GAP.sub("", text)


def _unify_unicode(text: str) -> str:
    text = _INVISIBLE.sub("", text)
    text = _MIXED.sub(r"\1 ", text).translate(_PLAIN)
    text = "".join(_spell_out(kind, "".join(run)) for kind, run in groupby(text, _style))
    return "".join(
        str(unicodedata.decimal(sign)) if sign > "\x7f" and sign.isdecimal() else sign for sign in text
    )


def _style(sign: str) -> str:
    """`<super>`, `<sub>`, `<circle>` or another style that Unicode gives a sign; empty for plain ones."""
    return unicodedata.decomposition(sign).partition(" ")[0] if sign > "\x7f" else ""


def _spell_out(style: str, run: str) -> str:
    """The plain signs of a run of one style: `²³` is `^{23}`, `ₙ` is `_{n}`, `⑫` is `(12)`."""
    plain = unicodedata.normalize("NFKC", run).translate(_PLAIN)
    if style in ("<super>", "<sub>") and any(map(str.isalnum, plain)):
        return f"{'^' if style == '<super>' else '_'}{{{plain}}}"
    if style == "<circle>":
        return "".join(f"({unicodedata.normalize('NFKC', sign)})" for sign in run)
    return plain


def _minutes(found: re.Match[str]) -> str:
    """`30°15'` as `(30+15/60)°`."""
    degrees, minutes, seconds = found.groups(default="0")
    return f"({degrees}+{minutes}/60+{seconds}/3600)°"


def _unify_latex(text: str) -> str:
    text = _REPEATING.sub(_repeating_decimal, _NO_DELIMITER.sub(" ", text))
    text = _NUMBER_SET.sub(lambda found: "ℝℤℕℚℂ"["RZNQC".index(found.group(1) or found.group(2))], text)
    text = _MATRIX.sub("pmatrix", _SEGMENT.sub(r" \1 ", text))
    for _ in range(_WRAPPER_DEPTH):
        text, count = _WRAPPER.subn(r" \1 ", text)
        if not count:
            break
    return _COMMAND.sub(_replace_command, text)


def _repeating_decimal(found: re.Match[str]) -> str:
    """The fraction of `0.1\\overline{6}`, (16 - 1)/90; with two dots, the digits between them repeat as well."""
    whole, fixed, group, single, middle, last = found.groups(default="")
    period = group + single + middle + last
    nines = (10 ** len(period) - 1) * 10 ** len(fixed)
    return f"({int(whole + fixed + period) - int(whole + fixed)}/{nines})"


def _replace_command(found: re.Match[str]) -> str:
    name = found.group(1) or found.group(2) or found.group(3)
    return _COMMANDS.get(name, found.group())


def _strip_outer(text: str) -> str:
    """Remove outer braces: `{{5}}` becomes `5`; `{1}{2}` stays."""
    for _ in range(_WRAPPER_DEPTH):
        if not (text.startswith("{") and text.endswith("}")):
            break
        depth = 0
        for place, sign in enumerate(text):
            depth += (sign == "{") - (sign == "}")
            if depth == 0 and place < len(text) - 1:
                return text
        text = text[1:-1].strip()
    return text


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
"""Word after a number -> the operation it stands for."""

_FIRST = "|".join((*_SMALL, "half", "minus", "negative", "an?"))
_BEGINS = re.compile(rf"(?:{_FIRST})\b(?!')", re.IGNORECASE)
_NUMBER_WORD = re.compile(r"([A-Za-z]+)(?:[ -]|$)")
_CHANGED = re.compile(
    rf"(?<![A-Za-z0-9.^_])([0-9]+(?:[.,][0-9]+)*)((?: ?-? ?(?:{'|'.join(_AFTER)})\b){{1,4}})", re.IGNORECASE
)
_MAX_WORDS = 8


def digits_for_words(text: str) -> str:
    """The text with a leading number in words, and words after a number, rewritten in digits and operators."""
    if not any(map(str.isalpha, text)):
        return text
    if _BEGINS.match(text):
        text = _spelled_at_start(text)
    return _CHANGED.sub(_change, text)


def _change(found: re.Match[str]) -> str:
    number = found.group(1)
    for word in re.findall("[a-z]+", found.group(2).lower()):
        if word in _PARTS and (number == "1") == word.endswith("s"):
            return found.group()  # `5 fifth` is not a fraction.
        number = f"({number}{_AFTER[word]})"
    return number


def _spelled_at_start(text: str) -> str:
    """Rewrite `minus twenty-five cm` as `-25 cm`; a text that starts with no number is returned unchanged."""
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
    """`two thirds`, `half` or `one hundred and twenty` in digits; None if the words form no number."""
    if words in (["half"], ["a", "half"]):
        return "1/2"
    if len(words) == 2 and words[1] in _PARTS:
        top = 1 if words[0] == "a" else _SMALL.get(words[0])
        # `two third` is not a fraction, and `twenty-fifth` is an ordinal.
        if top is None or (top == 1) == words[1].endswith("s") or (top >= 20 and 3 <= _PARTS[words[1]] <= 9):
            return None
        return f"{top}/{_PARTS[words[1]]}"
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
