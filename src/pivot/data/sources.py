"""Where rows come from: parquet, Arrow (`save_to_disk`), JSONL, JSON and CSV files, InterGPS folders, the hub."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from pivot import hub
from pivot.errors import UserError

SPLITS = ("train", "validation", "val", "testmini", "test", "dev", "image", "non_image")
SUFFIXES = (".parquet", ".arrow", ".jsonl", ".json", ".csv")
_PROBLEM_FILE = "data.json"
_NO_DATA = ("dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json")
_NAMED = 8
_BATCH = 64
_PEEK = 1000
MAX_CELL = 1 << 28
"""Most characters in a cell of a CSV file, which may hold an image as base64."""


@dataclass(frozen=True)
class RawRow:
    """A row as read from its file, or why it could not be read."""

    number: int
    values: dict[str, Any] | None
    error: str = ""


@dataclass(frozen=True)
class Rows:
    """The files of one split; each iteration reads them again."""

    files: tuple[Path, ...]
    columns: tuple[str, ...]
    root: Path
    """The folder that image paths are relative to and must not leave."""

    def __iter__(self) -> Iterator[RawRow]:
        number = 0
        for file in self.files:
            for values, error in _read(file, self.root):
                yield RawRow(number, values, error)
                number += 1

    def count(self) -> int:
        """The number of rows; columnar files are not read for it."""
        return sum(_count(file, self.root) for file in self.files)


def open_rows(
    path: Path, split: str | None, config: str | None = None, patterns: tuple[str, ...] = ()
) -> Rows:
    """The rows of a file, or of one split's files in a folder; `patterns` are a known set's file names."""
    require(path)
    if path.is_file():
        return Rows((path,), _columns((path,), path.parent), path.parent)
    files = _problem_files(path, split) or _split_files(path, split, config, patterns)
    return Rows(files, _columns(files, path), path)


def require(path: Path) -> None:
    """Raise a UserError unless `path` is a folder or a file that can be read."""
    if not path.exists():
        raise UserError(
            f"{path} does not exist: give a parquet, Arrow, JSONL, JSON or CSV file, or a folder of them."
        )
    if path.is_file() and path.suffix not in SUFFIXES:
        raise UserError(f"{path.name} is not a data file: {', '.join(SUFFIXES)} files can be read.")


def split_of(path: Path) -> str | None:
    """The split that a file or folder is named after, or None."""
    stem = path.stem if path.is_file() else path.name
    return next(
        (split for split in SPLITS if stem == split or stem.startswith((f"{split}-", f"{split}."))), None
    )


def named_splits(path: Path) -> set[str]:
    """The splits that a folder has files for, by the names of files and folders; a single file has none."""
    if not path.is_dir():
        return set()
    files = [file for suffix in SUFFIXES for file in path.glob(f"**/*{suffix}") if file.name not in _NO_DATA]
    inside = {part for file in files for part in file.relative_to(path).parts[:-1] if part in SPLITS}
    return inside | {split for file in files if (split := split_of(file))}


def _problem_files(folder: Path, split: str | None) -> tuple[Path, ...]:
    """InterGPS's files, SPLIT/ID/data.json or ID/data.json, by number; empty for any other folder."""
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
    """The files that match the patterns or the split's name; all files if none is named after a split."""
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
                f"{folder} has no file for split {split!r} but has {names}: name one of these files instead."
            )
        return tuple(chosen or files)
    raise UserError(f"{folder} contains no {', '.join(SUFFIXES)} file and no InterGPS problem folders.")


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
        try:
            for batch in _arrow(file):
                yield from _batch_rows(batch)
        except (pa.ArrowException, OSError) as broken:
            raise UserError(f"{file} is damaged ({broken}): save the data set again.") from broken
    elif file.suffix == ".jsonl":
        yield from _read_jsonl(file)
    elif file.suffix == ".csv":
        yield from _read_csv(file)
    elif file.name == _PROBLEM_FILE:
        yield {**_load_json(file), "folder": str(file.parent.relative_to(root))}, ""
    else:
        yield from _read_json(file)


def _read_parquet(file: Path) -> Iterator[tuple[dict[str, Any] | None, str]]:
    with _parquet(file) as table:
        try:
            for batch in table.iter_batches(batch_size=_BATCH):
                yield from _batch_rows(batch)
        except (pa.ArrowException, OSError) as broken:
            raise UserError(f"{file} is damaged ({broken}): download it again.") from broken


def _batch_rows(batch: pa.RecordBatch) -> list[tuple[dict[str, Any] | None, str]]:
    """The rows of a batch; a row with text that is not UTF-8 is bad."""
    try:
        return [(values, "") for values in batch.to_pylist()]
    except UnicodeDecodeError:
        if len(batch) == 1:
            return [(None, "text is not UTF-8")]
        return [row for place in range(len(batch)) for row in _batch_rows(batch.slice(place, 1))]


