"""HallusionBench, the 951 questions with an image: yes or no, scored per question, figure and pair."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from pivot.data import BadRow, Draft, Layout, NotIncluded, RowReader
from pivot.evaluation.benchmarks.benchmark import Benchmark
from pivot.evaluation.matching import YES_NO
from pivot.evaluation.scoring import Graded, accuracy, need_columns

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


def metrics(graded: Sequence[Graded]) -> dict[str, float]:
    """aAcc (per question), fAcc (per figure) and qAcc (per question over all its figures), mean over the k samples.

    A figure counts if all its questions are right, a question if it is right for every figure.
    """
    need_columns(graded, _IDS)

    def figure(columns: Mapping[str, Any]) -> Hashable:
        return tuple(str(columns[name]) for name in ("category", "subcategory", "set_id", "figure_id"))

    def question(columns: Mapping[str, Any]) -> Hashable:
        return tuple(str(columns[name]) for name in ("category", "subcategory", "set_id", "question_id"))

    with_figure = [g for g in graded if g.columns["category"] != "VS" or str(g.columns["figure_id"]) != "0"]
    return {
        "aAcc": accuracy(graded),
        "fAcc": _all_correct(with_figure, figure),
        "qAcc": _all_correct(graded, question),
    }


def _all_correct(graded: Sequence[Graded], key: Callable[[Mapping[str, Any]], Hashable]) -> float:
    """The share of groups in which every answer is correct, mean over the k samples."""
    groups: dict[Hashable, list[tuple[bool, ...]]] = defaultdict(list)
    for prompt in graded:
        groups[key(prompt.columns)].append(prompt.correct)
    shares = [np.mean([all(rows) for rows in zip(*group, strict=True)]) for group in groups.values()]
    return float(np.mean(shares))


BENCHMARK = Benchmark(
    name="hallusionbench",
    heading="HallusionBench",
    hub_id="lmms-lab/HallusionBench",
    split="image",
    layouts=(Layout((*_IDS, "visual_input", "question", "gt_answer", "image"), draft, id_columns=_IDS),),
    expected={"image": 951},
    matching="yes or no; aAcc, fAcc and qAcc",
    metrics=metrics,
    known_from="the project's repository (tianyi-lab/HallusionBench) with its evaluation script",
    tested_on="40 real rows without their images, complete sets",
)
