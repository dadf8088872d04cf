"""A run's folder: one trainer at a time, rows that are appended, files that are replaced as a whole."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from pivot.durable import append_bytes, disk_errors, remove_unfinished, replacing, write_json
from pivot.errors import UserError
from pivot.jsonl import encode_row, read_lines, read_rows

_held_locks: set[int] = set()
"""File descriptors of the locks that this process holds."""


def _release_after_fork() -> None:
    """A forked worker must not hold its parent's lock: it would outlive a killed trainer."""
    for descriptor in _held_locks:
        os.close(descriptor)
    _held_locks.clear()


os.register_at_fork(after_in_child=_release_after_fork)


class RunFolder:
    """The files of docs/run_folder.md except the checkpoints, under a lock that ends with the process.

    Example:
        with RunFolder.create(Path("runs/x")) as run:
            run.write_config(config)
            run.append_metrics({"step": 1, "loss/total": 0.3})
    """

    def __init__(self, path: Path, *, sync: bool = True) -> None:
        self.path = path
        self.metrics_path = path / "metrics.jsonl"
        self.rollouts_path = path / "rollouts.jsonl"
        self.nonfinite_path = path / "nonfinite.jsonl"
        self._sync = sync
        self._lock = _acquire(path)
        remove_unfinished(path)

    @classmethod
    def create(cls, path: Path, *, sync: bool = True) -> RunFolder:
        """A new run's folder; a folder with a run that has finished a step is refused.

        Args:
            sync: wait for the disk after every appended row. Without it a power failure, though not a killed process,
                may lose the last rows; the checkpoint that a run resumes from is never affected.
        """
        with disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        run = cls(path, sync=sync)
        if has_progress(path):
            run.close()
            raise UserError(
                f"{path} already holds a run; continue it with --resume {path} or choose another --out."
            )
        return run

    @classmethod
    def open(cls, path: Path, *, sync: bool = True) -> RunFolder:
        """The folder of a run that continues."""
        if not holds_run(path):
            raise UserError(f"{path} holds no run: there is no config.json in it.")
        return cls(path, sync=sync)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the resolved configuration."""
        write_json(self.path / "config.json", dict(config))

    def read_config(self) -> dict[str, Any]:
        return json.loads((self.path / "config.json").read_bytes())

    def update_status(self, **fields: Any) -> None:
        """Set fields of `run.json`, e.g. `status="stopped", reason="SIGTERM"`; the others stay the same."""
        write_json(self.path / "run.json", {**self.read_status(), **fields})

    def read_status(self) -> dict[str, Any]:
        """The fields of `run.json`; none before the run has started."""
        path = self.path / "run.json"
        return json.loads(path.read_bytes()) if path.exists() else {}

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add a step's row; non-finite values become null and are listed under `nonfinite`."""
        assert "step" in row, "a resumed run finds rows by their step"
        append_bytes(self.metrics_path, encode_row(row), sync=self._sync)

    def append_rollouts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add a step's sampled groups in one write."""
        append_bytes(self.rollouts_path, b"".join(map(encode_row, rows)), sync=self._sync)

    def append_nonfinite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the updates that a step skipped, with the ids of their prompts."""
        append_bytes(self.nonfinite_path, b"".join(map(encode_row, rows)), sync=self._sync)

    def read_metrics(self) -> list[dict[str, Any]]:
        return read_rows(self.metrics_path)

    def truncate_after(self, step: int) -> int:
        """Remove the rows of steps after `step`, which a resumed run writes again; returns how many.

        Files are replaced, never truncated in place, and only if there is something to remove. The rows move to
        `metrics.dropped.jsonl` and the like; an incomplete last line is dropped.
        """
        paths = (self.metrics_path, self.rollouts_path, self.nonfinite_path)
        return sum(_drop_after(path, step) for path in paths)

    def close(self) -> None:
        """Release the lock."""
        if self._lock in _held_locks:
            _held_locks.remove(self._lock)
            os.close(self._lock)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def holds_run(path: Path) -> bool:
    """Whether a run was ever started in `path`."""
    return (path / "config.json").is_file()


def has_progress(path: Path) -> bool:
    """Whether a run in `path` has finished a step."""
    return holds_run(path) and ((path / "metrics.jsonl").exists() or (path / "checkpoints").exists())


def _acquire(path: Path) -> int:
    """Lock `run.lock`; the system frees it when the process ends, however it ends."""
    with disk_errors(path):
        descriptor = os.open(path / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise UserError(
                f"{path} is in use by another trainer (process {holder}); wait or choose another folder."
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    _held_locks.add(descriptor)
    return descriptor


def _drop_after(path: Path, step: int) -> int:
    if not path.exists():
        return 0
    kept_bytes, dropped = 0, []
    for line in read_lines(path):
        if line.row["step"] > step:
            dropped.append(line.raw)
        else:
            kept_bytes += len(line.raw)
    if kept_bytes == path.stat().st_size:
        return 0
    # First the copy, then the replacement: a crash between them repeats rows there and loses none.
    append_bytes(path.with_name(f"{path.stem}.dropped.jsonl"), b"".join(dropped))
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.writelines(line.raw for line in read_lines(path) if line.row["step"] <= step)
    return len(dropped)
