"""A whole run, with any engine: start or resume, step by step, what is written, and how it ends."""

from __future__ import annotations

import hashlib
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import torch
import transformers

from pivot import __version__
from pivot.checkpoint_reader import Origin
from pivot.config import Config, from_dict, to_dict
from pivot.engines.base import ENGINES, Engine, OpenEngine
from pivot.engines.local import LocalEngine
from pivot.engines.saving import Saving
from pivot.errors import UserError, nearest
from pivot.evaluation.scoring import add_scores
from pivot.jsonl import read_rows
from pivot.runs.answers import answer_metrics
from pivot.runs.callbacks import Callback, Callbacks
from pivot.runs.card import write_card
from pivot.runs.checkpoint import Boundary, Checkpoint, CheckpointStore, load_state, save_state
from pivot.runs.evaluation import Evaluation
from pivot.runs.folder import RunFolder
from pivot.runs.guard import Guard, Watches
from pivot.runs.metrics import machine_metrics, step_metrics
from pivot.runs.progress import Progress
from pivot.runs.resuming import Accept, find_start
from pivot.runs.rollout_records import rollout_records
from pivot.runs.stopping import Stopped, Stopping, StopRequest
from pivot.runs.trackers import SampleTracker, Tracker, open_trackers, samples_of
from pivot.training import build
from pivot.training.prompts import Prompts, drop_long_prompts, too_few, training_prompts
from pivot.training.step import StepOutcome


