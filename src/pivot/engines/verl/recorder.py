"""A cluster run's folder: the same files as the embedded engine's, written by the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from pivot.config import from_dict
from pivot.engines.verl.cluster_trainer import ClusterTrainer
from pivot.engines.verl.failures import explain
from pivot.engines.verl.files import PROGRESS, STOP
from pivot.engines.verl.jobs import Ranks
from pivot.errors import UserError
from pivot.evaluate.scoring import add_scores
from pivot.models.policy import Policy
from pivot.rewards.judge import Judge
from pivot.runs.card import write_card
from pivot.runs.checkpoint import CheckpointStore
from pivot.runs.environment import environment
from pivot.runs.evaluation import Evaluation
from pivot.runs.folder import RunFolder
from pivot.runs.guard import Guard
from pivot.runs.metrics import machine_metrics, step_metrics
from pivot.runs.progress import Progress
from pivot.runs.run import find_start
from pivot.runs.step_log import StepLog
from pivot.runs.trackers import open_sinks
from pivot.training import build
from pivot.training.trainer import StepOutcome


class StopAsked(BaseException):
    """A stop was asked for while there was nothing to finish."""


class Recorder:
    """Holds the run's folder while the driver lives."""

    def __init__(self, run: Path, *, resume: bool) -> None:
        self.folder = RunFolder.open(run)
        self.config = from_dict(self.folder.read_config())
        self.store = CheckpointStore(run, self.config.checkpoint.keep_last)
        self._shown = (run / PROGRESS).open("a", buffering=1, encoding="utf-8")
        self.start = find_start(self.folder, self.config) if resume else None
        first = self.start.step + 1 if self.start else 1
        self.progress = Progress(self.config.train.steps, first_step=first, stream=self._shown)
        past = self.folder.read_metrics()
        self.log = StepLog(self.config, self.folder, self.progress.say, past)
        self.guard = RankGuard(self.folder, self.config.train.max_bad_updates, self.progress.say)
        self.guard.recall(past)
        self.scores: dict[int, float] = {}
        self.sinks = open_sinks(self.config.log, run, self.config)
        found = {name: metadata.version(name) for name in ("verl", "ray")}
        self.folder.update_status(**environment(), engine="verl", **found, status="running", reason=None)

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def stop_asked(self) -> bool:
        return (self.path / STOP).exists()

    @contextmanager
    def watching(self, actors: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
        """Whatever happens inside, the folder says how it ended; `actors` are asked whether they still live."""
        try:
            yield
        except StopAsked:
            self.folder.update_status(status="stopped", reason=self._stop_reason())
        except BaseException as error:
            reason = explain(error, actors())
            with suppress(UserError):  # a full disk must not hide what went wrong
                self.folder.update_status(status="failed", reason=reason)
            raise

    def begin(self, trainer: ClusterTrainer, evaluation: Evaluation) -> None:
        """Before the first step: the table's first half, and a word about what is going to happen."""
        config, self.trainer, self.evaluation = self.config, trainer, evaluation
        self.guard.ranks = trainer.ranks
        self.watched = evaluation.validation_prompts()
        self.sets = evaluation.final_sets()
        if self.start:
            self.progress.say(f"going on after step {trainer.finished_steps} of {config.train.steps}")
        elif self.sets:
            add_scores(self._scores, evaluation.table(trainer.policy, self.sets, "before"))
        self.progress.say(
            f"{config.method.name} on {config.model.path}, {len(trainer.sources.prompts)} prompts, "
            f"{config.train.steps} steps of {config.train.prompts_per_step} x {config.rollout.responses}, "
            f"{trainer.ranks.size} ranks, into {self.path}"
        )
        if self.stop_asked:
            raise StopAsked
        self.progress.begin_steps()

    def record(self, outcome: StepOutcome, lr: float) -> dict[str, Any]:
        """The step's metrics, with a validation where one is due, and its sampled groups."""
        config, step = self.config, outcome.step
        times = self.progress.clock.metrics()
        row: dict[str, Any] = dict(
            step_metrics(outcome, self.trainer.method, self.trainer.sources.buffer, lr)
        )
        row |= times | machine_metrics(times, row["rollout/tokens"])
        row |= {f"memory/{name}": tokens for name, tokens in self.trainer.budgets.items()}
        row |= self.log.notice(row)
        if self.watched and (step % config.eval.every == 0 or step == config.train.steps):
            row |= self.evaluation.validate(self.trainer.policy, self.watched)
            self.scores[step] = row["eval/accuracy"]
        self.log.write(outcome, self.trainer, row)
        self.guard.observe(outcome, self.trainer.policy)
        self.progress.step_done(step, row)
        for sink in self.sinks:
            sink.write(step, row)
        return row

    def save_if_due(self, write: Callable[[Path], None]) -> None:
        """A checkpoint where the configuration, the end or a stop asks for one."""
        config, step = self.config, self.trainer.finished_steps
        if step % config.checkpoint.every == 0 or step == config.train.steps or self.stop_asked:
            self.guard.check_weights(self.trainer.policy, step)
            self.store.save(step, write, score=self.scores.get(step))

    def finish(self) -> None:
        """The table's second half, the card, the status."""
        if self.trainer.finished_steps < self.config.train.steps:
            self.folder.update_status(status="stopped", reason=self._stop_reason())
            return
        if self.sets:
            add_scores(self._scores, self.evaluation.table(self.trainer.policy, self.sets, "after"))
        write_card(self.path, self.config)
        self.folder.update_status(status="finished", reason=None)

    def build_evaluation(self, judge: Judge, **options: Any) -> Evaluation:
        return Evaluation(self.config, judge, self.progress, engine="verl", **options)

    def learning_rate(self) -> float:
        return build.learning_rate(self.config, self.trainer.finished_steps + 1)

    @property
    def _scores(self) -> Path:
        return self.path / "eval" / "scores.json"

    def _stop_reason(self) -> str:
        return (self.path / STOP).read_text(encoding="ascii").strip() if self.stop_asked else "stopped"


class RankGuard(Guard):
    """Asks the ranks for weights that are not finite: the driver has none."""

    ranks: Ranks | None = None

    def find_nonfinite(self, policy: Policy) -> list[str]:
        assert self.ranks is not None, "set once the ranks are there"
        return sorted({name for found in self.ranks.nonfinite_weights() for name in found})
