"""Which runs of a plan are due, and how each is completed: train, then evaluate; finished work is never repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pivot.sweep.followups import FollowUp, followups
from pivot.sweep.plan import Arm, Plan
from pivot.sweep.pool import Command, Outcome, Pool
from pivot.sweep.runs import SweepRun
from pivot.sweep.scores import mean, read_curve, unmeasured


@dataclass(frozen=True)
class RunTask:
    """A run to complete."""

    run: SweepRun
    evaluate: bool
    """False while screening has not chosen the run's value: it is trained only."""

    @property
    def label(self) -> str:
        return self.run.label

    @property
    def key(self) -> tuple[str, bool]:
        """What tells it from every other task."""
        return self.label, self.evaluate

    @property
    def log(self) -> Path:
        return self.run.folder.parent / "logs" / f"{self.run.folder.name}.log"

    def next_command(self) -> Command | None:
        if not self.run.is_trained:
            words = self.run.next_train_command()
            return Command(words, "resuming" if "--resume" in words else "training")
        benchmarks = unmeasured(self.run) if self.evaluate else []
        if not benchmarks:
            return None
        return Command(self.run.eval_command(benchmarks), f"evaluating on {', '.join(benchmarks)}")


@dataclass
class SweepOutcome(Outcome):
    """How a sweep ended."""

    left_out: list[SweepRun] = field(default_factory=list)
    """Runs that need settings only the user can give."""


def run_sweep(plan: Plan, runs: Sequence[SweepRun], pool: Pool, say: Callable[[str], None]) -> SweepOutcome:
    """Train and evaluate what is missing, in rounds: screening makes further runs due once its seeds are trained."""
    outcome = SweepOutcome(left_out=[run for run in runs if run.missing])
    attempted: set[tuple[str, bool]] = set()
    while not outcome.stopped:
        tasks = in_order(plan, (task for task in due_tasks(plan, runs) if task.key not in attempted))
        if not tasks:
            break
        attempted.update(task.key for task in tasks)
        ended = pool.run(tasks, say)
        outcome.failed += ended.failed
        outcome.stopped = ended.stopped
    if not outcome.stopped:
        ended = pool.run([task for task in followups(plan, runs) if _is_ready(task, say)], say)
        outcome.failed += ended.failed
        outcome.stopped = ended.stopped
    return outcome


def _is_ready(command: FollowUp, say: Callable[[str], None]) -> bool:
    """Whether its runs are trained and it has not been run yet."""
    if command.waits_for:
        say(f"{command.label}: waits for {'; '.join(command.waits_for)}")
    return not command.waits_for and not command.is_done


def due_tasks(plan: Plan, runs: Sequence[SweepRun]) -> Iterator[RunTask]:
    """All runs; of a screened plan the first seeds of every value, then all seeds of each arm's best value."""
    best = {family: best_variant(plan, runs, family) for family in families(plan)} if plan.screen else {}
    for run in runs:
        if run.missing:
            continue
        chosen = best.get(plan.arms[run.arm].family, run.arm) == run.arm
        if chosen or (run.seed is not None and run.seed < plan.screen):
            yield RunTask(run, evaluate=chosen)


def in_order(plan: Plan, tasks: Iterable[RunTask]) -> list[RunTask]:
    """By stage; within one seed by seed for each value of `vary`, so that early claims can be judged early."""
    if not plan.stages:
        return list(tasks)
    places = {name: place for place, name in enumerate(dict.fromkeys(map(_values, plan.arms.values())))}

    def place(task: RunTask) -> tuple[int, ...]:
        arm, seed = plan.arms[task.run.arm], task.run.seed
        return plan.stage(task.run.arm), places[_values(arm)], -1 if seed is None else seed

    return sorted(tasks, key=place)


def _values(arm: Arm) -> tuple[str, ...]:
    return tuple(arm.values.values())


def best_variant(plan: Plan, runs: Sequence[SweepRun], family: str) -> str | None:
    """The arm with the highest validation accuracy over the screening seeds; None before all are trained."""
    found: dict[str, float] = {}
    for name in plan.variants(family):
        screened = [
            run for run in runs if run.arm == name and run.seed is not None and run.seed < plan.screen
        ]
        curves = [read_curve(run) if run.is_trained else None for run in screened]
        values = [curve.accuracy[-1] for curve in curves if curve is not None]
        if len(values) < len(screened):
            return None
        found[name] = mean(values) or 0.0
    return max(found, key=lambda name: found[name])


def families(plan: Plan) -> list[str]:
    """The arms that `vary` has made others from."""
    return list(dict.fromkeys(arm.family for arm in plan.arms.values() if arm.family))
