"""Files that survive a crash: written completely or not at all. Standard library only.

A file appears under its name only once its bytes are on disk: write a temporary file next to it, fsync it, rename it,
fsync the folder. Concurrent readers see the old file or the new one, never a part of either.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pivot.errors import UserError

HASHERS = 8
"""Files that are hashed at once."""
_ADVICE = {
    errno.ENOSPC: "free some space and try again",
    errno.EDQUOT: "raise the quota or free some space and try again",
    errno.EROFS: "choose a folder on a writable disk",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.EFBIG: "raise the limit on file sizes",
    errno.EIO: "check the disk",
}


@contextmanager
def disk_errors(path: Path, *also: type[Exception]) -> Iterator[None]:
    """Turn a failed write to `path` into a UserError of one sentence.

    Args:
        also: exceptions by which a library reports a failed write instead of OSError (safetensors does).
    """
    try:
        yield
    except (OSError, *also) as refusal:
        number = refusal.errno if isinstance(refusal, OSError) else _error_number(str(refusal))
        reason = os.strerror(number).lower() if number else str(refusal)
        advice = _ADVICE.get(number or 0, "check the folder and try again")
        raise UserError(f"cannot write {path}: {reason}; {advice}.") from refusal


def _error_number(message: str) -> int | None:
    """The error number at the end of a Rust library's message."""
    match = re.search(r"\(os error (\d+)\)", message)
    return int(match[1]) if match else None


@contextmanager
def replacing(path: Path, *also: type[Exception]) -> Iterator[Path]:
    """A temporary path next to `path`, renamed to `path` when the block ends.

    If the block raises, `path` is unchanged and the temporary file is removed. `also` as for `disk_errors`.
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with disk_errors(path, *also):
        _remove_leftovers(path)
        try:
            yield temporary
            sync_file(temporary)
            os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary files of `path` whose writers were killed."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.tmp-*"):
        if not _is_being_written(leftover):
            leftover.unlink(missing_ok=True)


def _is_being_written(temporary: Path) -> bool:
    """Whether the process in a temporary file's name is running; true of names that `replacing` does not make."""
    pid = temporary.name.rpartition("-")[2]
    if not pid.isdecimal():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def remove_unfinished(*folders: Path) -> None:
    """Remove the temporary files that killed processes left in `folders`; those of other running processes stay.

    For the start of a process, which has none of its own: in a container its predecessor had the same number.
    """
    own = f".tmp-{os.getpid()}"
    for folder in folders:
        for leftover in folder.glob(".*.tmp-*"):
            if leftover.is_file() and (leftover.name.endswith(own) or not _is_being_written(leftover)):
                leftover.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the content of `path` atomically."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Replace the content of `path` by strict JSON; NaN raises ValueError."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


class DamagedFile(UserError):
    """A file that should hold a JSON object and does not."""


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """The JSON object in `path`; anything else is a DamagedFile of one sentence that ends with `advice`."""
    try:
        data = path.read_bytes()
    except OSError as refusal:
        raise DamagedFile(f"{path} cannot be read ({_reason(refusal)}); {advice}.") from refusal
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as damage:
        blank = (
            "it is empty" if not data.strip() else "it holds zeros only" if not data.strip(b"\0") else None
        )
        raise DamagedFile(f"{path} is damaged ({blank or 'it is not JSON'}); {advice}.") from damage
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} is damaged (it holds no JSON object); {advice}.")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _reason(refusal: OSError) -> str:
    return os.strerror(refusal.errno).lower() if refusal.errno else str(refusal)


def append_bytes(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Append `data` to `path`; if that fails, the file is unchanged.

    A crash in the middle can leave a part of `data`, so readers drop an unfinished last line.
    """
    with disk_errors(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            try:
                _write_all(descriptor, data)
                if sync:
                    os.fsync(descriptor)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_file(path: Path) -> None:
    """Wait until the bytes of `path` are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Wait until the names in the folder are on disk."""
    try:
        sync_file(path)
    except OSError as refusal:
        # Some network and FUSE file systems cannot fsync folders; they order renames themselves.
        if refusal.errno != errno.EINVAL:
            raise


def sync_tree(folder: Path) -> None:
    """Wait until every file and name below `folder` is on disk."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync_file(Path(parent, name))
        sync_folder(Path(parent))


def finished_checkpoints(run: Path) -> list[tuple[int, Path]]:
    """(N, `checkpoints/step-N`) of a run's folder, newest first. Other names there are unfinished or set aside."""
    paths = (run / "checkpoints").iterdir() if (run / "checkpoints").is_dir() else ()
    found = [(int(match[1]), path) for path in paths if (match := re.fullmatch(r"step-(\d+)", path.name))]
    return sorted(found, reverse=True)


def sha256(path: Path) -> str:
    """The sha256 checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_files(paths: Sequence[Path]) -> dict[Path, str]:
    """The sha256 checksums of several files, computed in parallel."""
    with ThreadPoolExecutor(HASHERS) as pool:
        return dict(zip(paths, pool.map(sha256, paths), strict=True))
