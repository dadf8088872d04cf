"""A run's folder: one trainer at a time, rows that are appended, files that are replaced as a whole."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from pivot import locks
from pivot.checkpoint_reader import Rows, find_damage, read_config, read_origin
from pivot.durable import (
    DamagedFile,
    append_bytes,
    disk_errors,
    finished_checkpoints,
    read_json,
    remove_unfinished,
    write_json,
)
from pivot.errors import UserError
from pivot.jsonl import encode_row, read_rows
from pivot.runs.history import FILES, METRICS, describe_loss, read_found, record, settle
from pivot.terminal import warn


class RunFolder:
    """The files of docs/run_folder.md except the checkpoints, under a lock that ends with the process.

    Example:
        with RunFolder.create(Path("runs/x")) as run:
            run.write_config(config)
            run.append_metrics({"step": 1, "loss/total": 0.3})
    """

    def __init__(self, path: Path, *, sync: bool = True) -> None:
        self.path = path
        self.metrics_path = path / METRICS
        self.rows: Rows = {name: [] for name in FILES}
        """(step, crc32) of every row that the run has written; `settle_rows` sets it for a run that continues."""
        self._sync = sync
        self._lock = _acquire(path)
        remove_unfinished(path, path / "eval", *path.glob("checkpoints/step-*/model"))

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
        require_run(path)
        return cls(path, sync=sync)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the resolved configuration."""
        write_json(self.path / "config.json", dict(config))

    def read_config(self) -> dict[str, Any]:
        """The resolved configuration; a damaged file is restored from the newest checkpoint."""
        config, note = read_config(self.path)
        if note:
            warn(f"{note}, and the file is restored")
            self.write_config(config)
        return config

    def extend(self, length: Mapping[str, int | None]) -> None:
        """Set `steps` or `max_responses` of `train`: they may change without being taken for damage."""
        config = self.read_config()
        self.write_config({**config, "train": {**config["train"], **length}})

    @property
    def id(self) -> str:
        """The run's id: that of run.json, or of a checkpoint if run.json is damaged; a new one for a new run."""
        known = self.status().get("id")
        if known is None:
            good = [
                path for _, path in finished_checkpoints(self.path) if find_damage(path, verify=False) is None
            ]
            origins = [origin for origin in map(read_origin, good) if origin]
            known = origins[0].run if origins else uuid.uuid4().hex
            self.update_status(id=known)
        return known

    def status(self) -> dict[str, Any]:
        """The content of run.json; nothing if it is missing or damaged."""
        return read_status(self.path)

    def update_status(self, **fields: Any) -> None:
        """Set fields of `run.json`, e.g. `status="stopped", reason="SIGTERM"`; the others stay the same."""
        write_json(self.path / "run.json", {**self.status(), **fields})

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add a step's row; non-finite values become null and are listed under `nonfinite`."""
        self._append(METRICS, [row])

    def append_rollouts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add a step's sampled groups in one write."""
        self._append("rollouts.jsonl", rows)

    def append_nonfinite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the updates that a step skipped, with the ids of their prompts."""
        self._append("nonfinite.jsonl", rows)

    def _append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        new = [(row["step"], encode_row(row)) for row in rows]
        append_bytes(self.path / name, b"".join(raw for _, raw in new), sync=self._sync)
        self.rows[name] += [record(step, raw) for step, raw in new]

    def read_metrics(self) -> list[dict[str, Any]]:
        return read_rows(self.metrics_path)

    def find_loss(self, step: int, recorded: Rows | None) -> str | None:
        """Which rows up to `step` a checkpoint recorded and the files do not hold once and in order.

        None if there are none. `recorded` is None for a checkpoint of an earlier version, which recorded nothing.
        """
        losses = {
            name: describe_loss(read_found(self.path / name, step), _of(recorded, name), step)
            for name in FILES
        }
        return "; ".join(f"{name}: {loss}" for name, loss in losses.items() if loss) or None

    def settle_rows(self, step: int, recorded: Rows | None = None) -> int:
        """Remove the rows of steps after `step`, which a resumed run writes again; returns how many.

        They move to `metrics.dropped.jsonl` and the like, together with unreadable lines; an unfinished last line is
        dropped. Rows that are repeated or out of order are repaired.
        """
        num_removed = 0
        for name in FILES:
            found = read_found(self.path / name, step)
            known = _of(recorded, name)
            damaged = describe_loss(found, known, step) is not None
            self.rows[name] = settle(found, known, damaged=damaged)
            num_removed += len(found.rest)
        return num_removed

    def close(self) -> None:
        """Release the lock."""
        locks.release(self._lock)

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
    return (path / METRICS).exists() or (path / "checkpoints").exists()


def require_run(path: Path) -> None:
    """Raise a UserError unless `path` holds a run."""
    if not holds_run(path) and not has_progress(path):
        raise UserError(f"{path} holds no run: there is no config.json in it.")


def read_status(run: Path) -> dict[str, Any]:
    """The content of a run's run.json; nothing, and a sentence on standard error, if it is damaged."""
    if not (run / "run.json").exists():
        return {}
    try:
        return read_json(
            run / "run.json", "it is rewritten, and the run's status is taken from its checkpoints"
        )
    except DamagedFile as damage:
        warn(str(damage))
        return {}


def _of(recorded: Rows | None, name: str) -> list[list[int]] | None:
    return None if recorded is None else recorded.get(name, [])


def _acquire(path: Path) -> int:
    """Lock `run.lock`; the system frees it when the process ends, however it ends."""
    file = path / "run.lock"
    with disk_errors(path):
        file.touch()
        descriptor = locks.acquire(file)
        if descriptor is None:
            holder = file.read_bytes()[:32].decode("ascii", "replace").strip()
            raise UserError(
                f"{path} is in use by another trainer (process {holder}); wait or choose another folder."
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
