"""HallusionBench, the 951 questions with an image: yes or no, scored by question, figure and pair."""

from __future__ import annotations

from pivot.data import BadRow, Draft, Layout, NotIncluded, RowReader
from pivot.evaluate.benchmarks.benchmark import Benchmark
from pivot.evaluate.benchmarks.matching import YES_NO

_ANSWERS = {"1": "yes", "0": "no"}
_IDS = ("category", "subcategory", "set_id", "figure_id", "question_id")


def draft(row: RowReader) -> Draft:
    if row.text("visual_input") == "0":
        raise NotIncluded("question without an image")
    key = row.text("gt_answer")
    if key not in _ANSWERS:
        raise BadRow(f"gt_answer is neither 0 nor 1 ({key[:20]!r})")
    return Draft(
        question=f"{row.text('question').strip()} Please answer yes or no.",
        answer=_ANSWERS[key],
        images=[row["image"]],
        task=f"{row.text('category')}/{row.text('subcategory')}",
        columns={"matching": YES_NO},
    )


BENCHMARK = Benchmark(
    name="hallusionbench",
    title="HallusionBench (image)",
    hub_id="lmms-lab/HallusionBench",
    split="image",
    layouts=(Layout((*_IDS, "visual_input", "question", "gt_answer", "image"), draft, id_columns=_IDS),),
    expected={"image": 951},
    matching="yes or no; aAcc, fAcc and qAcc",
    known_from="the project's repository (tianyi-lab/HallusionBench) with its evaluation script",
    tested_on="40 real rows without their images, whole sets",
)
