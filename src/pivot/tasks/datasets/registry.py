"""The training sets that are known by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from pivot.errors import UserError
from pivot.tasks.datasets import geometry3k, virl39k
from pivot.tasks.datasets.layout import Format, column_layout
from pivot.tasks.datasets.spec import DataSpec

CUSTOM = "custom"
TRAINING_SETS: dict[str, Format] = {f.name: f for f in (geometry3k.FORMAT, virl39k.FORMAT)}


def find_format(spec: DataSpec, known: Iterable[Format] = ()) -> Format:
    """The format that a name means: a known set, a hub id of one, any hub id, or a local path."""
    formats = {**TRAINING_SETS, **{f.name: f for f in known}}
    if spec.name in formats:
        return formats[spec.name]
    for candidate in formats.values():
        if spec.name == candidate.hub_id or spec.name in candidate.copies:
            return candidate
    if spec.name == CUSTOM:
        if spec.path is None:
            raise UserError("custom needs --path: a parquet, JSONL, JSON or Arrow file, or a folder of them.")
        return _custom(Path(spec.path).stem, spec)
    if spec.path is None and Path(spec.name).exists():
        return _custom(Path(spec.name).stem, spec)
    if spec.name.count("/") == 1 and not spec.name.startswith((".", "/", "~")):
        return _custom(spec.name.replace("/", "--"), spec)
    names = [*formats, CUSTOM]
    near = difflib.get_close_matches(spec.name.lower(), names, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise UserError(
        f"unknown data set {spec.name!r}.{hint} Known are {', '.join(names)}; an owner/name of the hub or a "
        "local path is read with its columns images, problem and answer."
    )


def _custom(name: str, spec: DataSpec) -> Format:
    return Format(name=name, hub_id=spec.name, split="train", layouts=(column_layout(spec),))