def _parquet(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as broken:
        raise UserError(f"{file} is not a readable parquet file ({broken}): download it again.") from broken


def _arrow(file: Path) -> pa.ipc.RecordBatchStreamReader:
    try:
        return pa.ipc.open_stream(pa.memory_map(str(file)))
    except (pa.ArrowException, OSError) as broken:
        raise UserError(
            f"{file} is not a readable Arrow stream ({broken}): save the data set again."
        ) from broken


def _read_jsonl(file: Path) -> Iterator[tuple[dict[str, Any] | None, str]]:
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (
                ValueError,
                RecursionError,
            ):  # ValueError: not JSON, or an integer of thousands of digits.
                yield None, "line is not JSON"
                continue
            yield (values, "") if isinstance(values, dict) else (None, "line is not a JSON object")


def _count(file: Path, root: Path) -> int:
    if file.suffix == ".parquet":
        with _parquet(file) as table:
            return table.metadata.num_rows
    if file.suffix == ".arrow":
        return sum(batch.num_rows for batch in _arrow(file))
    return sum(1 for _ in _read(file, root))


def _read_csv(file: Path) -> Iterator[tuple[dict[str, Any] | None, str]]:
    """Rows of a CSV file with a header; an empty cell is null, and a cell with a JSON list or object is that."""
    csv.field_size_limit(min(sys.maxsize, MAX_CELL))
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        try:
            for row in csv.DictReader(lines, restkey=""):
                is_whole = "" not in row and None not in row.values()
                yield (
                    ({name: _cell(text) for name, text in row.items()}, "")
                    if is_whole
                    else (None, "line does not have as many cells as the header")
                )
        except csv.Error as broken:
            raise UserError(f"{file} is not a readable CSV file ({broken}).") from broken


def _cell(text: str) -> Any:
    if text == "":
        return None
    if text[0] not in "[{":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _read_json(file: Path) -> Iterator[tuple[dict[str, Any] | None, str]]:
    content = _load_json(file)
    items = list(content.values()) if isinstance(content, dict) else content
    if not isinstance(items, list):
        raise UserError(
            f"{file} contains {type(content).__name__}; expected a list of rows or an object of rows."
        )
    for values in items:
        yield (values, "") if isinstance(values, dict) else (None, "entry is not a JSON object")


def _load_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8", errors="replace"))
    except (ValueError, RecursionError) as broken:
        raise UserError(f"{file} is not JSON ({broken}).") from broken


@dataclass(frozen=True)
class HubFiles:
    """A hub data set in the local cache."""

    folder: Path
    boundary: Path
    """The cache folder of the repository, which a snapshot's files link into."""


def download(
    hub_id: str, split: str, config: str | None, revision: str | None, files: tuple[str, ...] = ()
) -> HubFiles:
    """Download the files of one split, or take them from the cache; every failure is a UserError with what to do."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    patterns = list(files) or split_patterns(split, config)
    includes = "".join(f' --include "{pattern}"' for pattern in files)
    command = f"hf download {hub_id} --repo-type dataset{includes} --local-dir DIR"
    try:
        folder = snapshot_download(
            hub_id,
            repo_type="dataset",
            revision=revision,
            allow_patterns=patterns,
            local_files_only=not hub.is_reachable(),
        )
    except GatedRepoError as gated:
        raise UserError(
            f"{hub_id} is gated: accept its terms at https://huggingface.co/datasets/{hub_id}, log in with "
            "`hf auth login` (or set HF_TOKEN), and try again."
        ) from gated
    except (RepositoryNotFoundError, HFValidationError) as unknown:
        raise UserError(
            f"there is no data set {hub_id!r} on the hub: check the spelling, log in with `hf auth login` "
            "if it is private, or name a local copy with --set data.path=DIR."
        ) from unknown
    except RevisionNotFoundError as unknown:
        raise UserError(f"{hub_id} has no revision {revision!r}: correct or omit it.") from unknown
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as unreachable:
        raise UserError(
            f"{hub_id} is not in the local cache and the hub cannot be reached: run `{command}` on a machine "
            "with network access and name the folder with --set data.path=DIR."
        ) from unreachable
    if not any(path.is_file() for path in Path(folder).rglob("*")):
        raise UserError(
            f"{hub_id} has no file that matches {', '.join(patterns)}: choose another with --set data.split=NAME, "
            f"or run `{command}` and name the folder with --set data.path=DIR."
        )
    return HubFiles(Path(folder), Path(folder).parent.parent)


def split_patterns(split: str, config: str | None) -> list[str]:
    """The usual names of a split's parquet and JSONL files."""
    home = f"{config}/*" if config else "*"
    return [
        f"{home}{split}-*.parquet",
        f"{home}{split}.parquet",
        f"{home}{split}*/*.parquet",
        f"{home}{split}.jsonl",
        f"{home}{split}.csv",
    ]
