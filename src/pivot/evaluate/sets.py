"""The sets that can be evaluated on: the benchmarks, your own files, and the procedural splits."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pivot.data import DataSet, DataSpec
from pivot.data.images import MISSING
from pivot.errors import UserError
from pivot.evaluate import benchmarks
from pivot.tiny import procedural
from pivot.types import Prompt

PROCEDURAL = {f"tiny-{split}": split for split in ("test", "ood", "validation")}
"""Name -> the procedural split behind it."""
PROCEDURAL_SIZE = 200
"""Prompts of a procedural split unless a limit says otherwise: as many as a run's own table has."""


@dataclass(frozen=True)
class EvaluationSet:
    """Prompts to evaluate on, and what a reader of the score should know."""

    name: str
    prompts: list[Prompt]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SetOptions:
    """How sets are read; the options of `pivot eval`."""

    paths: Mapping[str, str]
    """Set -> a local file or folder instead of a download."""
    limit: int | None = None
    strict: bool = False
    papo_eval: bool = False


def expand(names: Sequence[str]) -> list[str]:
    """Each name once, in order; a group (`paper`, `paper-9`, `ood`) stands for its benchmarks.

    Example:
        expand(["ood", "tiny-test"])[-2:] == ["realworldqa", "tiny-test"]
    """
    return list(dict.fromkeys(one for name in names for one in benchmarks.GROUPS.get(name, (name,))))


def load_sets(names: Sequence[str], options: SetOptions) -> list[EvaluationSet]:
    """All sets, or one sentence about the first that cannot be had."""
    for name in names:
        check_name(name)
    for name in options.paths:
        if name not in names:
            raise UserError(f"--path names {name!r}, which is not among --benchmarks {','.join(names)}.")
    return [_load(name, options) for name in names]


def check_name(name: str) -> None:
    """Known by name, or written as a file's path or a hub id."""
    known = [*benchmarks.GROUPS, *benchmarks.BENCHMARKS, *PROCEDURAL]
    if name not in known and "/" not in name and "." not in name:
        near = difflib.get_close_matches(name.lower().replace("_", "-"), known, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UserError(
            f"unknown benchmark {name!r}.{hint} Known are {', '.join(known)}; a local file or an owner/name of the "
            "hub is read with its columns images, problem and answer."
        )


def _load(name: str, options: SetOptions) -> EvaluationSet:
    if options.limit is not None and options.limit < 1:
        raise UserError(f"--limit is {options.limit}; it must be at least 1, or left out to take all.")
    if name in PROCEDURAL:
        found = procedural.dataset(PROCEDURAL[name], options.limit or PROCEDURAL_SIZE)
        return EvaluationSet(name, list(found))
    # Decoding every image now costs seconds; one that breaks in the middle would cost the evaluation.
    spec = DataSpec(name, path=options.paths.get(name), limit=options.limit, check_images="full")
    data = benchmarks.load(spec, strict=options.strict, from_papo_eval=options.papo_eval)
    if not data.prompts:
        raise UserError(_nothing_usable(name, data))
    notes = data.warnings
    if not notes and any(row.broken for row in data.skipped):
        notes = (f"{data.name}/{data.split}: {data.summary()}",)
    return EvaluationSet(data.name, data.prompts, notes)


def _nothing_usable(name: str, data: DataSet) -> str:
    sentence = f"{data.name}/{data.split} has no usable row here: {data.summary().rstrip('.')}"
    if not any(row.reason == MISSING for row in data.skipped) or name not in benchmarks.BENCHMARKS:
        return f"{sentence}; `pivot data {name}` shows each."
    hub_id = benchmarks.BENCHMARKS[name].hub_id
    return (
        f"{sentence}; get the set with its images (`hf download {hub_id} --repo-type dataset --local-dir DIR`) and "
        f"give it with --path {name}=DIR."
    )
