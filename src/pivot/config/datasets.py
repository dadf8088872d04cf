"""From the settings of `data` to the rows of a set: the one way in which every command reads data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pivot.config.sections import DataConfig
from pivot.data import DataSet, DataSpec, load, resolve
from pivot.tiny import procedural

PROCEDURAL = "tiny"
"""The set whose prompts are generated; `tiny-SPLIT` names one of its splits."""
PROCEDURAL_SIZE = 512
_PASSED_ON = (
    "path",
    "config",
    "revision",
    "image_column",
    "problem_column",
    "answer_column",
    "id_column",
    "category_column",
    "image_root",
    "allow_absolute_paths",
    "allow_urls",
    "allow_missing_images",
    "point_overlay",
    "bad_rows",
    "check_images",
)


def is_procedural(name: str) -> bool:
    """Whether a name means generated prompts: `tiny`, or `tiny-SPLIT`."""
    family, _, split = name.partition("-")
    return family == PROCEDURAL and (not split or split in procedural.SPLITS)


def data_spec(name: str, data: DataConfig, split: str | None = None, limit: int | None = None) -> DataSpec:
    """A set as the settings describe it."""
    return DataSpec(name, split=split, limit=limit, **{field: getattr(data, field) for field in _PASSED_ON})


def as_evaluated(data: DataConfig) -> tuple[str, str]:
    """The one training set, as `pivot eval` takes it and as its scores call it."""
    (name,) = data.sets
    if is_procedural(name):
        return f"{name}-train", f"{name}-train"
    taken = data.path or name
    return taken, resolve(data_spec(taken, DataConfig()))[0].name


def load_set(
    name: str,
    data: DataConfig,
    split: str | None = None,
    limit: int | None = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
) -> DataSet:
    """The rows of one split, generated, read or given."""
    if is_procedural(name):
        split = split or name.partition("-")[2] or "train"
        found = procedural.dataset(split, limit or PROCEDURAL_SIZE, tasks=data.tasks or None)
        described = f"generated prompts of the tasks {', '.join(data.tasks or procedural.TASKS)}"
        return DataSet(PROCEDURAL, split, tuple(found), recognised=described)
    spec = data_spec(name, data, split, limit)
    return load(replace(spec, rows=None if rows is None else tuple(rows)))
