"""MMMU-Pro: 1,730 rows; standard with ten options, or the vision setting with the question in the image."""

from __future__ import annotations

import ast
import re
from typing import Any

from pivot.data import BadRow, Draft, Layout, RowReader
from pivot.evaluation.benchmarks.benchmark import Benchmark, letter_key
from pivot.evaluation.benchmarks.mathverse import IN_THE_IMAGE, LETTER_OF_OPTION
from pivot.evaluation.matching import LETTER, LETTERS, lettered

_REFERENCE = re.compile(r"<image\s*(\d)>")
_NUM_IMAGES = 7


def draft(row: RowReader) -> Draft:
    """`<image 3>` becomes a placeholder; images follow in the order of placeholders, unmentioned ones come first."""
    options = _options(row)
    text = f"{row.text('question').strip()}\n{lettered(options)}"
    referred = [int(number) for number in _REFERENCE.findall(text)]
    unmentioned = [
        i for i in range(1, _NUM_IMAGES + 1) if row[f"image_{i}"] is not None and i not in referred
    ]
    cells: list[Any] = [row[f"image_{number}"] for number in (*unmentioned, *referred)]
    return Draft(
        question="<image>" * len(unmentioned) + _REFERENCE.sub("<image>", text),
        answer=letter_key(row, options),
        images=cells or [None],
        task=row.optional_text("subject"),
        columns={"matching": LETTER, "choices": options},
    )


def draft_vision(row: RowReader) -> Draft:
    options = _options(row)
    return Draft(
        question=f"{IN_THE_IMAGE} {LETTER_OF_OPTION}",
        answer=letter_key(row, options),
        images=[row["image"]],
        task=row.optional_text("subject"),
        columns={"matching": LETTER, "choices": options},
    )


def _options(row: RowReader) -> list[str]:
    """The source writes the list as a Python literal."""
    try:
        options = ast.literal_eval(row.text("options"))
    except (ValueError, SyntaxError, MemoryError, RecursionError) as broken:
        raise BadRow("options are not a list") from broken
    if not isinstance(options, list) or not 1 <= len(options) <= len(LETTERS):
        raise BadRow("options are not a list of 1 to 26")
    return [str(option) for option in options]


BENCHMARK = Benchmark(
    name="mmmu-pro",
    heading="MMMU-Pro",
    hub_id="MMMU/MMMU_Pro",
    split="test",
    config="standard (10 options)",
    layouts=(
        Layout(("id", "question", "options", "answer", "image_1"), draft, id_columns=("id",)),
        Layout(("id", "image", "options", "answer"), draft_vision, id_columns=("id",)),
    ),
    expected={"test": 1730},
    matching="letter (with or without text)",
    papo_split="MMMU_MMMU_Pro",
    papo_rows=1730,
    known_from="the project's output files (MMMU-Benchmark/MMMU), public code (the three configurations)",
    tested_on="30 real rows without their images",
    note="`pivot data mmmu-pro --config vision` reads the vision setting, which PAPO-Eval uses.",
)
