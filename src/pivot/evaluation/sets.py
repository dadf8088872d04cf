"""The sets to evaluate on: benchmarks, files of your own, and splits of the procedural tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pivot.config import DataConfig
from pivot.config.datasets import data_spec, is_procedural, load_set
from pivot.data import DataSet, resolve
from pivot.data.images import MISSING
from pivot.errors import UserError, did_you_mean
from pivot.evaluation import benchmarks
from pivot.evaluation.scoring import Graded
from pivot.types import Prompt

CODE = re.compile(r"([\w.]+|.+\.py):\w+")
"""A benchmark of your own: `my_package.my_module:MY_BENCHMARK` or `path/to/file.py:MY_BENCHMARK`."""
PROCEDURAL = {f"tiny-{split}": split for split in ("test", "ood", "validation")}
"""Name -> its procedural split."""
PROCEDURAL_SIZE = 200
"""Prompts of a procedural split unless a limit is given."""


@dataclass(frozen=True)
class EvaluationSet:
    """Prompts to evaluate on."""

    name: str
    prompts: list[Prompt]
    notes: tuple[str, ...] = ()
    """Warnings to show with the score."""
    metrics: Callable[[Sequence[Graded]], dict[str, float]] | None = None
    """The benchmark's own metrics."""


@dataclass(frozen=True)
class SetOptions:
    """How sets are read; the options of `pivot eval`."""

    paths: Mapping[str, str]
    """Set -> a local file or folder instead of a download."""
    limit: int | None = None
    strict: bool = False
    papo_eval: bool = False
    split: str | None = None
    """Which split; a set's usual one if not given."""
    data: DataConfig = field(default_factory=DataConfig)
    """How rows are read."""


def expand(names: Sequence[str]) -> list[str]:
    """Each name once, in order; a group (`paper`, `paper-9`, `ood`) is replaced by its benchmarks.

    Example:
        expand(["ood", "tiny-test"])[-2:] == ["realworldqa", "tiny-test"]
    """
    return list(dict.fromkeys(one for name in names for one in benchmarks.GROUPS.get(name, (name,))))


def load_sets(names: Sequence[str], options: SetOptions) -> list[EvaluationSet]:
    """Load all sets; raises a UserError for the first that is unknown or cannot be read."""
    for name in names:
        check_name(name)
    for name in options.paths:
        if name not in names:
            raise UserError(f"--path names {name!r}, which is not among --benchmarks {','.join(names)}.")
    if options.data.path is not None and len(names) > 1:
        raise UserError(f"data.path is for one set, but {len(names)} are named; use --path NAME=FILE.")
    check_score_names(names)
    return [_load(name, options) for name in names]


def read_set(name: str, options: SetOptions) -> DataSet:
    """A benchmark or any other set for evaluation; `tiny` and `tiny-SPLIT` are generated."""
    data, split = options.data, options.split or options.data.split
    limit = options.limit or data.size
    if is_procedural(name):
        split = split or name.partition("-")[2] or "test"
        return load_set(name, data, split, limit or PROCEDURAL_SIZE)
    spec = data_spec(name, replace(data, path=options.paths.get(name, data.path)), split, limit)
    return benchmarks.load(spec, strict=options.strict, from_papo_eval=options.papo_eval)


def check_name(name: str) -> None:
    """Accept known names, file paths, hub ids and code from outside; raise a UserError for anything else."""
    known = [*benchmarks.GROUPS, *benchmarks.BENCHMARKS, *PROCEDURAL]
    if (
        name not in known
        and not is_procedural(name)
        and not any(sign in name for sign in "/.")
        and not CODE.fullmatch(name)
    ):
        raise UserError(
            f"unknown benchmark {name!r}.{did_you_mean(name, known)} Known are {', '.join(known)}; a local file or a "
            "hub id works too."
        )


def score_name(name: str) -> str:
    """What the scores of a set call it.

    Example:
        score_name("sets/hard.jsonl") == "hard"
    """
    if is_procedural(name):
        family, _, split = name.partition("-")
        return f"{family}-{split or 'test'}"
    if CODE.fullmatch(name):
        return benchmarks.register(name).name
    if name == benchmarks.PAPO_EVAL:
        return name
    return resolve(data_spec(name, DataConfig()), benchmarks.BENCHMARKS.values())[0].name


def check_score_names(names: Sequence[str]) -> None:
    """Raise a UserError for two sets whose scores would replace each other."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(names):
        other = found.setdefault(score_name(name), name)
        if other != name:
            raise UserError(
                f"{other} and {name} would both be called {score_name(name)!r} in the scores: rename one of them, or "
                "leave it out."
            )


def _load(name: str, options: SetOptions) -> EvaluationSet:
    if options.limit is not None and options.limit < 1:
        raise UserError(f"--limit is {options.limit}; it must be at least 1 (leave it out to take all rows).")
    if CODE.fullmatch(name):
        path, name = options.paths.get(name), benchmarks.register(name).name
        options = options if path is None else replace(options, paths={**options.paths, name: path})
    # Decoding every image now takes seconds; a broken one in the middle would stop the evaluation.
    data = read_set(name, replace(options, data=replace(options.data, check_images="full")))
    if is_procedural(name):
        return EvaluationSet(f"{data.name}-{data.split}", data.prompts)
    if not data.prompts:
        raise UserError(_nothing_usable(name, data))
    notes = data.warnings
    if not notes and any(row.broken for row in data.skipped):
        notes = (f"{data.name}/{data.split}: {data.summary()}",)
    known = benchmarks.BENCHMARKS.get(data.name)
    return EvaluationSet(data.name, data.prompts, notes, None if known is None else known.metrics)


def _nothing_usable(name: str, data: DataSet) -> str:
    sentence = f"{data.name}/{data.split} has no usable row: {data.summary().rstrip('.')}"
    if not any(row.reason == MISSING for row in data.skipped) or name not in benchmarks.BENCHMARKS:
        return f"{sentence}; `pivot data {name}` lists them."
    hub_id = benchmarks.BENCHMARKS[name].hub_id
    return (
        f"{sentence}; download the set with its images (`hf download {hub_id} --repo-type dataset --local-dir DIR`) "
        f"and pass --path {name}=DIR."
    )
