"""InfographicVQA validation: 2,801 questions with one or several accepted answers; out of domain."""

from __future__ import annotations

from pivot.data import BadRow, Draft, Layout, RowReader
from pivot.evaluation.benchmarks.benchmark import Benchmark
from pivot.evaluation.matching import TEXT


def draft(row: RowReader) -> Draft:
    answers = [answer for answer in row.texts("answers") if answer.strip()]
    if not answers:
        raise BadRow("answers missing")
    kinds = row.texts("answer_type")
    return Draft(
        question=row.text("question").strip(),
        answer=answers[0],
        images=[row["image"]],
        task=kinds[0] if kinds else "",
        columns={"matching": TEXT, "accepted": answers},
    )


BENCHMARK = Benchmark(
    name="infographicvqa",
    heading="InfographicVQA",
    hub_id="lmms-lab/DocVQA",
    split="validation",
    config="InfographicVQA",
    layouts=(Layout(("question", "answers", "image"), draft, id_columns=("questionId",)),),
    expected={"validation": 2801},
    matching="any accepted text or number (exact, not ANLS)",
    known_from="lmms-eval's task files (hub id, configuration), public code (2,801)",
    tested_on="hand-made rows in the documented columns",
    note="The test split has no public answers.",
)
