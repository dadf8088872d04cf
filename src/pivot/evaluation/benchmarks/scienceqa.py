"""ScienceQA, the test questions with an image (2,017); out of domain."""

from __future__ import annotations

from pivot.data import BadRow, Draft, Layout, NotIncluded, RowReader
from pivot.evaluation.benchmarks.benchmark import Benchmark
from pivot.evaluation.matching import LETTER, LETTERS, lettered


def draft(row: RowReader) -> Draft:
    """The answer is the index of the right choice; a hint, if any, comes first."""
    if row["image"] is None and row.spec.config == "ScienceQA-FULL":
        raise NotIncluded("question without an image")
    choices, position = row.texts("choices"), row["answer"]
    if not isinstance(position, int) or not 0 <= position < len(choices):
        raise BadRow(f"answer is not an index into the {len(choices)} choices ({position!r})")
    hint = row.optional_text("hint").strip()
    context = f"Context: {hint}\n" if hint else ""
    return Draft(
        question=f"{context}{row.text('question').strip()}\n{lettered(choices)}",
        answer=LETTERS[position],
        images=[row["image"]],
        task=row.optional_text("subject"),
        columns={"matching": LETTER, "choices": choices},
    )


BENCHMARK = Benchmark(
    name="scienceqa",
    heading="ScienceQA",
    hub_id="lmms-lab/ScienceQA",
    split="test",
    config="ScienceQA-IMG",
    layouts=(Layout(("image", "question", "choices", "answer"), draft),),
    expected={"test": 2017},
    matching="letter (with or without text)",
    known_from="lmms-eval's task files (hub id, configuration, columns)",
    tested_on="hand-made rows in the documented columns",
)
