"""Data sets by name, hub id or path; their rows become prompts with stable ids.

    data = load(DataSpec("geometry3k", split="train"))
    data.prompts, data.skipped, data.warnings

A known set is a `Format`: where it is, which columns it has, how a row becomes a draft (`registry.py`).
"""

from __future__ import annotations

from pivot.data.formats import (
    BadRow,
    DataSet,
    DataSpec,
    Draft,
    Format,
    Layout,
    NotIncluded,
    RowReader,
    SkippedRow,
)
from pivot.data.loading import load_format
from pivot.data.memory import MEMORY
from pivot.data.registry import CUSTOM, TRAINING_SETS, resolve

__all__ = [
    "CUSTOM",
    "MEMORY",
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
    """Load a training set, any hub set, or a file of your own; bad rows are skipped or refused."""
    return load_format(*resolve(spec))
