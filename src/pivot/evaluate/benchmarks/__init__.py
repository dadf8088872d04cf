"""The benchmarks of the paper's tables, one small file each.

data = load(DataSpec("mathvista"))                 # from the hub or its cache
data = load(DataSpec("mathvista", path="testmini.parquet"))
data = load(DataSpec("mathvista"), from_papo_eval=True)
"""

from __future__ import annotations

import difflib
from dataclasses import replace

from pivot.data import DataSet, DataSpec, load_format, resolve
from pivot.errors import UserError
from pivot.evaluate.benchmarks import (
    chartqapro,
    counting,
    geometry3k,
    hallusionbench,
    infographicvqa,
    logicvista,
    mathverse,
    mathvista,
    mmk12,
    mmmu_pro,
    papo_eval,
    realworldqa,
    scienceqa,
    we_math,
)
from pivot.evaluate.benchmarks.benchmark import Benchmark

__all__ = ["BENCHMARKS", "GROUPS", "HEADINGS", "OUT_OF_DOMAIN", "Benchmark", "find", "load"]

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        geometry3k.BENCHMARK,
        mathvista.BENCHMARK,
        mathverse.BENCHMARK,
        mathverse.VISION_BENCHMARK,
        we_math.BENCHMARK,
        mmk12.BENCHMARK,
        logicvista.BENCHMARK,
        counting.BENCHMARK,
        mmmu_pro.BENCHMARK,
        scienceqa.BENCHMARK,
        hallusionbench.BENCHMARK,
        chartqapro.BENCHMARK,
        infographicvqa.BENCHMARK,
        realworldqa.BENCHMARK,
    )
}
OUT_OF_DOMAIN = ("scienceqa", "hallusionbench", "chartqapro", "infographicvqa", "realworldqa")
HEADINGS = {
    "geometry3k": "Geo3K",
    "mathverse": "MathVerse",
    "mathvista": "MathVista",
    "we-math": "WeMath",
    "mmk12": "MMK12",
    "logicvista": "LogicVista",
    "counting": "Counting",
    "mmmu-pro": "MMMU-Pro",
    "mathverse-v": "MathVerse_V",
    "scienceqa": "ScienceQA",
    "hallusionbench": "HallusionBench",
    "chartqapro": "ChartQAPro",
    "infographicvqa": "InfographicVQA",
    "realworldqa": "RealWorldQA",
}
"""Benchmark -> the heading of its column in the paper's tables."""
_MATH = ("we-math", "mmk12", "logicvista", "counting")
GROUPS: dict[str, tuple[str, ...]] = {
    "paper": ("geometry3k", "mathverse", "mathvista", *_MATH, "mathverse-v"),
    "paper-9": ("geometry3k", "mathvista", "mathverse", *_MATH, "mmmu-pro", "mathverse-v"),
    "ood": OUT_OF_DOMAIN,
}
"""Group -> the columns of Tables 1, 2 and 4 of the paper, in the paper's order."""


def find(name: str) -> Benchmark:
    """A benchmark by its name, or one sentence with the nearest."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    near = difflib.get_close_matches(name.lower().replace("_", "-"), BENCHMARKS, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise UserError(f"unknown benchmark {name!r}.{hint} Known are {', '.join(BENCHMARKS)}.")


def load(spec: DataSpec, strict: bool = False, from_papo_eval: bool = False) -> DataSet:
    """Read a benchmark, or any other set to evaluate on; `strict` refuses a number of rows that differs."""
    if spec.name == papo_eval.HUB_ID:
        spec, from_papo_eval = replace(spec, name=_bundled(spec.split)), True
    known, spec = resolve(spec, BENCHMARKS.values())
    if from_papo_eval:
        bundled = known.from_papo_eval() if isinstance(known, Benchmark) else None
        if bundled is None:
            named = ", ".join(name for name, benchmark in BENCHMARKS.items() if benchmark.papo_split)
            raise UserError(f"{spec.name} is not in the PAPO-Eval bundle, which has {named}.")
        known = bundled
    data = load_format(known, spec)
    if strict and data.warnings:
        raise UserError(f"{data.warnings[0]} (--strict refuses this)")
    return data


def _bundled(split: str | None) -> str:
    """The benchmark that a split of the PAPO-Eval bundle holds."""
    names = {known.papo_split: name for name, known in BENCHMARKS.items() if known.papo_split}
    if split not in names:
        raise UserError(f"{papo_eval.HUB_ID} needs --split, one of {', '.join(map(str, names))}.")
    return names[split]
