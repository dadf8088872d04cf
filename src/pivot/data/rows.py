"""Rows from files: parquet, Arrow (`save_to_disk`), JSONL, JSON, folders of one problem each (InterGPS)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from pivot.errors import UserError

SPLITS = ("train", "validation", "val", "testmini", "test", "dev", "image", "non_image")
SUFFIXES = (".parquet", ".arrow", ".jsonl", ".json")
_PROBLEM_FILE = "data.json"
_NO_DATA = ("dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json")
_NAMED = 8
_BATCH = 64
_PEEK = 1000


@dataclass(frozen=True)
class RawRow:
    """A row as it stands in its file, or why it could not be read."""

    number: int
    values: dict[str, Any] | None
    error: str = ""


@dataclass(frozen=True)
class Rows:
    """The files of one split; iterating reads them anew."""

    files: tuple[Path, ...]
    columns: tuple[str, ...]
    root: Path
    """Image paths in the rows are taken from here and may not leave it."""

    def __iter__(self) -> Iterator[RawRow]:
        number = 0
        for file in self.files:
            for values, error in _read(file, self.root):
                yield RawRow(number, values, error)
                number += 1


def open_rows(
    path: Path, split: str | None, config: str | None = None, patterns: tuple[str, ...] = ()
) -> Rows:
    """The rows of a file, or of a folder's files for one split; `patterns` are a known set's file names."""
    if not path.exists():
        raise UserError(
            f"{path} does not exist: give --path a parquet, JSONL, JSON or Arrow file or a folder."
        )
    if path.is_file():
        if path.suffix not in SUFFIXES:
            raise UserError(f"{path.name} is no data file: {', '.join(SUFFIXES)} files can be read.")
        return Rows((path,), _columns((path,), path.parent), path.parent)
    files = _problem_files(path, split) or _split_files(path, split, config, patterns)
    return Rows(files, _columns(files, path), path)


def split_of(path: Path) -> str | None:
    """The split that a file's or folder's name tells, if it does."""
    stem = path.stem if path.is_file() else path.name
    return next(
        (split for split in SPLITS if stem == split or stem.startswith((f"{split}-", f"{split}."))), None
    )


def _problem_files(folder: Path, split: str | None) -> tuple[Path, ...]:
    """InterGPS's layout, SPLIT/ID/data.json or ID/data.json, by number; empty where the folder is another."""
    problems = sorted(folder.glob(f"**/{_PROBLEM_FILE}"), key=_by_number)
    named = {part for file in problems for part in file.relative_to(folder).parts if part in SPLITS}
    if not named:
        return tuple(problems)
    wanted = {"val", "validation"} if split in ("val", "validation") else {split}
    inside = [file for file in problems if wanted & set(file.relative_to(folder).parts)]
    if not inside:
        raise UserError(f"{folder} has no split {split!r}: its folders are {', '.join(sorted(named))}.")
    return tuple(inside)


def _split_files(
    folder: Path, split: str | None, config: str | None, patterns: tuple[str, ...]
) -> tuple[Path, ...]:
    """The files that a known set names, or that bear the split's name; all where none bears a name."""
    home = folder / config if config and (folder / config).is_dir() else folder
    for suffix in SUFFIXES:
        files = [file for file in sorted(home.glob(f"**/*{suffix}")) if file.name not in _NO_DATA]
        if not files:
            continue
        chosen = [file for file in files if any(_matches(file, folder, pattern) for pattern in patterns)]
        chosen = chosen or [file for file in files if split and _belongs(file, split, home)]
        if not chosen and (patterns or any(map(split_of, files))):
            names = ", ".join(file.name for file in files[:_NAMED])
            raise UserError(
                f"{folder} has no file of split {split!r}, it has {names}: give one with --path FILE."
            )
        return tuple(chosen or files)
    raise UserError(f"{folder} holds no {', '.join(SUFFIXES)} file and no InterGPS problem folders.")


def _matches(file: Path, folder: Path, pattern: str) -> bool:
    return fnmatch(str(file.relative_to(folder)), pattern) or fnmatch(file.name, pattern.rsplit("/")[-1])


def _belongs(file: Path, split: str, home: Path) -> bool:
    is_named = file.stem == split or file.stem.startswith(f"{split}-")
    return is_named or split in file.relative_to(home).parts[:-1]


def _by_number(file: Path) -> tuple[int, str]:
    name = file.parent.name
    return (int(name) if name.isdigit() else -1, str(file))


def _columns(files: tuple[Path, ...], root: Path) -> tuple[str, ...]:
    first = files[0]
    if first.suffix == ".parquet":
        with _parquet(first) as table:
            return tuple(table.schema_arrow.names)
    if first.suffix == ".arrow":
        return tuple(_arrow(first).schema.names)
    found: dict[str, None] = {}
    for number, (values, _) in enumerate(_read(first, root)):
        found.update(dict.fromkeys(values or ()))
        if number == _PEEK:
            break
    return tuple(found)


def _read(file: Path, root: Path) -> Iterator[tuple[dict[str, Any] | None, str]]:
    if file.suffix == ".parquet":
        yield from _read_parquet(file)
    elif file.suffix == ".arrow":
        for batch in _arrow(file):
            for values in batch.to_pylist():
                yield values, ""
    elif file.suffix == ".jsonl":
        yield from _read_jsonl(file)
    elif file.name == _PROBLEM_FILE:
        yield {**_load_json(file), "folder": str(file.parent.relative_to(root))}, ""
    else:
        yield from _read_json(file)


def _read_parquet(file: Path) -> Iterator[tuple[dict[str, Any], str]]:
    with _parquet(file) as table:
        try:
            for batch in table.iter_batches(batch_size=_BATCH):
                for values in batch.to_pylist():
                    yield values, ""
        except (pa.ArrowException, OSError) as broken:
            raise UserError(f"{file} is damaged ({broken}): download it again.") from broken


def _parquet(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as broken:
        raise UserError(f"{file} is no readable parquet file ({broken}): download it again.") from broken


def _arrow(file: Path) -> pa.ipc.RecordBatchStreamReader:
    try:
        return pa.ipc.open_stream(pa.memory_map(str(file)))
    except (pa.ArrowException, OSError) as broken:
        raise UserError(
            f"{file} is no readable Arrow stream ({broken}): save the data set again."
        ) from broken


def _read_jsonl(file: Path) -> Iterator[tuple[dict[str, Any] | None, str]]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (json.JSONDecodeError, RecursionError):
                yield None, "line is not JSON"
                continue
            yield (values, "") if isinstance(values, dict) else (None, "line is no JSON object")


def _read_json(file: Path) -> Iterator[tuple[dict[str, Any] | None, str]]:
    content = _load_json(file)
    items = list(content.values()) if isinstance(content, dict) else content
    if not isinstance(items, list):
        raise UserError(
            f"{file} holds {type(content).__name__}; a list of rows, or an object of rows, is expected."
        )
    for values in items:
        yield (values, "") if isinstance(values, dict) else (None, "entry is no JSON object")


def _load_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8", errors="replace"))
    except (json.JSONDecodeError, RecursionError) as broken:
        raise UserError(f"{file} is not JSON ({broken}).") from broken
