"""What a step leaves in the run's folder and what is said of it; the same whichever engine ran it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pivot.config import Config
from pivot.runs.folder import RunFolder
from pivot.runs.guard import FormWatch, FullnessWatch, History, loud
from pivot.runs.rollout_records import rollout_records
from pivot.training.trainer import StepOutcome, Trainer


class StepLog:
    """Writes metrics and sampled groups, and notices what is out of the ordinary."""

    def __init__(
        self, config: Config, folder: RunFolder, say: Callable[[str], None], past: Sequence[dict[str, Any]]
    ) -> None:
        """`past` are the rows that the run has written so far."""
        self.config, self.folder, self.say = config, folder, say
        self.history, self.form, self.fullness = History(past), FormWatch(past), FullnessWatch(past)

    def notice(self, row: Mapping[str, Any]) -> dict[str, float]:
        """How far the step's loss and gradient stand out from earlier ones; reports what a person should see."""
        spikes = self.history.spikes(row)
        self.history.add(row)
        for sentence in (loud(spikes), self.form.add(row), self.fullness.add(row)):
            if sentence:
                self.say(f"step {row['step']}: {sentence}")
        return spikes

    def write(self, outcome: StepOutcome, trainer: Trainer, row: Mapping[str, Any]) -> None:
        """The metrics line last: a step without one was not finished."""
        log, step = self.config.log, outcome.step
        for broken in outcome.selection.unreadable:
            self.say(f"step {step}: {broken}; it is left out")
        if not outcome.selection.kept and not outcome.selection.nonfinite:
            self.say(f"step {step}: no group has both right and wrong responses; weights stay as they are")
        if log.rollouts_per_step and (step % log.rollouts_every == 0 or step in (1, self.config.train.steps)):
            self.folder.append_rollouts(
                rollout_records(outcome, trainer.policy, trainer.scorer.corruptor, log.rollouts_per_step)
            )
        self.folder.append_metrics(row)
