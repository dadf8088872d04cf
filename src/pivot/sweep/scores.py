"""What was measured of a run: evaluations as the plan asks for them, and the validation curve of its training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pivot.config.datasets import as_evaluated
from pivot.evaluation.scoring import read_scores
from pivot.evaluation.sets import expand, score_name
from pivot.jsonl import read_rows
from pivot.sweep.plan import MEASURES, TRAIN
from pivot.sweep.runs import OLD_NAMES, SweepRun


def accuracies(run: SweepRun) -> dict[str, float]:
    """Benchmark of the plan -> accuracy of the last checkpoint with the plan's samples, limit and settings."""
    entries = read_scores(run.folder / "eval" / "scores.json")
    counted = {entry["name"]: float(entry["accuracy"]) for entry in entries if _counts(entry, run)}
    names = {
        name: as_evaluated(run.config.data)[1] if name == TRAIN else score_name(name)
        for name in expand(run.benchmarks)
    }
    return {name: counted[recorded] for name, recorded in names.items() if recorded in counted}


def _counts(entry: dict[str, Any], run: SweepRun) -> bool:
    """Only an evaluation of the last checkpoint by `pivot eval`, made as the plan asks."""
    made = entry.get("settings")
    if made is None or entry["blank"] or (entry["when"], entry["samples"]) != (run.when, run.plan.samples):
        return False
    asked = {name: value for name, value in run.eval_settings().items() if value is not None}
    made = made | {"engine": OLD_NAMES.get(made.get("engine"), made.get("engine"))}
    return entry.get("limit") == run.plan.limit and all(made.get(name) == v for name, v in asked.items())


def fullness(run: SweepRun) -> float | None:
    """Groups that the run's steps trained on, of those they asked for, in per cent; None before the first step."""
    rows = read_rows(run.folder / "metrics.jsonl") if run.seed is not None else []
    wanted = sum(row.get("rollout/groups_wanted", 0) for row in rows)
    return 100 * sum(row.get("rollout/groups_kept", 0) for row in rows) / wanted if wanted else None


def unmeasured(run: SweepRun) -> list[str]:
    """The plan's benchmarks that are still to be evaluated."""
    done = accuracies(run)
    return [name for name in expand(run.benchmarks) if name not in done]


@dataclass(frozen=True)
class Curve:
    """Validation accuracy during training.

    Example:
        Curve(steps=[10, 20], rollouts=[640, 1280], accuracy=[0.41, 0.47])
    """

    steps: Sequence[float]
    rollouts: Sequence[float]
    """Responses sampled until then, those that the filter drops included."""
    accuracy: Sequence[float]
    tokens: Sequence[float] = ()
    """Likewise sampled tokens; nothing where they were not logged."""
    seconds: Sequence[float] = ()
    """Likewise, without evaluations: the processor's without a GPU, which other work on the machine changes little,
    else the clock's."""


def read_curve(run: SweepRun) -> Curve | None:
    """None where the run has not been evaluated on its validation split."""
    rows = read_rows(run.folder / "metrics.jsonl") if run.seed is not None else []
    points = [i for i, row in enumerate(rows) if row.get("eval/accuracy") is not None]
    if not points:
        return None
    groups = np.cumsum([row.get("rollout/groups", 0) for row in rows]) * run.config.rollout.responses
    timed = "time/step" if any("memory/gpu_peak_gb" in row for row in rows) else "time/processor"
    return Curve(
        steps=[rows[i]["step"] for i in points],
        rollouts=[float(groups[i]) for i in points],
        accuracy=[float(rows[i]["eval/accuracy"]) for i in points],
        tokens=_summed(rows, "rollout/tokens", points),
        seconds=_summed(rows, timed, points),
    )


def _summed(rows: Sequence[dict[str, Any]], key: str, points: Sequence[int]) -> Sequence[float]:
    """A metric's sum up to each point; nothing where a step lacks it."""
    if not all(key in row for row in rows):
        return ()
    sums = np.cumsum([row[key] for row in rows])
    return [float(sums[i]) for i in points]


