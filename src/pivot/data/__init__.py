"""Data sets by name, hub id or path; their rows become prompts with stable ids.

    data = load(DataSpec("geometry3k", split="train"))
    data.prompts, data.skipped, data.warnings

A known set is one small file with a `Format`: where it is, which columns it has, how a row becomes a draft.
"""

from __future__ import annotations

from pivot.data.layout import BadRow, Draft, Format, Layout, NotIncluded, RowReader
from pivot.data.loading import load_format
from pivot.data.registry import CUSTOM, TRAINING_SETS, resolve
from pivot.data.spec import DataSet, DataSpec, SkippedRow

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
