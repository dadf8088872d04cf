"""Geometry3K test: 601 problems; the answer is the text of the right choice."""

from __future__ import annotations

from pivot.data import TRAINING_SETS
from pivot.evaluation.benchmarks.benchmark import Benchmark

_TRAINING_SET = TRAINING_SETS["geometry3k"]

BENCHMARK = Benchmark(
    name="geometry3k",
    heading="Geo3K",
    hub_id=_TRAINING_SET.hub_id,
    split="test",
    layouts=_TRAINING_SET.layouts,
    expected=_TRAINING_SET.expected,
    matching=_TRAINING_SET.matching,
    papo_split="hiyouga_geometry3k",
    papo_rows=601,
    known_from=_TRAINING_SET.known_from,
    tested_on=_TRAINING_SET.tested_on,
)
