"""MathVerse testmini: 788 problems in five versions with an image (3,940 rows).

The sixth version, text only, is not part of the 3,940.
"""

from __future__ import annotations

from pivot.data import Draft, Layout, NotIncluded, RowReader
from pivot.evaluation.benchmarks.benchmark import Benchmark
from pivot.evaluation.matching import LETTER, MATH, options_in

TEXT_ONLY = "Text Only"
IN_THE_IMAGE = "Answer the question shown in the image."
LETTER_OF_OPTION = "Give the letter of the right option."
COLUMNS = ("problem_index", "problem_version", "question", "image", "answer", "question_type")


def draft(row: RowReader) -> Draft:
    """Vision-only rows have no text of their own: the question is in the image."""
    version = row.text("problem_version")
    if version == TEXT_ONLY:
        raise NotIncluded("text-only version, not part of the 3,940")
    is_choice = row["question_type"] == "multi-choice"
    question = row.optional_text("question").strip()
    if not question:
        question = f"{IN_THE_IMAGE} {LETTER_OF_OPTION}" if is_choice else IN_THE_IMAGE
    return Draft(
        question=question,
        answer=row.text("answer").strip(),
        images=[row["image"]],
        task=version,
        columns={
            "matching": LETTER if is_choice else MATH,
            "choices": options_in(question) if is_choice else [],
        },
    )


KNOWN_FROM = (
    "the project's site (mathverse-cuhk.github.io) and testmini_text_only.json, the hub set's columns"
)
IDS = ("problem_index", "problem_version")

BENCHMARK = Benchmark(
    name="mathverse",
    heading="MathVerse",
    hub_id="AI4Math/MathVerse",
    split="testmini",
    config="testmini",
    files=("testmini.parquet", "testmini/testmini*.parquet"),
    layouts=(Layout(COLUMNS, draft, id_columns=IDS),),
    expected={"testmini": 3940},
    matching="letter (with or without text), number or expression",
    papo_split="AI4Math_MathVerse",
    papo_rows=2180,
    known_from=KNOWN_FROM,
    tested_on="18 real rows with images (2 text-only rows excluded)",
    note="PAPO-Eval keeps the 2,180 multiple-choice rows; the paper does not say which it used.",
)