def area(places: Sequence[float], heights: Sequence[float]) -> float:
    """Mean height of a curve between its first and its last point, by trapezoids."""
    if len(places) < 2:
        return float(heights[0])
    widths = np.diff(places)
    means = (np.array(heights[1:]) + np.array(heights[:-1])) / 2
    return float((widths * means).sum() / widths.sum())


def measure_pair(measure: str, first: SweepRun, second: SweepRun) -> tuple[float, float] | None:
    """A measure (MEASURES, or a benchmark) of two runs; None while one of them lacks it."""
    if measure in MEASURES and measure != "accuracy":
        ours, theirs = (read_curve(run) if run.is_trained else None for run in (first, second))
        return None if ours is None or theirs is None else _compare_curves(measure, ours, theirs)
    found = [_benchmark_accuracy(run, measure) for run in (first, second)]
    return None if found[0] is None or found[1] is None else (found[0], found[1])


def _benchmark_accuracy(run: SweepRun, measure: str) -> float | None:
    done, wanted = accuracies(run), run.plan.averaged if measure == "accuracy" else [measure]
    return float(np.mean([done[name] for name in wanted])) if all(name in done for name in wanted) else None


def _compare_curves(measure: str, *curves: Curve) -> tuple[float, float] | None:
    spent = {"equal_tokens": "tokens", "equal_time": "seconds"}.get(measure, "rollouts")
    axes = [vars(curve)[spent] for curve in curves]
    if not all(axes):
        return None
    end = min(axis[-1] for axis in axes)
    start = min(end, max(axis[0] for axis in axes))

    def value(curve: Curve) -> float:
        if measure == "final":
            return curve.accuracy[-1]
        if measure == "best":
            return max(curve.accuracy)
        if measure == "area":
            return area(curve.steps, curve.accuracy)
        if measure.startswith("equal_"):
            return float(np.interp(end, vars(curve)[spent], curve.accuracy))
        inside = [x for x in curve.rollouts if start < x < end]
        places = [start, *inside, end] if end > start else [end]
        return area(places, [float(np.interp(x, curve.rollouts, curve.accuracy)) for x in places])

    first, second = curves
    return value(first), value(second)


def _all_accuracies(run: SweepRun) -> dict[str, float]:
    """By benchmark, and on the validation split (`final`, `best`) where the run is trained."""
    curve = read_curve(run) if run.is_trained else None
    validation = {} if curve is None else {"final": curve.accuracy[-1], "best": max(curve.accuracy)}
    return accuracies(run) | validation


@dataclass(frozen=True)
class ArmScores:
    """The accuracies of an arm's runs, in per cent."""

    runs: list[dict[str, float]]
    planned: int
    full: list[float]
    """Of each trained run, the share of groups that its steps got of those they asked for, in per cent."""

    @classmethod
    def read(cls, runs: Sequence[SweepRun]) -> ArmScores:
        percent = [{name: 100 * share for name, share in _all_accuracies(run).items()} for run in runs]
        full = [share for share in map(fullness, runs) if share is not None]
        return cls(percent, len(runs), full)

    def values(self, benchmark: str) -> list[float]:
        return [run[benchmark] for run in self.runs if benchmark in run]

    def averages(self, benchmarks: Sequence[str]) -> list[float]:
        """The mean over benchmarks of each run that has them all."""
        complete = [run for run in self.runs if all(name in run for name in benchmarks)]
        return [float(np.mean([run[name] for name in benchmarks])) for run in complete] if benchmarks else []

    def seeds(self, benchmarks: Sequence[str]) -> str:
        """How many runs have all benchmarks."""
        return count(len(self.averages(benchmarks)), self.planned)


def mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation (n - 1); None for fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def count(done: int, planned: int) -> str:
    """`3`, or `1 of 3` while some are missing."""
    return str(done) if done == planned else f"{done} of {planned}"
