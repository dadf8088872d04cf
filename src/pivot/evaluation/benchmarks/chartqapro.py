"""ChartQAPro: 1,948 questions on charts; out of domain; exact match instead of its relaxed metric."""

from __future__ import annotations

from pivot.data import BadRow, Draft, Layout, RowReader
from pivot.evaluation.benchmarks.benchmark import Benchmark
from pivot.evaluation.matching import LETTER, LIST, TEXT, kind_of, options_in


def draft(row: RowReader) -> Draft:
    """`Question` and `Answer` are lists; only the last question of a conversation is asked, the others are context."""
    questions, answers = row.texts("Question"), row.texts("Answer")
    if not questions or len(questions) != len(answers) or not questions[-1].strip():
        raise BadRow(
            f"Question and Answer differ in length ({len(questions)} questions, {len(answers)} answers)"
        )
    if not answers[-1].strip():
        raise BadRow("Answer missing")
    answer, kind = answers[-1].strip(), kind_of(answers[-1].strip())
    paragraph = row.optional_text("Paragraph").strip()
    context = f"Context: {paragraph}\n\n" if paragraph else ""
    return Draft(
        question=context + _conversation(questions, answers),
        answer=answer,
        images=[row["image"]],
        task=row.optional_text("Question Type"),
        columns={
            "matching": kind if kind in (LETTER, LIST) else TEXT,
            "choices": options_in(questions[-1]) if kind == LETTER else [],
        },
    )


def _conversation(questions: list[str], answers: list[str]) -> str:
    *earlier, last = [question.strip() for question in questions]
    context = [f"Q{i + 1}: {question}\nA{i + 1}: {answers[i].strip()}" for i, question in enumerate(earlier)]
    return "\n".join([*context, f"Q{len(questions)}: {last}"]) if earlier else last


BENCHMARK = Benchmark(
    name="chartqapro",
    heading="ChartQAPro",
    hub_id="ahmed-masry/ChartQAPro",
    split="test",
    layouts=(Layout(("Question", "Answer", "Question Type", "image"), draft),),
    expected={"test": 1948},
    matching="text, number, letter, list (exact, not relaxed)",
    known_from="lmms-eval's task file (hub id, columns), the data set's paper (1,948)",
    tested_on="hand-made rows in the documented columns",
)
