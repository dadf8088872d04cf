"""The benchmarks of the paper's tables, one small file each.

    data = load(DataSpec("mathvista"))                 # from the hub or its cache
    data = load(DataSpec("mathvista", path="testmini.parquet"))
    data = load(DataSpec("mathvista"), from_papo_eval=True)

A file assigns its `Benchmark` to `BENCHMARK` and is listed in `_FILES`. A benchmark in a module of your own is named
`my_package.my_module:MY_BENCHMARK` or `path/to/file.py:MY_BENCHMARK` wherever `pivot eval` takes a benchmark's name.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from pivot.data import DataSet, DataSpec, load_format, resolve
from pivot.errors import UserError
from pivot.evaluation.benchmarks.benchmark import PAPO_EVAL, Benchmark
from pivot.plugins import find_object

__all__ = ["BENCHMARKS", "GROUPS", "HEADINGS", "Benchmark", "load", "register"]

_FILES = (
    "geometry3k",
    "mathvista",
    "mathverse",
    "mathverse_v",
    "we_math",
    "mmk12",
    "logicvista",
    "counting",
    "mmmu_pro",
    "scienceqa",
    "hallusionbench",
    "chartqapro",
    "infographicvqa",
    "realworldqa",
)
BENCHMARKS: dict[str, Benchmark] = {}
for _file in _FILES:
    _benchmark: Benchmark = import_module(f"{__name__}.{_file}").BENCHMARK
    BENCHMARKS[_benchmark.name] = _benchmark
HEADINGS = {name: benchmark.heading for name, benchmark in BENCHMARKS.items()}
"""Benchmark -> the heading of its column in the paper's tables."""
_MATH = ("we-math", "mmk12", "logicvista", "counting")
GROUPS: dict[str, tuple[str, ...]] = {
    "paper": ("geometry3k", "mathverse", "mathvista", *_MATH, "mathverse-v"),
    "paper-9": ("geometry3k", "mathvista", "mathverse", *_MATH, "mmmu-pro", "mathverse-v"),
    "ood": ("scienceqa", "hallusionbench", "chartqapro", "infographicvqa", "realworldqa"),
}
"""Group -> the columns of Tables 1, 2 and 4 of the paper, in the paper's order."""


def register(spec: str) -> Benchmark:
    """Import a benchmark from outside (`pivot.plugins`) and make it known by its name."""
    found = find_object(spec, "benchmark", Benchmark)
    BENCHMARKS[found.name] = found
    return found


def load(spec: DataSpec, strict: bool = False, from_papo_eval: bool = False) -> DataSet:
    """Read a benchmark or any other evaluation set; `strict` refuses an unexpected number of rows."""
    if spec.name == PAPO_EVAL:
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
    """The benchmark in a split of the PAPO-Eval bundle."""
    names = {known.papo_split: name for name, known in BENCHMARKS.items() if known.papo_split}
    if split not in names:
        raise UserError(f"{PAPO_EVAL} needs --split, one of {', '.join(map(str, names))}.")
    return names[split]
