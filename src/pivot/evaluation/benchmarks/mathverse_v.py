"""MathVerse-V: the 2,364 rows of MathVerse testmini with the conditions in the image (three of its versions)."""

from __future__ import annotations

from pivot.data import Draft, Layout, NotIncluded, RowReader
from pivot.evaluation.benchmarks import mathverse
from pivot.evaluation.benchmarks.benchmark import Benchmark

VISION_CENTRIC = ("Vision Intensive", "Vision Dominant", "Vision Only")


def draft(row: RowReader) -> Draft:
    version = row.text("problem_version")
    if version not in VISION_CENTRIC:
        raise NotIncluded(f"not a vision-centric version ({version})")
    return mathverse.draft(row)


BENCHMARK = Benchmark(
    name="mathverse-v",
    heading="MathVerse_V",
    hub_id="AI4Math/MathVerse",
    split="testmini",
    config="testmini",
    files=mathverse.BENCHMARK.files,
    layouts=(Layout(mathverse.COLUMNS, draft, id_columns=mathverse.IDS),),
    expected={"testmini": 2364},
    matching="letter (with or without text), number or expression",
    papo_split="AI4Math_MathVerse_vision_dependent",
    papo_rows=1308,
    known_from=mathverse.KNOWN_FROM + "; that PAPO's 1,308 rows are 436 problems x 3 versions",
    tested_on="the real vision-centric rows among the 20 of the sample",
    note="PAPO-Eval keeps the 1,308 multiple-choice rows; the paper does not say which it used.",
)
