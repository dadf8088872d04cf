"""Geometry3K test: 601 problems, the answer is the text of the right choice."""

from __future__ import annotations

from pivot.evaluate.benchmarks.benchmark import Benchmark
from pivot.tasks.datasets import TRAINING_SETS

_TRAINING_SET = TRAINING_SETS["geometry3k"]

BENCHMARK = Benchmark(
    name="geometry3k",
    title="Geometry3K test",
    hub_id=_TRAINING_SET.hub_id,
    split="test",
    layouts=_TRAINING_SET.layouts,
    expected=_TRAINING_SET.expected,
    matching="number or expression",
    papo_split="hiyouga_geometry3k",
    papo_rows=601,
    known_from="shared/data (FormalGeo's copy), InterGPS's folders, EasyR1's use of the hub set",
    run_here="32 real test rows, 64 real training rows, 5 real InterGPS folders",
)
