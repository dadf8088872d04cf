"""Metrics and samples for TensorBoard, W&B, MLflow, SwanLab and trackio, besides the run's own files.

A tracker is a class with `write` and `close`, and a line in `TRACKERS`; with `write_samples` it also receives rollouts.
"""

from __future__ import annotations

import base64
import importlib
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from pivot.config.describe import spell
from pivot.config.loading import to_dict
from pivot.config.schema import all_fields
from pivot.config.sections import Config
from pivot.errors import UserError

COLUMNS = ("step", "prompt", "image", "question", "answer", "response", "correct", "advantage")
"""Of a table of samples."""


class Tracker(Protocol):
    """Receives the metrics of each step."""

    def write(self, step: int, metrics: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Sample:
    """A sampled response, as rollouts.jsonl has it."""

    prompt: str
    """Its id."""
    question: str
    answer: str
    response: str
    correct: bool
    advantage: float
    image: Image.Image | None
    """The first of the prompt's images."""

    def cells(self, step: int, image: Any) -> list[Any]:
        """A row of `COLUMNS`, with the image as the tracker wants it."""
        return [
            step, self.prompt, image, self.question, self.answer, self.response, self.correct, self.advantage,
        ]  # fmt: skip


@runtime_checkable
class SampleTracker(Protocol):
    """A tracker that shows samples too."""

    def write_samples(self, step: int, samples: Sequence[Sample]) -> None: ...


def open_trackers(run: Path, config: Config) -> list[Tracker]:
    """The trackers that the `log` section asks for; a resumed run continues where the tracker allows it."""
    return [tracker for open_one in TRACKERS.values() if (tracker := open_one(run, config)) is not None]


def samples_of(records: Sequence[Mapping[str, Any]]) -> list[Sample]:
    """The responses in lines of rollouts.jsonl."""
    found = []
    for record in records:
        image = _image(record["images"][0]) if record["images"] else None
        for r in record["responses"]:
            labels = (record["prompt_id"], record["question"], record["answer"])
            found.append(Sample(*labels, r["text"], bool(r["correct"]), float(r["advantage"]), image))
    return found


def _image(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB")


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
        _require("tensorboard")
        self._writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(folder))

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        for key, value in scalars(metrics).items():
            self._writer.add_scalar(key, value, global_step=step)
        self._writer.flush()

    def write_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """One text per response, and each prompt's image."""
        for number, sample in enumerate(samples):
            facts = dict(zip(COLUMNS, sample.cells(step, ""), strict=True))
            text = "\n\n".join(f"**{name}**: {value}" for name, value in facts.items() if name != "image")
            self._writer.add_text(f"samples/{number}", text, global_step=step)
        for number, sample in enumerate(_by_prompt(samples)):
            if sample.image is not None:
                pixels_HWC = np.asarray(sample.image)
                self._writer.add_image(f"images/{number}", pixels_HWC, global_step=step, dataformats="HWC")

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """A W&B run named after the run's folder; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, project: str, run: Path, config: Config):
        self._wandb = _require("wandb")
        self._run = self._wandb.init(
            project=project,
            name=run.name,
            dir=str(run),
            id=_run_id(run, "wandb"),
            resume="allow",
            config=to_dict(config),
        )

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._run.log(scalars(metrics), step=step)

    def write_samples(self, step: int, samples: Sequence[Sample]) -> None:
        rows = [s.cells(step, s.image and self._wandb.Image(s.image)) for s in samples]
        self._run.log({"samples": self._wandb.Table(columns=list(COLUMNS), data=rows)}, step=step)

    def close(self) -> None:
        self._run.finish()


class MlflowTracker:
    """A run of an MLflow experiment, at MLFLOW_TRACKING_URI or MLflow's own default."""

    def __init__(self, experiment: str, run: Path, config: Config):
        self._mlflow = _require("mlflow")
        self._client = self._mlflow.MlflowClient()
        known = run / "mlflow_id"
        if known.exists():
            self._id = known.read_text(encoding="utf-8").strip()
            self._client.update_run(self._id, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(experiment)
        home = self._client.create_experiment(experiment) if found is None else found.experiment_id
        self._id = self._client.create_run(home, run_name=run.name).info.run_id
        known.write_text(f"{self._id}\n", encoding="utf-8")
        for info in all_fields(config):
            self._client.log_param(self._id, info.path, spell(info.value))

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        for key, value in scalars(metrics).items():
            self._client.log_metric(self._id, key, value, step=step)

    def write_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """More rows of the table `samples.json`."""
        # MLflow refuses a column that holds images in some rows only.
        absent = Image.new("RGB", (1, 1), "white") if any(s.image for s in samples) else None
        rows = [s.cells(step, s.image or absent) for s in samples]
        table = {name: [row[i] for row in rows] for i, name in enumerate(COLUMNS)}
        self._client.log_table(self._id, table, "samples.json")

    def close(self) -> None:
        self._client.set_terminated(self._id)


class SwanlabTracker:
    """A SwanLab run named after the run's folder; SWANLAB_MODE=local or offline keeps it on this machine."""

    def __init__(self, project: str, run: Path, config: Config):
        self._swanlab = _require("swanlab")
        folder = run / "swanlog"
        folder.mkdir(exist_ok=True)
        self._run = self._swanlab.init(
            project=project, name=run.name, log_dir=str(folder), config=to_dict(config), reinit=True
        )

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._run.log(scalars(metrics), step=step)

    def write_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Texts, and each prompt's image: SwanLab's tables hold no images."""
        swanlab = self._swanlab
        texts = [
            swanlab.Text(
                s.response, caption=f"{s.prompt}: {'correct' if s.correct else 'wrong'}, {s.advantage:+.2f}"
            )
            for s in samples
        ]
        shown = [s for s in _by_prompt(samples) if s.image is not None]
        images = [swanlab.Image(s.image, caption=f"{s.prompt}: {s.question} ({s.answer})") for s in shown]
        self._run.log({"samples": texts, **({"images": images} if images else {})}, step=step)

    def close(self) -> None:
        self._run.finish()


class TrackioTracker:
    """A trackio run named after the run's folder; `trackio show` opens its dashboard."""

    def __init__(self, project: str, run: Path, config: Config):
        self._trackio = _require("trackio")
        self._run = self._trackio.init(
            project=project, name=_run_id(run, "trackio"), resume="allow", config=to_dict(config), embed=False
        )

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._run.log(scalars(metrics), step=step)

    def write_samples(self, step: int, samples: Sequence[Sample]) -> None:
        rows = [s.cells(step, s.image and self._trackio.Image(s.image)) for s in samples]
        self._run.log({"samples": self._trackio.Table(columns=list(COLUMNS), data=rows)}, step=step)

    def close(self) -> None:
        self._run.finish()


def _tensorboard(run: Path, config: Config) -> Tracker | None:
    return TensorBoardTracker(run / "tensorboard") if config.log.tensorboard else None


def _wandb(run: Path, config: Config) -> Tracker | None:
    return None if config.log.wandb is None else WandbTracker(config.log.wandb, run, config)


def _mlflow(run: Path, config: Config) -> Tracker | None:
    return None if config.log.mlflow is None else MlflowTracker(config.log.mlflow, run, config)


def _swanlab(run: Path, config: Config) -> Tracker | None:
    return None if config.log.swanlab is None else SwanlabTracker(config.log.swanlab, run, config)


def _trackio(run: Path, config: Config) -> Tracker | None:
    return None if config.log.trackio is None else TrackioTracker(config.log.trackio, run, config)


OpenTracker = Callable[[Path, Config], Tracker | None]
"""From a run's folder and configuration to a tracker; None if the configuration does not ask for one."""
TRACKERS: dict[str, OpenTracker] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "swanlab": _swanlab,
    "trackio": _trackio,
}


def register_tracker(name: str, open_tracker: OpenTracker) -> None:
    """Open this tracker too in every run of this process."""
    TRACKERS[name] = open_tracker


def _by_prompt(samples: Sequence[Sample]) -> list[Sample]:
    """The first sample of each prompt."""
    return list({sample.prompt: sample for sample in reversed(samples)}.values())[::-1]


def _run_id(run: Path, library: str) -> str:
    """The id of the folder's run at a tracker, so that resuming continues it."""
    file = run / f"{library}_id"
    if not file.exists():
        file.write_text(f"{run.name[:40]}-{os.urandom(4).hex()}\n", encoding="utf-8")
    return file.read_text(encoding="utf-8").strip()


def _require(library: str) -> ModuleType:
    """A tracker's library; its setting and its extra have the same name."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise UserError(
            f"log.{library} needs {library}, which is not installed: pip install 'pivot-rl[{library}]'"
        ) from error
