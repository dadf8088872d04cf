"""MMK12 test: 2,000 multiple-choice questions, 500 each of mathematics, physics, chemistry and biology."""

from __future__ import annotations

from pivot.data import Draft, Layout, RowReader
from pivot.evaluation.benchmarks.benchmark import Benchmark
from pivot.evaluation.matching import LETTER, kind_of, options_in


def draft(row: RowReader) -> Draft:
    return _draft(row, "question", "image")


def draft_reupload(row: RowReader) -> Draft:
    """PAPO's and VPPO's copies: `images`, `problem`, `answer`."""
    return _draft(row, "problem", "images")


def _draft(row: RowReader, question_column: str, image_column: str) -> Draft:
    """Options are lines of the question; rows with a free-form answer are matched as expressions."""
    question, answer = row.text(question_column), row.text("answer").strip()
    kind = kind_of(answer)
    return Draft(
        question=question,
        answer=answer,
        images=row.images(image_column),
        task=row.optional_text("subject"),
        columns={"matching": kind, "choices": options_in(question) if kind == LETTER else []},
    )


BENCHMARK = Benchmark(
    name="mmk12",
    heading="MMK12",
    hub_id="FanqingM/MMK12",
    split="test",
    copies=("PAPOGalaxy/PAPO_MMK12_test", "chamber111/VPPO_MMK12_validation"),
    layouts=(
        Layout(("question", "answer", "image"), draft, id_columns=("id",)),
        Layout(("images", "problem", "answer"), draft_reupload, id_columns=("id",)),
    ),
    expected={"test": 2000},
    matching="letter (with or without text); expression if the key is free-form",
    papo_split="PAPO_MMK12",
    papo_rows=2000,
    known_from="public code that reads FanqingM/MMK12 (columns, 500 per subject)",
    tested_on="24 real rows of another set with the same columns (MM-EUREKA's K12); hand-made rows",
)
