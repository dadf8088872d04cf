"""A whole run: start or resume, step by step, what is written down, and how it ends."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pivot.config import Config, from_dict, to_dict
from pivot.errors import UserError
from pivot.evaluate.scoring import add_scores
from pivot.rewards.judge import Judge
from pivot.runs.card import write_card
from pivot.runs.checkpoint import Checkpoint, CheckpointStore
from pivot.runs.environment import environment
from pivot.runs.evaluation import Evaluation
from pivot.runs.folder import RunFolder
from pivot.runs.guard import Guard
from pivot.runs.metrics import machine_metrics, step_metrics
from pivot.runs.progress import Progress
from pivot.runs.state import load_state, save_state, weights_path
from pivot.runs.step_log import StepLog
from pivot.runs.stopping import Stopped, Stopping
from pivot.runs.trackers import open_sinks
from pivot.training import build
from pivot.training.prompts import Prompts, drop_long_prompts, training_prompts


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    folder: Path
    steps: int
    finished: bool
    """False when a signal stopped it; `--resume` goes on."""


def train(config: Config, out: Path, *, quiet: bool = False) -> RunResult:
    """Train from the beginning into a new folder.

    Example:
        train(recipes.get("tiny"), Path("runs/tiny"))
    """
    with RunFolder.create(out) as folder:
        folder.write_config(to_dict(config))
        return _Run(config, folder, None, quiet).go()


def resume(out: Path, *, quiet: bool = False) -> RunResult:
    """Go on exactly where a run stopped, as if it never had."""
    with RunFolder.open(out) as folder:
        config = from_dict(folder.read_config())
        return _Run(config, folder, find_start(folder, config), quiet).go()


def find_start(folder: RunFolder, config: Config) -> Checkpoint | None:
    """Where a stopped run goes on; what came after that is set aside, files and rows."""
    store = CheckpointStore(folder.path, config.checkpoint.keep_last)
    store.clean_leftovers()
    start = _last_good(store)
    step = start.step if start else 0
    store.set_aside_after(step)
    folder.truncate_after(step)
    return start


def _last_good(store: CheckpointStore) -> Checkpoint | None:
    """Where to go on; None if no step was ever saved. Reports damaged checkpoints; raises if none is usable."""
    damaged: list[str] = []
    start = store.latest_good(report=damaged.append)
    if start is None and damaged:
        raise UserError(
            f"{store.folder} holds no checkpoint that can be used: {'; '.join(damaged)}; restore one, or begin again "
            "with another --out"
        )
    if start is not None:
        for sentence in damaged:
            print(f"{sentence}; going on from {start.path.name}", file=sys.stderr)
    return start


class _Run:
    """The parts of a run and the order in which they act."""

    def __init__(self, config: Config, folder: RunFolder, start: Checkpoint | None, quiet: bool) -> None:
        self.config, self.folder, self.start = config, folder, start
        first_step = start.step + 1 if start else 1
        self.progress = Progress(config.train.steps, first_step=first_step, quiet=quiet)
        self.store = CheckpointStore(folder.path, config.checkpoint.keep_last)
        self.stopping = Stopping(config.checkpoint.stop_seconds)
        past = folder.read_metrics()
        self.log = StepLog(config, folder, self.progress.say, past)
        self.guard = Guard(folder, config.train.max_bad_updates, self.progress.say)
        self.guard.recall(past)
        self.scores: dict[int, float] = {}
        """Validation accuracy by step."""
        self.finished_steps = self.saved_step = start.step if start else 0

    def go(self) -> RunResult:
        """Set up, train, and leave the folder with a status whatever happens."""
        self.folder.update_status(**environment(), status="running", reason=None)
        try:
            with ExitStack() as stack:
                stack.enter_context(self.progress)
                stack.enter_context(self.stopping)
                judge = build.build_judge(self.config)
                stack.callback(judge.close)
                finished = self._train(judge, stack)
        except Stopped:
            finished = False
        except KeyboardInterrupt:
            self.folder.update_status(status="stopped", reason="interrupted twice")
            raise
        except BaseException as error:
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            with suppress(UserError):  # a full disk must not hide what went wrong
                self.folder.update_status(status="failed", reason=reason)
            raise
        reason = None if finished else self.stopping.reason
        self.folder.update_status(status="finished" if finished else "stopped", reason=reason)
        return RunResult(self.folder.path, self.finished_steps, finished)

    def _train(self, judge: Judge, stack: ExitStack) -> bool:
        config = self.config
        self.progress.say(f"loading {config.model.path} and {config.data.train}")
        prompts = training_prompts(config)
        lora = bool(config.model.lora_rank)
        policy = build.load_model(config, weights_path(self.start.path, lora) if self.start else None)
        prompts = self._fit(prompts, policy)
        self.trainer = build.build_trainer(config, policy, prompts.by_id, judge, self.progress.clock)
        evaluation = Evaluation(config, judge, self.progress)
        watched = evaluation.validation_prompts()
        sets = evaluation.final_sets()
        sinks = open_sinks(config.log, self.folder.path, config)
        for sink in sinks:
            stack.callback(sink.close)
        if self.start:
            load_state(self.trainer, self.start.path)
            self.progress.say(f"going on after step {self.trainer.finished_steps} of {config.train.steps}")
        elif sets:
            add_scores(self._scores, evaluation.table(policy, sets, "before"))
        self._announce(prompts)
        self.budgets = self.trainer.budgets
        self.progress.begin_steps()
        while self.finished_steps < config.train.steps and not self.stopping:
            self.stopping.stepping = True
            row = self._step(evaluation, watched)
            self.finished_steps = self.trainer.finished_steps
            for sink in sinks:
                sink.write(int(row["step"]), row)
        if self.finished_steps > self.saved_step:
            self._save()
        self.stopping.stepping = False
        finished = self.finished_steps >= config.train.steps
        if finished and sets:
            add_scores(self._scores, evaluation.table(policy, sets, "after"))
        if finished:
            write_card(self.folder.path, config)
        return finished

    @property
    def _scores(self) -> Path:
        return self.folder.path / "eval" / "scores.json"

    def _fit(self, prompts: Prompts, policy) -> Prompts:
        def track(items):
            return self.progress.track(items, "encoding prompts", len(items))

        fitting = drop_long_prompts(prompts, policy, self.config.rollout.max_prompt_tokens, track)
        for note in fitting.notes:
            self.progress.say(note)
        if len(fitting) < self.config.train.prompts_per_step:
            raise UserError(
                f"only {len(fitting)} prompts of {prompts.name} fit into rollout.max_prompt_tokens="
                f"{self.config.rollout.max_prompt_tokens}; a step needs {self.config.train.prompts_per_step}"
            )
        return fitting

    def _announce(self, prompts: Prompts) -> None:
        config = self.config
        self.progress.say(
            f"{config.method.name} on {config.model.path} ({self.trainer.policy.num_parameters / 1e6:.1f}M weights), "
            f"{len(prompts)} prompts of {prompts.name}, {config.train.steps} steps of "
            f"{config.train.prompts_per_step} x {config.rollout.responses}, into {self.folder.path}"
        )

    def _step(self, evaluation: Evaluation, watched: list) -> dict[str, Any]:
        config, trainer = self.config, self.trainer
        lr = build.learning_rate(config, trainer.finished_steps + 1)
        trainer.updater.optimizer.set_lr(lr)
        outcome = trainer.step()
        times = self.progress.clock.metrics()
        row: dict[str, Any] = dict(step_metrics(outcome, trainer.method, trainer.sources.buffer, lr))
        row |= times | machine_metrics(times, row["rollout/tokens"]) | self._budgets(outcome.step)
        row |= self.log.notice(row)
        if watched and (outcome.step % config.eval.every == 0 or outcome.step == config.train.steps):
            row |= evaluation.validate(trainer.policy, watched)
            self.scores[outcome.step] = row["eval/accuracy"]
        self.log.write(outcome, trainer, row)
        self.guard.observe(outcome, trainer.policy)
        if outcome.step % config.checkpoint.every == 0 or outcome.step == config.train.steps:
            self._save()
        self.progress.step_done(outcome.step, row)
        return row

    def _budgets(self, step: int) -> dict[str, int]:
        """The token budgets, which running out of memory halves; a change is reported."""
        for name, tokens in self.trainer.budgets.items():
            if tokens != self.budgets[name]:
                self.progress.say(f"step {step}: out of memory; {name} is {tokens} from now on")
        self.budgets = self.trainer.budgets
        return {f"memory/{name}": tokens for name, tokens in self.budgets.items()}

    def _save(self) -> None:
        trainer, step = self.trainer, self.trainer.finished_steps
        self.guard.check_weights(trainer.policy, step)
        self.store.save(step, lambda folder: save_state(trainer, folder), score=self.scores.get(step))
        self.saved_step = step