def _reason_of(error: BaseException) -> str:
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    folder: Path
    steps: int
    finished: bool
    """False if it was stopped; `--resume` or `pivot.resume` continues it."""

    @property
    def model(self) -> Path:
        """The newest checkpoint's model, an ordinary Hugging Face folder."""
        return self.folder / "checkpoints" / f"step-{self.steps}" / "model"

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, one per step."""
        return read_rows(self.folder / "metrics.jsonl")


@dataclass(frozen=True)
class InProcess:
    """What a caller in this process adds to a configuration: Python objects, which config.json cannot hold."""

    rows: Sequence[Mapping[str, Any]] | None = None
    """The training set, where `data.train` is `memory`."""
    reward: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None
    """Reward functions, in the places of `memory:NAME` in `reward.functions`."""
    callbacks: Sequence[Callback] = ()


@dataclass(frozen=True)
class Host:
    """How a run talks to the process it runs in; by default a command in a terminal."""

    quiet: bool = False
    stream: TextIO | None = None
    """Where progress is shown; None: standard output."""
    stopping: StopRequest | None = None
    """How the run is asked to stop; None: by signals."""
    reason_of: Callable[[BaseException], str] = _reason_of
    """An error in one sentence, for run.json."""
    trackers: Callable[[], list[Tracker]] = list
    """Opens trackers besides those of the configuration."""


def train(
    config: Config, out: Path, *, engine: str = "local", quiet: bool = False, inside: InProcess | None = None
) -> RunResult:
    """Train from the beginning into a new folder.

    Example:
        train(recipes.get("tiny"), Path("runs/tiny"))
    """
    open_engine = find_engine(engine)
    with RunFolder.create(out) as folder:
        folder.write_config(to_dict(config))
        return Run(config, folder, engine=engine, inside=inside, host=Host(quiet)).go(open_engine)


def resume(
    out: Path, *, quiet: bool = False, accept: Accept | None = None, inside: InProcess | None = None
) -> RunResult:
    """Continue exactly where a run stopped."""
    with RunFolder.open(out) as folder:
        config = from_dict(folder.read_config())
        start = find_start(folder, config.checkpoint.every, accept or Accept())
        engine = folder.status().get("engine") or "local"
        run = Run(config, folder, engine=engine, start=start, inside=inside, host=Host(quiet))
        return run.go(find_engine(engine))


def find_engine(name: str) -> OpenEngine:
    """How a run of this process opens the engine of that name: `local`, or one that a plugin registered."""
    known = {"local": LocalEngine.open, **ENGINES}
    if name == "verl":
        raise UserError("the verl engine starts processes of its own: use `pivot train --engine verl`.")
    if name not in known:
        raise UserError(f"There is no engine {name!r}; {nearest(name, [*known, 'verl'])}.")
    return known[name]


class Run:
    """The parts of a run and the order in which they act."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        *,
        engine: str,
        start: Checkpoint | None = None,
        inside: InProcess | None = None,
        host: Host | None = None,
    ) -> None:
        """Sets up the folder; `engine` is a name for run.json, `start` comes from `find_start`."""
        self.config, self.folder = config, folder
        self._inside, self._host = inside or InProcess(), host or Host()
        self._callbacks = Callbacks(self._inside.callbacks)
        self.store = CheckpointStore(folder.path, config.checkpoint.keep_last)
        self.start = start
        self.finished_steps = self.saved_step = start.step if start else 0
        self.progress = Progress(
            config.train.steps,
            first_step=self.finished_steps + 1,
            max_responses=config.train.max_responses,
            quiet=self._host.quiet,
            stream=self._host.stream,
        )
        # A request that is not made yet is false.
        patience = config.checkpoint.stop_seconds
        by_signal = Stopping(patience, self._seconds_left, lambda: self._step_seconds or 0.0)
        self.stopping: StopRequest = by_signal if self._host.stopping is None else self._host.stopping
        self.scores: dict[int, float] = {}
        """Validation accuracy by step."""
        self._step_seconds: float | None = None
        """Of the latest step; None before the first."""
        self._saved_at = time.monotonic()
        self._saving: Future[Checkpoint] | None = None
        """The checkpoint that is being written."""
        self.id, self._written_config = folder.id, folder.read_config()
        self.folder.update_status(
            **_environment(), engine=engine, status="running", reason=None, saved_step=self.saved_step or None
        )

    def go(self, open_engine: OpenEngine) -> RunResult:
        """Train to the end or to a stop; run.json always records how it ended."""
        with self.recording_failure():
            try:
                with ExitStack() as stack:
                    stack.enter_context(self.progress)
                    stack.enter_context(self.stopping)
                    self._begin(open_engine, stack)
                    while not self._is_last(self.finished_steps) and not self.stopping:
                        self.stopping.stepping = True
                        self._step()
                    finished = self._finish()
            except Stopped:
                self._settle()
                finished = False
            result = RunResult(self.folder.path, self.finished_steps, finished)
            self._callbacks.call("on_end", result)
        reason = None if finished else self.stopping.reason
        self.folder.update_status(status="finished" if finished else "stopped", reason=reason)
        return result

    @contextmanager
    def recording_failure(self) -> Iterator[None]:
        """Write the reason of an error in the block into run.json."""
        try:
            yield
        except KeyboardInterrupt:
            self.folder.update_status(status="stopped", reason="interrupted twice")
            raise
        except BaseException as error:
            with suppress(UserError):  # a full disk must not hide the first error
                self.folder.update_status(status="failed", reason=self._host.reason_of(error))
            raise

    @cached_property
    def prompts(self) -> Prompts:
        """The training set."""
        return training_prompts(self.config, self._inside.rows)

    # Beginning ---------------------------------------------------------------------------------------------

    def _begin(self, open_engine: OpenEngine, stack: ExitStack) -> None:
        config, start = self.config, self.start
        judge = build.build_judge(config, self._inside.reward)
        stack.callback(judge.close)
        self.progress.say(summary_of(config))
        self.progress.say(f"loading {config.model.path} and {config.data.title}")
        prompts = self.prompts  # unusable data is an error before a model is loaded
        engine = open_engine(config, start.path if start else None)
        stack.callback(engine.close)
        prompts = self._fitting(prompts, engine)
        self._check_data(prompts)
        config = self._with_steps(len(prompts))
        clock = self.progress.clock
        self.trainer = build.build_trainer(config, engine, prompts.by_id, judge, clock, prompts.sets)
        self.evaluation = Evaluation(config, engine, judge, self.progress, prompts.held_out)
        self._watch(engine)
        self.validation = self.evaluation.validation_prompts()
        self.sets = self.evaluation.final_sets()
        self.trackers = [*open_trackers(self.folder.path, config), *self._host.trackers()]
        for tracker in self.trackers:
            stack.callback(tracker.close)
        if start:
            load_state(self.trainer, start.path, self.folder.read_metrics())
            self.progress.say(f"resuming after step {self.trainer.finished_steps} of {config.train.steps}")
        else:
            self._measure("before")
        self.progress.say(
            f"{config.method.name} on {config.model.path} ({engine.description}), {len(prompts)} prompts of "
            f"{prompts.name}, {config.train.steps} steps of {config.train.prompts_per_step} x "
            f"{config.rollout.responses}, into {self.folder.path}"
        )
        if config.prompt.summary:
            self.progress.say(f"prompt: {config.prompt.summary}")
        self.progress.say(f"reward: {build.describe_reward(config)}")
        self.budgets = engine.budgets
        self._saved_at = time.monotonic()
        self.progress.begin_steps()

    def _watch(self, engine: Engine) -> None:
        past, limit = self.folder.read_metrics(), self.config.train.max_bad_updates
        self.guard = Guard(self.folder, limit, self.progress.say, engine.nonfinite_weights, past)
        self._step_seconds = past[-1].get("time/step") if past else None
        self.watches = Watches(self.config.model.dtype, past)

    def _fitting(self, prompts: Prompts, engine: Engine) -> Prompts:
        """The prompts within `rollout.max_prompt_tokens`; too few for a step are an error."""

        def track(items: list) -> Iterator:
            return self.progress.track(items, "measuring prompts", len(items))

        limit, needed = self.config.rollout.max_prompt_tokens, self.config.train.prompts_per_step
        fitting = drop_long_prompts(prompts, engine.encoder, limit, track)
        for note in fitting.notes:
            self.progress.say(note)
        if len(fitting) < needed:
            raise UserError(
                f"only {len(fitting)} prompts of {prompts.name} fit into rollout.max_prompt_tokens={limit}; "
                f"{too_few(len(fitting), self.config)}"
            )
        return fitting

    def _check_data(self, prompts: Prompts) -> None:
        """Record which prompts a run trains on; a resumed run must find the same."""
        digest = hashlib.sha256("\0".join(prompts.by_id).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        known = self.folder.status().get("data") if self.start else None
        if known is not None and known["digest"] != digest:
            raise UserError(
                f"{prompts.name} has changed since {self.folder.path} was started: {known['prompts']} prompts then, "
                f"{len(prompts)} now, or other ids; restore it, or start a new run"
            )
        held_out = sum(map(len, prompts.held_out.values()))
        self.folder.update_status(data={"prompts": len(prompts), "held_out": held_out, "digest": digest})

    def _with_steps(self, num_prompts: int) -> Config:
        """The configuration with the steps that `train.epochs` means; a resumed run has them already."""
        train = self.config.train
        if train.epochs is not None and self.start is None:
            steps = train.epochs * (num_prompts // train.prompts_per_step)
            self.config = replace(self.config, train=replace(train, steps=steps))
            self.folder.write_config(to_dict(self.config))
            self.progress.expect(steps)
            self.progress.say(
                f"{train.epochs} epochs of {num_prompts} prompts, {train.prompts_per_step} per step, are {steps} steps"
            )
        return self.config

    # Steps -------------------------------------------------------------------------------------------------

    def _step(self) -> dict[str, Any]:
        """Take a step; write its metrics, and a checkpoint if one is due."""
        boundary = Boundary.of(self.trainer)
        try:
            outcome = self.trainer.step()
        except Stopped:
            if self._seconds_left() is not None and boundary.step > self.saved_step:
                self._save(boundary)
            raise
        self._settle(wait=False)
        row = self._row(outcome)
        self._write(outcome, row)
        self.guard.observe(outcome)
        self._step_seconds = row["time/step"]
        if self._save_is_due(outcome.step):
            self._save()
        self.progress.step_done(outcome.step, row)
        self.finished_steps = outcome.step
        for tracker in self.trackers:
            tracker.write(outcome.step, row)
        self._callbacks.call("on_step", outcome.step, row)
        return row

    def _is_last(self, step: int) -> bool:
        """Whether nothing comes after this step: it is the last one, or the budget of responses is used up."""
        return step >= self.config.train.steps or self.trainer.groups_left == 0

    def _save_is_due(self, step: int) -> bool:
        """Every so many steps, at the end, and where the next step would leave too much work unsaved."""
        checkpoint = self.config.checkpoint
        at_stake = time.monotonic() - self._saved_at + (self._step_seconds or 0.0)
        is_long = at_stake > 60 * checkpoint.minutes
        return step % checkpoint.every == 0 or self._is_last(step) or is_long

    def _seconds_left(self) -> float | None:
        """Expected until the step ends; None if its update has begun, so that the step before it is gone."""
        if max(self.trainer.finished_steps, self.trainer.updating_step) > self.finished_steps:
            return None
        return max(0.0, (self._step_seconds or 0.0) - self.progress.clock.elapsed)

    def _row(self, outcome: StepOutcome) -> dict[str, Any]:
        """The step's row of metrics.jsonl, with a validation if one is due; reports what a user should see."""
        config, step = self.config, outcome.step
        times = self.progress.clock.metrics()
        row: dict[str, Any] = dict(step_metrics(outcome, self.trainer.method, self.trainer.sources.buffer))
        row |= times | machine_metrics(times, row["rollout/tokens"]) | self._budgets(step)
        row |= answer_metrics(outcome.selection.sampled)
        found, sentences = self.watches.add(row)
        row |= found
        for sentence in sentences:
            self.progress.say(f"step {step}: {sentence}")
        if self.validation and (step % config.eval.every == 0 or self._is_last(step)):
            row |= self.evaluation.validate(self.validation)
            self.scores[step] = row["eval/accuracy"]
            scores = {key.removeprefix("eval/"): row[key] for key in row if key.startswith("eval/")}
            self._callbacks.call("on_eval", step, {"name": "validation", **scores})
        return row

    def _budgets(self, step: int) -> dict[str, int]:
        """The token budgets, which running out of memory halves; reports a change."""
        budgets = self.trainer.engine.budgets
        for name, tokens in budgets.items():
            if tokens != self.budgets[name]:
                self.progress.say(f"step {step}: out of memory; {name} is {tokens} from now on")
        self.budgets = budgets
        return {f"memory/{name}": tokens for name, tokens in budgets.items()}

    def _write(self, outcome: StepOutcome, row: dict[str, Any]) -> None:
        """The metrics last: a step without them was not finished."""
        log, step, selection = self.config.log, outcome.step, outcome.selection
        for reason in selection.unreadable:
            self.progress.say(f"step {step}: {reason}; the prompt is skipped")
        if not selection.kept and not selection.nonfinite:
            reward = self.config.reward
            if row.get("reward/unrewarded") == 1:
                self.progress.say(
                    f"step {step}: no reward function applies to any response (all returned None)"
                )
            rule = (
                f" (right is a reward above reward.threshold={reward.threshold:g})"
                if reward.functions
                else ""
            )
            self.progress.say(
                f"step {step}: no group has both right and wrong responses{rule}; the weights stay the same"
            )
        is_shown = step % log.rollouts_every == 0 or step == 1 or self._is_last(step)
        if log.rollouts_per_step and is_shown:
            records = rollout_records(outcome, self.trainer.engine, log.rollouts_per_step)
            self.folder.append_rollouts(records)
            self._show_samples(step, records)
        self.folder.append_metrics(row)

    def _show_samples(self, step: int, records: list[dict[str, Any]]) -> None:
        shown = [tracker for tracker in self.trackers if isinstance(tracker, SampleTracker)]
        samples = samples_of(records) if shown else []
        for tracker in shown if samples else []:
            tracker.write_samples(step, samples)

    def _save(self, boundary: Boundary | None = None) -> None:
        """Write a checkpoint; an engine may go on writing it while the next step samples."""
        self._settle()
        trainer, step = self.trainer, self.trainer.finished_steps
        self.guard.check_weights(step)
        origin = Origin(self.id, step, self._written_config, self.folder.rows)

        def write(folder: Path) -> Saving | None:
            origin.write(folder)
            return save_state(trainer, folder, boundary)

        self._saving = self.store.start_saving(step, write, score=self.scores.get(step))
        self.saved_step, self._saved_at = step, time.monotonic()
        self._settle(wait=False)

    def _settle(self, *, wait: bool = True) -> None:
        """Take note of the checkpoint that is being written, once it is complete."""
        if self._saving is None or not (wait or self._saving.done()):
            return
        saved, self._saving = self._saving.result(), None
        self.folder.update_status(saved_step=saved.step)
        self._callbacks.call("on_checkpoint", saved.step, saved.path)

    # The end -----------------------------------------------------------------------------------------------

    def _finish(self) -> bool:
        """Save what is not saved yet; at the end of training also the second half of the table and the card."""
        if self.finished_steps > self.saved_step:
            self._save()
        self._settle()
        self.stopping.stepping = False
        if not self._is_last(self.finished_steps):
            return False
        self.guard.check_end()
        self._measure("after")
        write_card(self.folder.path, self.config)
        return True

    def _measure(self, when: str) -> None:
        if self.sets:
            entries = self.evaluation.table(self.sets, when)
            add_scores(self.folder.path / "eval" / "scores.json", entries)
            for entry in entries:
                self._callbacks.call("on_eval", self.finished_steps, entry)


def summary_of(config: Config) -> str:
    """The recipe, and the settings that decide most about cost and outcome."""
    train, rollout = config.train, config.rollout
    duration = f"{train.steps} steps" if train.epochs is None else f"{train.epochs} epochs"
    if train.max_responses is not None:
        duration += f" or {train.max_responses} responses"
    return (
        f"recipe {config.recipe}: lr {train.lr:g}, {config.model.dtype}, {duration}, {train.prompts_per_step} prompts "
        f"x {rollout.responses} responses per step, at most {rollout.max_tokens} tokens per response"
    )


def _environment() -> dict[str, Any]:
    """Versions, machine and command, for run.json."""
    return {
        "pivot": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": shlex.join(sys.argv),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
