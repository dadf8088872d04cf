"""Metrics for TensorBoard and Weights & Biases, besides metrics.jsonl, through their own libraries."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from pivot.config.loading import to_dict
from pivot.config.sections import Config
from pivot.errors import UserError


class Tracker(Protocol):
    """Receives the metrics of each step."""

    def write(self, step: int, metrics: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


def open_trackers(run: Path, config: Config) -> list[Tracker]:
    """The trackers that the `log` section asks for; a resumed run continues in the same event folder and W&B run."""
    return [tracker for open_one in TRACKERS.values() if (tracker := open_one(run, config)) is not None]


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the metrics, without the step."""
    return {
        key: float(value)
        for key, value in metrics.items()
        if isinstance(value, int | float) and key != "step"
    }


class TensorBoardTracker:
    """Event files in the run's folder; `tensorboard --logdir RUN` shows them."""

    def __init__(self, folder: Path):
        _require("tensorboard", "log.tensorboard")
        self._writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(folder))

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        for key, value in scalars(metrics).items():
            self._writer.add_scalar(key, value, global_step=step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """A W&B run named after the run's folder; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, project: str, run: Path, config: Config):
        wandb = _require("wandb", "log.wandb")
        self._run = wandb.init(
            project=project,
            name=run.name,
            dir=str(run),
            id=_run_id(run),
            resume="allow",
            config=to_dict(config),
        )

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._run.log(scalars(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def _tensorboard(run: Path, config: Config) -> Tracker | None:
    return TensorBoardTracker(run / "tensorboard") if config.log.tensorboard else None


def _wandb(run: Path, config: Config) -> Tracker | None:
    return None if config.log.wandb is None else WandbTracker(config.log.wandb, run, config)


OpenTracker = Callable[[Path, Config], Tracker | None]
"""From a run's folder and configuration to a tracker; None if the configuration does not ask for one."""
TRACKERS: dict[str, OpenTracker] = {"tensorboard": _tensorboard, "wandb": _wandb}


def register_tracker(name: str, open_tracker: OpenTracker) -> None:
    """Open this tracker too in every run of this process."""
    TRACKERS[name] = open_tracker


def _run_id(run: Path) -> str:
    """The id of the folder's W&B run, so that resuming continues it."""
    file = run / "wandb_id"
    if not file.exists():
        file.write_text(f"{run.name[:40]}-{os.urandom(4).hex()}\n", encoding="utf-8")
    return file.read_text(encoding="utf-8").strip()


def _require(library: str, setting: str) -> ModuleType:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise UserError(
            f"{setting} needs {library}, which is not installed: pip install 'pivot-rl[loggers]'"
        ) from error
