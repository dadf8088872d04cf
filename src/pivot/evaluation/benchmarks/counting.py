"""SuperCLEVR-Counting: 200 questions that ask for a number of objects."""

from __future__ import annotations

import re

from pivot.data import Draft, Layout, RowReader
from pivot.evaluation.benchmarks.benchmark import Benchmark
from pivot.evaluation.matching import MATH

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def draft(row: RowReader) -> Draft:
    return _draft(row, "images", "answer")


def draft_r1v(row: RowReader) -> Draft:
    """R1-V's columns: `image`, `problem`, `solution`."""
    return _draft(row, "image", "solution")


def _draft(row: RowReader, image: str, answer: str) -> Draft:
    """R1-V's answers are inside `<answer>` tags."""
    key = row.text(answer)
    tagged = _TAGGED.search(key)
    return Draft(
        question=row.text("problem"),
        answer=(tagged[1] if tagged else key).strip(),
        images=row.images(image),
        task="counting",
        columns={"matching": MATH},
    )


BENCHMARK = Benchmark(
    name="counting",
    heading="Counting",
    hub_id="BUAADreamer/clevr_count_70k",
    split="test",
    copies=("MMInstruction/SuperClevr_Val",),
    layouts=(
        Layout(("images", "problem", "answer"), draft, id_columns=("id",)),
        Layout(("image", "problem", "solution"), draft_r1v, id_columns=("id",)),
    ),
    expected={"test": 200},
    matching="number",
    papo_split="BUAADreamer_clevr_count_70k",
    papo_rows=200,
    known_from="PAPO's and EasyR1's scripts (hub id, split), public code (columns)",
    tested_on="hand-made rows in the documented columns",
    note="PAPO calls the 200 rows of its bundle's BUAADreamer_clevr_count_70k split SuperClevr Counting.",
)
