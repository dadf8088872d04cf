"""Where a trainer can be made to kill itself with SIGKILL: every place at which something half done could be left.

A point acts from a given step of its process on: the second of a new run, which so has a checkpoint, the first of a
resumed one.
"""

import functools
import gc
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pivot import durable
from pivot.engines import local
from pivot.engines.optimizer import MasterAdamW
from pivot.engines.scoring import Scorer
from pivot.experience import storage
from pivot.rewards.judge import VerifierJudge
from pivot.runs import checkpoint
from pivot.runs import run as run_module
from pivot.runs.folder import RunFolder
from pivot.runs.stopping import Stopping
from pivot.training import trainer

_steps_begun = 0


def kill_at(point: str, step: int) -> None:
    """Die at one point of `POINTS`, in the process's `step`-th step or later."""
    _arm(point, step, _die)


def hang_at(point: str, step: int) -> None:
    """Stay at one point of `POINTS` for an hour; only a signal leads out of there."""
    _arm(point, step, _hang)


def pause_at(point: str, step: int) -> None:
    """Stay at one point of `POINTS` until a signal has come, then go on."""
    _arm(point, step, _pause)


def _arm(point: str, step: int, act: Callable[[str], None]) -> None:
    begin = trainer.Trainer.step

    def counted(self):
        global _steps_begun
        _steps_begun += 1
        return begin(self)

    trainer.Trainer.step = counted
    POINTS[point](lambda: act(point) if _steps_begun >= step else None)


def _die(point: str) -> None:
    os.write(2, f"killed at: {point}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)


def _hang(point: str) -> None:
    os.write(2, f"hanging at: {point}\n".encode())
    time.sleep(3600)


def _pause(point: str) -> None:
    (stopping,) = [found for found in gc.get_objects() if isinstance(found, Stopping)]
    os.write(2, f"pausing at: {point}\n".encode())
    while not stopping:
        time.sleep(0.01)


Die = Callable[[], None]


def before(owner: Any, name: str, where: Callable[..., bool] = lambda *args, **kwargs: True):
    """Die when `owner.name` is called with such arguments."""

    def arm(die: Die) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args, **kwargs):
            if where(*args, **kwargs):
                die()
            return original(*args, **kwargs)

        setattr(owner, name, wrapped)

    return arm


def after(owner: Any, name: str, where: Callable[..., bool] = lambda *args, **kwargs: True):
    """Die when `owner.name` has done its work."""

    def arm(die: Die) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args, **kwargs):
            result = original(*args, **kwargs)
            if where(*args, **kwargs):
                die()
            return result

        setattr(owner, name, wrapped)

    return arm


def half_an_append(name: str):
    """Die when half of a line's bytes are in the file."""

    def arm(die: Die) -> None:
        original = durable._write_all

        def wrapped(descriptor: int, data: bytes) -> None:
            if os.readlink(f"/proc/self/fd/{descriptor}").endswith(name):
                original(descriptor, data[: len(data) // 2])
                die()
                data = data[len(data) // 2 :]
            original(descriptor, data)

        durable._write_all = wrapped

    return arm


def half_a_deletion(die: Die) -> None:
    """Die when an old checkpoint has lost its first file."""
    original = shutil.rmtree

    def wrapped(path, *args, **kwargs):
        if Path(path).name.startswith(".old-") and Path(path).exists():
            next(file for file in Path(path).rglob("*") if file.is_file()).unlink()
            die()
        return original(path, *args, **kwargs)

    checkpoint.shutil.rmtree = wrapped


def _is_step(path: Path, *_: object) -> bool:
    return path.name.startswith(".tmp-step-")


def _ends_with(name: str) -> Callable[..., bool]:
    return lambda source, target: str(target).endswith(name)


POINTS: dict[str, Callable[[Die], None]] = {
    "rollout": after(local.LocalEngine, "sample"),
    "verify": after(VerifierJudge, "judge"),
    "scoring": before(Scorer, "_forward"),
    "update, before the weights move": before(MasterAdamW, "step"),
    "update, between two minibatches": after(local.LocalEngine, "update"),
    "metrics, half a line": half_an_append("metrics.jsonl"),
    "rollouts, half a line": half_an_append("rollouts.jsonl"),
    "metrics written, nothing saved": after(RunFolder, "append_metrics"),
    "checkpoint, model written": after(local, "save_policy"),
    "checkpoint, optimizer written": after(local, "save_tensors"),
    "buffer, file not yet renamed": before(os, "replace", _ends_with(storage.FILE_NAME)),
    "buffer, renamed": after(os, "replace", _ends_with(storage.FILE_NAME)),
    "checkpoint, before its rename": before(Path, "rename", _is_step),
    "checkpoint, after its rename": after(Path, "rename", _is_step),
    "old checkpoint, half deleted": half_a_deletion,
    "status, before its rename": before(os, "replace", _ends_with("run.json")),
    "step finished": after(run_module.Run, "_step"),
}
"""Name -> what arms it."""
