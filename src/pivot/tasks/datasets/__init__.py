"""Data sets by name, hub id or path; their rows become prompts with stable ids.

    data = load(DataSpec("geometry3k", split="train"))
    data.prompts, data.skipped, data.warnings

A known set is one small file with a `Format`: where it is, which columns it has, how a row becomes a draft.
"""

from __future__ import annotations

from pivot.tasks.datasets.layout import BadRow, Draft, Format, Layout, NotIncluded, RowReader
from pivot.tasks.datasets.loading import load_format
from pivot.tasks.datasets.registry import CUSTOM, TRAINING_SETS, resolve
from pivot.tasks.datasets.spec import DataSet, DataSpec, SkippedRow

__all__ = [
    "CUSTOM",
    "TRAINING_SETS",
    "BadRow",
    "DataSet",
    "DataSpec",
    "Draft",
    "Format",
    "Layout",
    "NotIncluded",
    "RowReader",
    "SkippedRow",
    "load",
    "load_format",
    "resolve",
]


def load(spec: DataSpec) -> DataSet:
    """Read a training set, any hub set, or a file of your own; broken rows are skipped or refused."""
    return load_format(*resolve(spec))
