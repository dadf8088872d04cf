"""MMK12 test: 2,000 multiple-choice questions, 500 each of mathematics, physics, chemistry and biology."""

from __future__ import annotations

from pivot.data import Draft, Layout, RowReader
from pivot.evaluate.benchmarks.benchmark import Benchmark
from pivot.evaluate.benchmarks.choices import options_in
from pivot.evaluate.benchmarks.matching import LETTER, kind_of


def draft(row: RowReader) -> Draft:
    """Options stand in the question's own lines; rows with a free answer are matched as expressions."""
    question, answer = row.text("question"), row.text("answer").strip()
    kind = kind_of(answer)
    return Draft(
        question=question,
        answer=answer,
        images=[row["image"]],
        task=row.optional_text("subject"),
        columns={"matching": kind, "choices": options_in(question) if kind == LETTER else []},
    )


def draft_reupload(row: RowReader) -> Draft:
    """PAPO's and VPPO's copies: `images`, `problem`, `answer`."""
    problem, answer = row.text("problem"), row.text("answer").strip()
    kind = kind_of(answer)
    choices = options_in(problem) if kind == LETTER else []
    return Draft(
        question=problem,
        answer=answer,
        images=row.images("images"),
        task=row.optional_text("subject"),
        columns={"matching": kind, "choices": choices},
    )


BENCHMARK = Benchmark(
    name="mmk12",
    title="MMK12 test",
    hub_id="FanqingM/MMK12",
    split="test",
    copies=("PAPOGalaxy/PAPO_MMK12_test", "chamber111/VPPO_MMK12_validation"),
    layouts=(
        Layout(("question", "answer", "image"), draft, id_columns=("id",)),
        Layout(("images", "problem", "answer"), draft_reupload, id_columns=("id",)),
    ),
    expected={"test": 2000},
    matching="letter (with or without text); expression where the key is free",
    papo_split="PAPO_MMK12",
    papo_rows=2000,
    known_from="public code that reads FanqingM/MMK12 (columns, 500 a subject)",
    tested_on="24 real rows of MM-EUREKA's K12 set in the same columns, which is another set; hand-made rows",
)
