"""What any command reads of a run's checkpoints: checksums, where they come from, and leases against their deletion.

`runs/checkpoint.py` writes them. `checksums.json` lists every file with size and sha256; `origin.json` says which run
and step a checkpoint belongs to, with which configuration, and which rows the run had written. The checkpoints of
earlier versions have no `origin.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pivot import locks
from pivot.durable import DamagedFile, finished_checkpoints, hash_files, read_json, write_json
from pivot.errors import UserError

MANIFEST = "checksums.json"
ORIGIN = "origin.json"
MODEL = "model"
_verified: set[tuple[Any, ...]] = set()
"""Files whose checksum this process has found right, by name, time and size."""

Rows = dict[str, list[list[int]]]
"""File -> (step, crc32) of each of its rows, in order."""


@dataclass(frozen=True)
class Origin:
    """Where a checkpoint comes from."""

    run: str
    """The run's id, as in run.json."""
    step: int
    config: dict[str, Any]
    """The content of the run's config.json."""
    rows: Rows

    def write(self, checkpoint: Path) -> None:
        write_json(checkpoint / ORIGIN, {"version": 1, **asdict(self)})


def read_origin(checkpoint: Path) -> Origin | None:
    """None for the checkpoints of earlier versions."""
    if not (checkpoint / ORIGIN).is_file():
        return None
    advice = "use another checkpoint"
    stored = read_json(checkpoint / ORIGIN, advice)
    try:
        return Origin(stored["run"], stored["step"], dict(stored["config"]), dict(stored["rows"]))
    except (KeyError, TypeError, ValueError) as damage:
        raise DamagedFile(
            f"{checkpoint / ORIGIN} is damaged (its fields are not those of a checkpoint); {advice}."
        ) from damage


def find_damage(checkpoint: Path, *, verify: bool = True, parts: tuple[str, ...] = ()) -> str | None:
    """What is wrong with a checkpoint, e.g. `model/model.safetensors: checksum differs`; None if nothing.

    Args:
        verify: False checks names and sizes only.
        parts: check only these files and folders, such as `model`, besides where the checkpoint comes from.
    """
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_bytes())
        expected = {
            _inside(checkpoint, name): (entry["size"], entry["sha256"])
            for name, entry in manifest["files"].items()
            if not parts or name.split("/")[0] in (*parts, ORIGIN)
        }
    except FileNotFoundError:
        return f"{MANIFEST}: missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST}: unreadable"
    unlisted = _find_unlisted(checkpoint, manifest["files"], parts)
    if unlisted:
        return f"{unlisted}: not in {MANIFEST}"
    for path, (size, _) in expected.items():
        name = path.relative_to(checkpoint)
        if not path.is_file():
            return f"{name}: missing"
        if path.stat().st_size != size:
            return f"{name}: {path.stat().st_size} bytes instead of {size}"
    if verify:
        _verify({path: digest for path, (_, digest) in expected.items()})
        for path, (_, digest) in expected.items():
            if _key(path, digest) not in _verified:
                return f"{path.relative_to(checkpoint)}: checksum differs"
    return _find_misplacement(checkpoint, manifest.get("step"))


def _find_unlisted(checkpoint: Path, listed: dict[str, Any], parts: tuple[str, ...]) -> str | None:
    """A file of weights or settings that has no checksum."""
    names = (path.relative_to(checkpoint) for path in checkpoint.rglob("*") if path.is_file())
    return next(
        (
            name.as_posix()
            for name in sorted(names)
            if name.suffix in (".safetensors", ".json") and (not parts or name.parts[0] in parts)
            if name.as_posix() not in (*listed, MANIFEST)
        ),
        None,
    )


def _find_misplacement(checkpoint: Path, step: Any) -> str | None:
    """A checkpoint under another step's name, or of another run."""
    named = re.fullmatch(r"step-(\d+)", checkpoint.name)
    if named and step is not None and step != int(named[1]):
        return f"it is the checkpoint of step {step} under another name"
    try:
        origin = read_origin(checkpoint)
        known = read_json(checkpoint.parent.parent / "run.json", "").get("id") if origin else None
    except DamagedFile:
        return None  # run.json is damaged; the run writes a new one
    if origin and known and origin.run != known:
        return f"it belongs to another run, {origin.run}"
    return None


def _verify(expected: dict[Path, str]) -> None:
    """Remember the files that have the expected checksums; each file is read once per process, several at a time."""
    keys = {path: _key(path, digest) for path, digest in expected.items()}
    found = hash_files([path for path, key in keys.items() if key not in _verified])
    _verified.update(keys[path] for path, digest in found.items() if digest == expected[path])


def _key(path: Path, digest: str) -> tuple[Any, ...]:
    status = path.stat()
    return (
        str(path.absolute()),
        digest,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _inside(folder: Path, name: str) -> Path:
    """The path of a manifest's entry, which must not lead out of the checkpoint."""
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise ValueError(f"{name!r} leads out of {folder}")
    return folder / name


def checkpoint_of(model: Path) -> Path | None:
    """The checkpoint that a model's folder is part of, by its checksums.json or its place in a run; None elsewhere."""
    step = model.absolute().parent
    is_part = model.name == MODEL and (
        (step / MANIFEST).exists() or (step.parent.name == "checkpoints" and step.name.startswith("step-"))
    )
    return step if is_part else None


def check_model(model: Path) -> None:
    """Raise a UserError if `model` is part of a checkpoint and its files are not those that were saved."""
    checkpoint = checkpoint_of(model)
    damage = None if checkpoint is None else find_damage(checkpoint, parts=(MODEL,))
    if checkpoint is None or damage is None:
        return
    others = [path for _, path in finished_checkpoints(checkpoint.parent.parent) if path != checkpoint]
    usable = next((path for path in others if find_damage(path, parts=(MODEL,)) is None), None)
    advice = "" if usable is None else f" or use {usable}"
    raise UserError(f"the checkpoint {checkpoint} is damaged ({damage}); restore it{advice}.")


@contextmanager
def lease(model: Path) -> Iterator[None]:
    """Keep the checkpoint that `model` is part of from being deleted, by this or another process, during the block.

    The lease ends with the process. Elsewhere it has no effect.
    """
    checkpoint = checkpoint_of(model)
    if checkpoint is None or not (checkpoint / MANIFEST).is_file():
        yield
        return
    try:
        descriptor = locks.acquire(checkpoint / MANIFEST, shared=True, wait=True)
    except FileNotFoundError:
        raise UserError(
            f"{checkpoint} was deleted by its run, which keeps only its newest checkpoints; try again."
        ) from None
    assert descriptor is not None, "waited for"
    try:
        yield
    finally:
        locks.release(descriptor)


def read_config(run: Path) -> tuple[dict[str, Any], str | None]:
    """A run's configuration; if its config.json is damaged, that of its newest checkpoint, and a sentence about it."""
    try:
        return read_json(run / "config.json", "restore it from a copy"), None
    except DamagedFile as damage:
        for _, checkpoint in finished_checkpoints(run):
            origin = read_origin(checkpoint) if find_damage(checkpoint, parts=(ORIGIN,)) is None else None
            if origin:
                what = str(damage).partition(";")[0]
                return origin.config, f"{what}; the configuration comes from {checkpoint.name}"
        raise
