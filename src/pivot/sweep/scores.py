"""What was measured of a run: only evaluations that were made as the plan asks count."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pivot.jsonl import read_rows
from pivot.sweep.runs import SweepRun


def accuracies(run: SweepRun) -> dict[str, float]:
    """Benchmark -> accuracy of the last checkpoint with the plan's samples, limit and settings."""
    path = run.folder / "eval" / "scores.json"
    if not path.exists():
        return {}
    entries = json.loads(path.read_bytes())["evaluations"]
    return {entry["name"]: float(entry["accuracy"]) for entry in entries if _counts(entry, run)}


def _counts(entry: dict[str, Any], run: SweepRun) -> bool:
    """Only an evaluation of the last checkpoint by `pivot eval`, made as the plan asks."""
    made = entry.get("settings")
    if made is None or entry["blank"] or (entry["when"], entry["samples"]) != (run.when, run.plan.samples):
        return False
    asked = {name: value for name, value in run.eval_settings().items() if value is not None}
    return entry.get("limit") == run.plan.limit and all(made.get(name) == v for name, v in asked.items())


def fullness(run: SweepRun) -> float | None:
    """Groups that the run's steps trained on, of those they asked for, in per cent; None before the first step."""
    rows = read_rows(run.folder / "metrics.jsonl") if run.seed is not None else []
    wanted = sum(row.get("rollout/groups_wanted", 0) for row in rows)
    return 100 * sum(row.get("rollout/groups_kept", 0) for row in rows) / wanted if wanted else None


def unmeasured(run: SweepRun) -> list[str]:
    """The plan's benchmarks that are still to be evaluated."""
    done = accuracies(run)
    return [name for name in run.plan.sets if name not in done]


@dataclass(frozen=True)
class ArmScores:
    """The accuracies of an arm's runs, in per cent."""

    runs: list[dict[str, float]]
    planned: int
    full: list[float]
    """Of each trained run, how full its steps were, in per cent."""

    @classmethod
    def read(cls, runs: Sequence[SweepRun]) -> ArmScores:
        percent = [{name: 100 * share for name, share in accuracies(run).items()} for run in runs]
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
