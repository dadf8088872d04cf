"""All distinct real answers and options of the samples in `../shared/data`, and a naive idea of what each says.

`facets` shares no code with the verifier: Python's floats after a few replacements, or the text. Two answers that
share no facet are different truths; no box may be right for both.
"""

import ast
import json
import math
import re
from functools import cache
from pathlib import Path

DATA = Path(__file__).parents[3] / "shared" / "data"
PARQUET = "we_math/testmini logicvista/test mathverse/testmini mmk12/test mathvista/testmini mmmu_pro/test"
_UNIT = re.compile(r"\s*(?:°|\^\\circ ?T?|cm/s|cm[²³]|海里|mm/mm|cm|degrees)$")


def real_answers() -> list[str]:
    import pyarrow.parquet as pq

    lines = (DATA / "geometry3k" / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    found = {json.loads(line)["answer"] for line in lines}
    for name in PARQUET.split():
        table = pq.read_table(DATA / f"{name}.parquet")
        columns = {
            column: table.column(column).to_pylist() for column in table.column_names if "image" not in column
        }
        found |= {str(answer) for answer in columns["answer"] if answer}
        found |= {option.strip() for row in columns.get("option", []) for option in row.split(";")}
        found |= {option for row in columns.get("choices", []) if row for option in row}
        found |= {option for row in columns.get("options", []) for option in ast.literal_eval(row)}
    return sorted(answer for answer in found if answer.strip())


@cache
def facets(answer: str) -> frozenset[tuple[str, object]]:
    """Everything that an answer says: its option letter, its value, its values in order, its text."""
    text = answer.replace("$", "").replace("，", ",").strip().removesuffix(".").strip()
    label = re.fullmatch(r"\(?([A-Z])\)?[.):]\s*(.+)", text, re.DOTALL)
    if label:
        return frozenset({("letter", label.group(1)), *facets(label.group(2))})
    found: set[tuple[str, object]] = {("text", re.sub(r"[^0-9a-z.+<>=≤≥-]", "", text.lower()))}
    if re.fullmatch(r"\(?[A-Za-z]\)?", text):
        found.add(("letter", text.strip("()").upper()))
    word = re.match(r"(yes|no)\b", text, re.IGNORECASE)
    if word:
        found.add(("word", word.group(1).lower()))
    text = re.sub(r"^(?:x|\\theta) ?= ?", "", text)
    number = naive_number(text)
    if number is not None:
        found.add(("value", number))
        if text.endswith("%"):
            found.add(("value", _share(number)))
    inside = text if text.startswith("(1)") else text.strip("[]()")
    parts = [part for part in re.split(r"\(\d\)(?=[^,)])|[,;:\n]", inside) if part.strip()]
    values = [naive_number(part) for part in parts]
    if len(values) > 1 and None not in values:
        found.add(("values", tuple(values)))
        if ":" in text and values[1]:
            found.add(("value", float(f"{values[0] / values[1]:.9g}")))  # type: ignore[operator]
    return frozenset(found)


def naive_number(text: str) -> float | None:
    """Python's own arithmetic on text that holds nothing but digits, signs, roots and pi."""
    text = _UNIT.sub("", text.strip()).removesuffix("%").replace("\\dfrac", "\\frac").replace("\\number", "")
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = (
        text.replace(" ", "")
        .replace("\\pi", "π")
        .replace("\\sqrt", "√")
        .replace("^", "**")
        .replace("\\times", "*")
    )
    text = re.sub(r"√(?:\{\{(\d+)\}\}|\{(\d+)\}|(\d+))", r"(\1\2\3)**.5", text)
    text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text).replace("π", f"({math.pi})")
    text = re.sub(r"(?<=[\d)])\(", "*(", text)
    if not re.fullmatch(r"[-\d.+*/()]{1,60}", text) or re.search(
        r"\d{16}|\*\*\(*\d\d\d|\*\*.*\*\*.*\*\*", text
    ):
        return None
    try:
        return float(f"{float(eval(text, {'__builtins__': {}})):.9g}")
    except (SyntaxError, ArithmeticError, TypeError, ValueError):
        return None


def conflict(one: str, other: str, box: str = "") -> bool:
    """Whether no box may be right for both.

    Two boxes say two things by what is documented: `B. 48` the letter and the value, and `50%` both 50 and 1/2.
    """
    first, second = facets(one), facets(other)
    if not first.isdisjoint(second):
        return False
    labelled = re.match(r"[\s;]*(?:\\text\{)?(?:\(?[A-Z]\)?\s*[.):]|\([A-Z]\))", box.removeprefix("\\left."))
    if labelled and _is_letter(one) != _is_letter(other):
        return False
    if "%" in box:
        shares = {value for kind, value in first if kind == "value"}
        return not any(
            _share(a) == b or a == _share(b) for a in shares for kind, b in second if kind == "value"
        )
    return True


def _is_letter(answer: str) -> bool:
    return re.fullmatch(r"[A-Z]", answer) is not None


def _share(value: object) -> float:
    assert isinstance(value, float)
    return float(f"{value / 100:.9g}")
