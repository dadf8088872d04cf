"""RealWorldQA: 765 questions on photographs; out of domain."""

from __future__ import annotations

import re

from pivot.data import Draft, Layout, RowReader
from pivot.evaluation.benchmarks.benchmark import Benchmark
from pivot.evaluation.matching import LETTER, TEXT, YES_NO, kind_of, options_in

_ANSWER_DIRECTLY = re.compile(r"\s*Please answer directly with [^.]*\.\s*\Z")


def draft(row: RowReader) -> Draft:
    """The closing "Please answer directly ..." contradicts the reasoning template and is removed."""
    question, answer = _ANSWER_DIRECTLY.sub("", row.text("question").strip()), row.text("answer").strip()
    kind = kind_of(answer)
    return Draft(
        question=question,
        answer=answer,
        images=[row["image"]],
        task="realworldqa",
        columns={
            "matching": kind if kind in (LETTER, YES_NO) else TEXT,
            "choices": options_in(question) if kind == LETTER else [],
        },
    )


BENCHMARK = Benchmark(
    name="realworldqa",
    heading="RealWorldQA",
    hub_id="lmms-lab/RealWorldQA",
    split="test",
    copies=("xai-org/RealworldQA",),
    layouts=(Layout(("image", "question", "answer"), draft, id_columns=("image_path",)),),
    expected={"test": 765},
    matching="letter (with or without text), yes or no, word, number",
    known_from="lmms-eval's task files (hub id, columns, the closing sentence), public code (765)",
    tested_on="hand-made rows in the documented columns",
)
