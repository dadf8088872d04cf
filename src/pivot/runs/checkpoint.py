"""Checkpoints: complete or absent, verified by checksums, and never deleted before their successor exists.

`checkpoints/step-N/` appears by one rename, after every byte of it is on the disk. `checkpoint_reader` verifies it.
Names that start with a dot are being written or deleted; `step-N.aside` is a checkpoint that a resumed run did not
continue from. A checkpoint that a process holds a lease on is deleted later. Nothing in a checkpoint is pickled by this
project.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from pivot import locks
from pivot.checkpoint_reader import MANIFEST, find_damage
from pivot.durable import disk_errors, finished_checkpoints, hash_files, sync_folder, sync_tree, write_json
from pivot.engines.saving import Saving, in_background
from pivot.errors import UserError
from pivot.experience import ExperienceBuffer, GroupStore, storage

if TYPE_CHECKING:
    from pivot.training.trainer import Trainer

STATE = "state.json"
VERSION = 1
"""Of state.json."""


@dataclass(frozen=True)
class Boundary:
    """What the next step depends on besides weights and optimizer, as it is between two steps."""

    step: int
    state: dict[str, Any]
    buffer: ExperienceBuffer
    store: GroupStore | None = None

    @classmethod
    def of(cls, trainer: Trainer) -> Boundary:
        sources = trainer.sources
        state = {
            "version": VERSION,
            "step": trainer.finished_steps,
            "stream": sources.stream.state_dict(),
            "gate": trainer.gate.state_dict(),
            "keep_rates": sources.keep_rates.state_dict(),
            "budgets": trainer.engine.budgets,
            "sampled": asdict(trainer.sampled),
        }
        store = None if trainer.store is None else trainer.store.snapshot()
        return cls(trainer.finished_steps, state, sources.buffer.snapshot(), store)


def save_state(trainer: Trainer, folder: Path, boundary: Boundary | None = None) -> Saving | None:
    """Everything that the next step depends on. All randomness but the buffer's is derived from (seed, step).

    Args:
        boundary: of the last finished step, while the next one has changed no weight yet; None: as it is now.

    Returns:
        What to wait for if the engine goes on writing.
    """
    boundary = boundary or Boundary.of(trainer)
    saving = trainer.engine.save(folder)
    boundary.buffer.save(folder / "buffer")
    if boundary.store is not None:
        boundary.store.save(folder / "groups")
    write_json(folder / STATE, boundary.state)
    return saving


def load_state(trainer: Trainer, folder: Path, history: Sequence[Mapping[str, Any]] = ()) -> None:
    """Continue from what `save_state` wrote; `history` are the run's metrics, for what older versions did not save."""
    state = json.loads((folder / STATE).read_bytes())
    if state.get("version") != VERSION:
        raise UserError(
            f"{folder} was written in state format {state.get('version')}; this pivot reads {VERSION}"
        )
    trainer.sources.buffer.load_state_dict(storage.load_state(folder / "buffer"))
    if trainer.store is not None:
        trainer.store.load(folder / "groups")
    trainer.sources.stream.load_state_dict(state["stream"])
    trainer.gate.load_state_dict(state["gate"])
    if "keep_rates" in state:  # absent in the first version's checkpoints, as are the budgets
        trainer.sources.keep_rates.load_state_dict(state["keep_rates"])
    trainer.engine.load(folder, state.get("budgets", {}))
    trainer.finished_steps = state["step"]
    groups, tokens = (sum(row.get(f"rollout/{name}", 0) for row in history) for name in ("groups", "tokens"))
    known = {"responses": groups * trainer.plan.responses, "tokens": tokens}
    trainer.sampled = replace(trainer.sampled, **state.get("sampled", known))


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder, as its name and manifest describe it."""

    path: Path
    step: int
    score: float | None
    """By which the best is kept, e.g. held-out accuracy; None if not measured."""


class CheckpointStore:
    """The checkpoints of one run: the last `keep_last` and the one with the best score.

    Reading needs no lock; `save`, `clean_leftovers` and `set_aside_after` are for the process that holds the run
    folder's lock.
    """

    def __init__(self, run_folder: Path, keep_last: int = 2) -> None:
        if keep_last < 1:
            raise ValueError(f"keep_last must be at least 1, got {keep_last}")
        self.folder = run_folder / "checkpoints"
        self.keep_last = keep_last

    def save(self, step: int, write: Callable[[Path], None], *, score: float | None = None) -> Checkpoint:
        """Let `write` fill a new folder, make it `step-N`, and only then delete what is no longer needed.

        If the disk is full or `write` raises, the checkpoints stay as they were. Saving a step again replaces its
        checkpoint.
        """
        return self.start_saving(step, write, score=score).result()

    def start_saving(
        self, step: int, write: Callable[[Path], Saving | None], *, score: float | None = None
    ) -> Future[Checkpoint]:
        """As `save`; where `write` returns something to wait for, the rest happens in a thread. One at a time."""
        temporary = self.folder / f".tmp-step-{step}-{os.getpid()}"
        with disk_errors(self.folder / f"step-{step}", SafetensorError), _removing(temporary):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            saving = write(temporary)
        if saving is not None:
            return in_background(lambda: self._commit(step, temporary, score, saving))
        done: Future[Checkpoint] = Future()
        done.set_result(self._commit(step, temporary, score, None))
        return done

    def _commit(self, step: int, temporary: Path, score: float | None, saving: Saving | None) -> Checkpoint:
        """Make a complete folder the checkpoint of its step."""
        target = self.folder / f"step-{step}"
        score = score if score is not None and math.isfinite(score) else None
        with disk_errors(target, SafetensorError), _removing(temporary):
            known = saving.wait() if saving is not None else {}
            _write_manifest(temporary, step, score, known)
            sync_tree(temporary)
            if target.exists():
                target.rename(self.folder / f".replaced-step-{step}")
            temporary.rename(target)
            sync_folder(self.folder)
        self.clean_leftovers()
        self._prune()
        return Checkpoint(target, step, score)

    def finished(self) -> list[Checkpoint]:
        """All complete checkpoints, newest first; their bytes are not verified."""
        found = finished_checkpoints(self.folder.parent)
        return [Checkpoint(path, step, _score(path)) for step, path in found]

    def latest_good(
        self, *, verify: bool = True, report: Callable[[str], None] = lambda sentence: None
    ) -> Checkpoint | None:
        """The newest checkpoint whose checksums hold; None if there is none.

        Args:
            verify: False checks names and sizes only.
            report: called with one sentence per damaged checkpoint that is passed over.
        """
        for checkpoint in self.finished():
            damage = find_damage(checkpoint.path, verify=verify)
            if damage is None:
                return checkpoint
            report(f"checkpoint {checkpoint.path.name} is damaged ({damage})")
        return None

    def set_aside_after(self, step: int) -> list[Path]:
        """Rename the checkpoints newer than `step`, good or damaged: a resumed run does not continue from them.

        They stay on the disk as `step-N.aside`.
        """
        newer = [checkpoint.path for checkpoint in self.finished() if checkpoint.step > step]
        with disk_errors(self.folder):
            return [_set_aside(path) for path in newer]

    def clean_leftovers(self) -> None:
        """Remove half-written and half-deleted checkpoints that a crash left.

        A checkpoint that was being replaced is restored if its successor is absent.
        """
        for path in self.folder.glob(".replaced-step-*"):
            target = self.folder / path.name.removeprefix(".replaced-")
            if not target.exists():
                with disk_errors(target):
                    path.rename(target)
        for pattern in (".tmp-step-*", ".old-step-*", ".replaced-step-*"):
            for path in self.folder.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)

    def _prune(self) -> None:
        checkpoints = self.finished()
        scored = [checkpoint for checkpoint in checkpoints if checkpoint.score is not None]
        best = max(scored, key=lambda checkpoint: (checkpoint.score, checkpoint.step), default=None)
        for checkpoint in checkpoints[self.keep_last :]:
            if checkpoint != best:
                with disk_errors(checkpoint.path):
                    _delete(checkpoint.path)


def _delete(checkpoint: Path) -> None:
    """Delete a checkpoint unless another process reads it now."""
    manifest, lock = checkpoint / MANIFEST, None
    if manifest.is_file():
        lock = locks.acquire(manifest)
        if lock is None:
            return
    try:
        # Renamed first: an interrupted deletion must not look like a damaged checkpoint.
        doomed = checkpoint.with_name(f".old-{checkpoint.name}")
        shutil.rmtree(doomed, ignore_errors=True)
        checkpoint.rename(doomed)
    finally:
        if lock is not None:
            locks.release(lock)
    shutil.rmtree(doomed, ignore_errors=True)


@contextmanager
def _removing(temporary: Path) -> Iterator[None]:
    """Remove a folder that is not completed."""
    try:
        yield
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_manifest(folder: Path, step: int, score: float | None, known: Mapping[str, str]) -> None:
    """`known`: checksums that were computed by those who wrote the files."""
    paths = {
        path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()
    }
    found = hash_files([path for name, path in paths.items() if name not in known])
    files = {
        name: {"size": path.stat().st_size, "sha256": known[name] if name in known else found[path]}
        for name, path in paths.items()
    }
    write_json(folder / MANIFEST, {"version": 1, "step": step, "score": score, "files": files})


def _score(checkpoint: Path) -> float | None:
    """From the manifest; None for a damaged one, so that it is never kept as the best."""
    try:
        score = json.loads((checkpoint / MANIFEST).read_bytes())["score"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return float(score) if isinstance(score, int | float) else None


def _set_aside(path: Path) -> Path:
    number, aside = 1, path.with_name(f"{path.name}.aside")
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.aside-{number}")
    return path.rename(aside)
