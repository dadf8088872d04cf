"""LogicVista: 447 of its 448 rows (one has neither question nor answer); three answers are several letters."""

from __future__ import annotations

from pivot.data import Draft, Layout, NotIncluded, RowReader
from pivot.evaluation.benchmarks.benchmark import Benchmark
from pivot.evaluation.matching import kind_of, options_in


def draft(row: RowReader) -> Draft:
    if not row.optional_text("question").strip() and not row.optional_text("answer").strip():
        raise NotIncluded("question and answer are empty in the source")
    question, answer = row.text("question").strip(), row.text("answer").strip()
    skills = row.texts("skill")
    return Draft(
        question=question,
        answer=answer,
        images=[row["image"]],
        task=skills[0] if skills else "",
        columns={"matching": kind_of(answer), "choices": options_in(question)},
    )


BENCHMARK = Benchmark(
    name="logicvista",
    heading="LogicVista",
    hub_id="lscpku/LogicVista",
    split="test",
    layouts=(Layout(("question", "image", "answer"), draft, id_columns=("id",)),),
    expected={"test": 447},
    matching="letter (with or without text), several letters in any order",
    papo_split="lscpku_LogicVista",
    papo_rows=447,
    known_from="the project's repository (Yijia-Xiao/LogicVista)",
    tested_on="24 real rows with images, one with two letters; the empty row hand-made",
    note="447 of 448 rows are used: one has neither question nor answer.",
)
