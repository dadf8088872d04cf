"""MathVista testmini: 1,000 rows; the text is the official query (hint, question, lettered choices)."""

from __future__ import annotations

from pivot.data import BadRow, Draft, Layout, RowReader
from pivot.evaluation.benchmarks.benchmark import Benchmark
from pivot.evaluation.matching import LETTER, LETTERS, LIST, MATH


def draft(row: RowReader) -> Draft:
    """The source gives an option's text; the query asks for its letter, so the letter becomes the answer."""
    answer, choices = row.text("answer"), row.texts("choices")
    kind = LIST if row["answer_type"] == "list" else MATH
    if row["question_type"] == "multi_choice":
        if answer not in choices:
            raise BadRow(f"answer is not among the choices ({answer[:40]!r})")
        answer, kind = LETTERS[choices.index(answer)], LETTER
    metadata = row["metadata"] or {}
    return Draft(
        question=row.text("query"),
        answer=answer,
        images=[row["decoded_image"] or row["image"]],
        task=str(metadata.get("task") or ""),
        columns={"matching": kind, "choices": choices},
    )


BENCHMARK = Benchmark(
    name="mathvista",
    heading="MathVista",
    hub_id="AI4Math/MathVista",
    split="testmini",
    layouts=(
        Layout(
            ("pid", "query", "decoded_image", "choices", "answer", "question_type", "answer_type"),
            draft,
            id_columns=("pid",),
        ),
    ),
    expected={"testmini": 1000},
    matching="letter (with or without text), number, list",
    papo_split="AI4Math_MathVista",
    papo_rows=1000,
    known_from="the project's own testmini.json and query.json (lupantech/MathVista)",
    tested_on="40 real rows without their images",
)
