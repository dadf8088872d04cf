"""One spelling for what LaTeX, Unicode and plain text write differently.

`unify` turns `$\\dfrac{1}{2}\\,\\text{cm}$`, `5\\sqrt{3}`, `5√3`, `70^{\\circ}` and `70°` into a small plain
alphabet: ASCII, the signs of `_NAMES`, Greek letters, and ⦃⦄ for set braces, so that `{}` only groups.
Every step is one linear pass over a text whose length the caller bounds.
"""

from __future__ import annotations

import re
import unicodedata

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
    **{f"({digit})": sign for digit, sign in enumerate("①②③④⑤⑥⑦⑧⑨", 1)},
    **{f"\\mathbb{{{letter}}}": sign for letter, sign in zip("RZNQC", "ℝℤℕℚℂ", strict=True)},
}
"""Plain spelling -> the signs that become it."""
_FRACTIONS = {"1/2": "½", "1/3": "⅓", "2/3": "⅔", "1/4": "¼", "3/4": "¾", "1/5": "⅕", "2/5": "⅖", "3/5": "⅗",
              "4/5": "⅘", "1/6": "⅙", "5/6": "⅚", "1/8": "⅛", "3/8": "⅜", "5/8": "⅝", "7/8": "⅞"}  # fmt: skip
_PLAIN = str.maketrans({sign: plain for plain, signs in (_SIGNS | _FRACTIONS).items() for sign in signs})
_RAISED = re.compile("[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_LOWERED = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_SMALL_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻₀₁₂₃₄₅₆₇₈₉", "0123456789+-0123456789")
_MIXED = re.compile(f"([0-9]) ?(?=[{''.join(_FRACTIONS.values())}])")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")

_WRAPPER = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt|cal|frak)|operatorname\*?|mbox|hbox|boldsymbol|bm|"
    r"overrightarrow|vec|widehat|number|boxed|fbox|ce)\s*\{([^{}]*)\}"
)
# A bar over two points is a segment; over anything else it means something, and stays.
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
"""Plain spelling -> the LaTeX commands that become it."""
_COMMANDS = {name: plain for plain, names in _NAMES.items() for name in names.split()}
_COMMANDS |= dict.fromkeys((" ", "\n"), " ")

_ROOT_WORD = re.compile(r"(?<![A-Za-z\\])sqrt(?![A-Za-z])")
_INFINITY_WORD = re.compile(r"(?<![A-Za-z\\])infinity(?![A-Za-z])", re.IGNORECASE)
_TIMES_TEN = re.compile(r"(?<=[0-9.]) ?[xX] ?(?=10 ?\^)")
_PI_WORD = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])", re.IGNORECASE)
_DEGREE = re.compile(r"\^ ?(?:\{ ?° ?\}|°)|\{ ?° ?\}")
_BLANKS = re.compile(r"[ ~]*\n[ ~\n]*|[ ~]+")
_LOOSE = re.compile(r" ?([\^_√({⦃]) ?| (?=[)}⦄])")
_DIGIT_GAP = re.compile(r"(?<![0-9]) | (?![0-9])")


def unify(text: str) -> str:
    """The text in one spelling, blanks collapsed, outer dollars, braces and the final full stop removed."""
    if not text.isascii():
        text = _unify_unicode(text)
    text = _CONTROL.sub(" ", text)
    if "\\" in text:
        text = _unify_latex(text)
    text = text.replace("$", " ").replace("{,}", ",").replace("**", "^")
    text = _PI_WORD.sub("π", _ROOT_WORD.sub("√", _INFINITY_WORD.sub("∞", text)))
    text = _TIMES_TEN.sub("*", _DEGREE.sub("°", text))
    text = _BLANKS.sub(lambda blank: "\n" if "\n" in blank.group() else " ", text)
    text = _LOOSE.sub(lambda found: found.group(1) or "", text).strip(" ;\n")
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].rstrip()
    return _strip_outer(text)


def compact(text: str) -> str:
    """A unified text without blanks (but `1 2` is not `12`): what two equal texts share."""
    return _DIGIT_GAP.sub("", text)


def _unify_unicode(text: str) -> str:
    text = _INVISIBLE.sub("", text)
    text = _RAISED.sub(lambda found: f"^{{{found.group().translate(_SMALL_DIGITS)}}}", text)
    text = _LOWERED.sub(lambda found: f"_{{{found.group().translate(_SMALL_DIGITS)}}}", text)
    text = _MIXED.sub(r"\1 ", text).translate(_PLAIN)
    text = unicodedata.normalize("NFKC", text).translate(_PLAIN)
    return "".join(
        str(unicodedata.decimal(sign)) if sign > "\x7f" and sign.isdecimal() else sign for sign in text
    )


def _unify_latex(text: str) -> str:
    text = _REPEATING.sub(_repeating_decimal, text)
    text = _NUMBER_SET.sub(lambda found: "ℝℤℕℚℂ"["RZNQC".index(found.group(1) or found.group(2))], text)
    text = _SEGMENT.sub(r" \1 ", text)
    for _ in range(_WRAPPER_DEPTH):
        text, count = _WRAPPER.subn(r" \1 ", text)
        if not count:
            break
    return _COMMAND.sub(_replace_command, text)


def _repeating_decimal(found: re.Match[str]) -> str:
    """`0.1\\overline{6}` is (16 - 1)/90; of two dots, the digits from the first to the second repeat."""
    whole, fixed, group, single, middle, last = found.groups(default="")
    period = group + single + middle + last
    nines = (10 ** len(period) - 1) * 10 ** len(fixed)
    return f"({int(whole + fixed + period) - int(whole + fixed)}/{nines})"


def _replace_command(found: re.Match[str]) -> str:
    name = found.group(1) or found.group(2) or found.group(3)
    return _COMMANDS.get(name, found.group())


def _strip_outer(text: str) -> str:
    """`{{5}}` is `5`; `{1}{2}` stays."""
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
