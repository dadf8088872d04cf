"""MathVerse testmini: 788 problems in five versions with an image (3,940 rows), and its vision-centric part.

The sixth version, text only, is no part of the 3,940. MathVerse-V is the three versions whose image carries
the conditions: vision intensive, vision dominant, vision only.
"""

from __future__ import annotations

from pivot.data import Draft, Layout, NotIncluded, RowReader
from pivot.evaluate.benchmarks.benchmark import Benchmark
from pivot.evaluate.benchmarks.choices import options_in
from pivot.evaluate.benchmarks.matching import LETTER, MATH

VISION_CENTRIC = ("Vision Intensive", "Vision Dominant", "Vision Only")
TEXT_ONLY = "Text Only"
IN_THE_IMAGE = "Answer the question shown in the image."
LETTER_OF_OPTION = "Give the letter of the right option."
_COLUMNS = ("problem_index", "problem_version", "question", "image", "answer", "question_type")


def draft(row: RowReader) -> Draft:
    """Vision-only rows have no text of their own: the question stands in the image."""
    version = row.text("problem_version")
    if version == TEXT_ONLY:
        raise NotIncluded("text-only version, no part of the 3,940")
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


def vision_draft(row: RowReader) -> Draft:
    version = row.text("problem_version")
    if version not in VISION_CENTRIC:
        raise NotIncluded(f"not a vision-centric version ({version})")
    return draft(row)


_KNOWN_FROM = (
    "the project's site (mathverse-cuhk.github.io) and testmini_text_only.json, the hub set's columns"
)
_IDS = ("problem_index", "problem_version")

BENCHMARK = Benchmark(
    name="mathverse",
    title="MathVerse testmini",
    hub_id="AI4Math/MathVerse",
    split="testmini",
    config="testmini",
    files=("testmini.parquet", "testmini/testmini*.parquet"),
    layouts=(Layout(_COLUMNS, draft, id_columns=_IDS),),
    expected={"testmini": 3940},
    matching="letter (with or without text), number or expression",
    papo_split="AI4Math_MathVerse",
    papo_rows=2180,
    known_from=_KNOWN_FROM,
    tested_on="18 real rows with images (2 text-only rows left out)",
    note="PAPO-Eval keeps the 2,180 multiple-choice rows; the paper does not say which it used.",
)

VISION_BENCHMARK = Benchmark(
    name="mathverse-v",
    title="MathVerse-V",
    hub_id="AI4Math/MathVerse",
    split="testmini",
    config="testmini",
    files=BENCHMARK.files,
    layouts=(Layout(_COLUMNS, vision_draft, id_columns=_IDS),),
    expected={"testmini": 2364},
    matching="letter (with or without text), number or expression",
    papo_split="AI4Math_MathVerse_vision_dependent",
    papo_rows=1308,
    known_from=_KNOWN_FROM + "; that PAPO's 1,308 rows are 436 problems x 3 versions",
    tested_on="the real vision-centric rows among the 20 of the sample",
    note="PAPO-Eval keeps the 1,308 multiple-choice rows; the paper does not say which it used.",
)
