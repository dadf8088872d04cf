"""The training sets that are known by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pivot.data import geometry3k, virl39k
from pivot.data.layout import Format, column_layout
from pivot.data.rows import SUFFIXES, split_of
from pivot.data.spec import DataSpec
from pivot.errors import UserError

CUSTOM = "custom"
TRAINING_SETS: dict[str, Format] = {f.name: f for f in (geometry3k.FORMAT, virl39k.FORMAT)}


def resolve(spec: DataSpec, known: Iterable[Format] = ()) -> tuple[Format, DataSpec]:
    """The format that a name means, and the spec with its path: a known set, a hub id, or a local path."""
    formats = {**TRAINING_SETS, **{f.name: f for f in known}}
    if spec.name in formats:
        return formats[spec.name], spec
    for candidate in formats.values():
        if spec.name == candidate.hub_id or spec.name in candidate.copies:
            return candidate, spec
    if spec.path is None and _is_path(spec.name):
        spec = replace(spec, name=CUSTOM, path=spec.name)
    if spec.name == CUSTOM:
        if spec.path is None:
            raise UserError("custom needs --path: a parquet, JSONL, JSON or Arrow file, or a folder of them.")
        return _custom(_set_name(Path(spec.path)), spec), spec
    if spec.name.count("/") == 1:
        return _custom(spec.name.replace("/", "--"), spec), spec
    names = [*formats, CUSTOM]
    near = difflib.get_close_matches(spec.name.lower(), names, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise UserError(
        f"unknown data set {spec.name!r}.{hint} Known are {', '.join(names)}; an owner/name of the hub or a "
        "local path is read with its columns images, problem and answer."
    )


def _is_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or Path(name).suffix in SUFFIXES or Path(name).exists()


def _set_name(path: Path) -> str:
    """The name that the ids begin with: the file's, or its folder's where the file bears only a split's."""
    return path.resolve().parent.name if split_of(path) else path.stem


def _custom(name: str, spec: DataSpec) -> Format:
    return Format(name=name, hub_id=spec.name, split="train", layouts=(column_layout(spec),))
