"""Metrics for TensorBoard and Weights & Biases, beside metrics.jsonl, through their own libraries."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from pivot.config.loading import to_dict
from pivot.config.sections import Config, LogConfig
from pivot.errors import UserError


class Sink(Protocol):
    """Takes the metrics of a step."""

    def write(self, step: int, metrics: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


def open_sinks(log: LogConfig, run_dir: Path, config: Config) -> list[Sink]:
    """The sinks that `log` asks for; a resumed run goes on in the same event folder and the same W&B run."""
    sinks: list[Sink] = []
    if log.tensorboard:
        sinks.append(TensorBoardSink(run_dir / "tensorboard"))
    if log.wandb is not None:
        sinks.append(WandbSink(log.wandb, run_dir, config))
    return sinks


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the metrics: lists, None, text and the step itself are left out."""
    return {
        key: float(value)
        for key, value in metrics.items()
        if isinstance(value, int | float) and key != "step"
    }


class TensorBoardSink:
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


class WandbSink:
    """A W&B run named after the run's folder; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, project: str, run_dir: Path, config: Config):
        wandb = _require("wandb", "log.wandb")
        self._run = wandb.init(
            project=project,
            name=run_dir.name,
            dir=str(run_dir),
            id=_run_id(run_dir),
            resume="allow",
            config=to_dict(config),
        )

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._run.log(scalars(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def _run_id(run_dir: Path) -> str:
    """The id that the run's folder was given when it was first logged, so that resuming continues it."""
    file = run_dir / "wandb_id"
    if not file.exists():
        file.write_text(f"{run_dir.name[:40]}-{os.urandom(4).hex()}\n", encoding="utf-8")
    return file.read_text(encoding="utf-8").strip()


def _require(library: str, setting: str) -> ModuleType:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise UserError(
            f"{setting} needs {library}, which is not installed: pip install 'pivot-rl[loggers]'"
        ) from error
