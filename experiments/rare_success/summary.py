"""The study on one page: what each arm gains over DAPO at equal rollouts, by how rare successes are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pivot.jsonl import read_rows
from pivot.report.tables import Column, Row, Table, Value
from pivot.sweep.plan import Plan
from pivot.sweep.runs import SweepRun
from pivot.sweep.scores import measure_pair
from pivot.sweep.statistics import paired_difference

BASELINE = "DAPO"
MEASURED = {
    "accuracy": "new prompts of any difficulty",
    "final": "new prompts as rarely solved as the training prompts",
    "train": "the training prompts",
}
"""Measure -> what it is measured on."""

Cells = dict[tuple[str, str], list[SweepRun]]
"""(Arm before values were given to it, success rate) -> its runs with one group size."""


def summary(plan: Plan, runs: Sequence[SweepRun], sets: Mapping[str, Mapping[str, Any]]) -> Iterator[Table]:
    """For each group size that has runs: the differences to DAPO by measure, then what replay changed in the rollouts.

    Args:
        sets: what was recorded of the training sets, by name.
    """
    for group in plan.vary["group"].values:
        cells: Cells = {}
        for run in runs:
            arm = plan.arms[run.arm]
            if arm.values.get("group") == group:
                cells.setdefault((arm.family, arm.values["rate"]), []).append(run)
        if any(run.is_trained for found in cells.values() for run in found):
            for measure, where in MEASURED.items():
                yield _differences(plan, cells, group, measure, where)
            yield _rollouts(plan, cells, group, sets)


def _differences(plan: Plan, cells: Cells, group: str, measure: str, where: str) -> Table:
    others = [name for name in _families(plan) if name != BASELINE]
    rows = []
    for rate in _rates(plan):
        base = cells.get((BASELINE, rate), [])
        own = [pair[0] for run in base if (pair := measure_pair(measure, run, run)) is not None]
        ahead = [_difference(cells.get((name, rate), []), base, measure) for name in others]
        rows.append(Row(rate, (100 * float(np.mean(own)) if own else None, *ahead), ranked=False))
    columns = (
        Column(BASELINE, best=None, form=".1f"),
        *(Column(name, best=None) for name in others),
    )
    caption = (
        f"{group}, {where}: accuracy@{plan.samples} of DAPO in per cent, and how many points each arm is ahead of it, "
        "with a 95% interval over seeds and their number where some have not run"
    )
    return Table(f"{measure}-{group}", caption, "Success rate", columns, tuple(rows))


def _difference(ours: Sequence[SweepRun], theirs: Sequence[SweepRun], measure: str) -> Value:
    """`+1.2 [-0.3, +2.6]`; None before two seeds of both have run."""
    by_seed = {run.seed: run for run in theirs}
    pairs = [measure_pair(measure, run, by_seed[run.seed]) for run in ours if run.seed in by_seed]
    done_S2 = np.array([pair for pair in pairs if pair is not None])
    if len(done_S2) < 2:
        return None
    found = paired_difference(done_S2[:, :1], done_S2[:, 1:])
    mean, low, high = (100 * value for value in (found.mean, found.low, found.high))
    missing = "" if len(done_S2) == len(pairs) else f" ({len(done_S2)} of {len(pairs)})"
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]{missing}"


def _rollouts(plan: Plan, cells: Cells, group: str, sets: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = []
    for rate in _rates(plan):
        known = sets[_set_name(plan.vary["rate"].values[rate])]
        informative = 100 * known[f"informative_of_{group.rpartition('=')[2]}"]
        kept = [_mean_of(cells.get((name, rate), []), _kept) for name in (BASELINE, "SER")]
        gain = _mean_of(cells.get(("SER", rate), []), _gain)
        rows.append(Row(rate, (100 * known["success_rate"], informative, *kept, gain), ranked=False))
    columns = (
        Column("Measured rate, %", best=None, form=".1f"),
        Column("Informative at the start, %", best=None, form=".1f"),
        Column("Kept by DAPO, %", best=None, form=".1f"),
        Column("Kept by SER, %", best=None, form=".1f"),
        Column("Replay gain", best=None, form="+.3f"),
    )
    caption = (
        f"{group}: how often the start solves the training prompts, the share of groups with right and wrong "
        "responses at the start and during training, and `buffer/replay_gain`, mean over steps and seeds"
    )
    return Table(f"rollouts-{group}", caption, "Success rate", columns, tuple(rows))


def _kept(run: SweepRun) -> float | None:
    """Groups that were trained on, of those sampled, in per cent."""
    rows = read_rows(run.folder / "metrics.jsonl")
    sampled = sum(row.get("rollout/groups", 0) for row in rows)
    return 100 * sum(row.get("rollout/groups_kept", 0) for row in rows) / sampled if sampled else None


def _gain(run: SweepRun) -> float | None:
    gains = [row.get("buffer/replay_gain") for row in read_rows(run.folder / "metrics.jsonl")]
    found = [gain for gain in gains if gain is not None]
    return float(np.mean(found)) if found else None


def _mean_of(runs: Sequence[SweepRun], measure: Callable[[SweepRun], float | None]) -> float | None:
    found = [value for run in runs if run.is_trained and (value := measure(run)) is not None]
    return float(np.mean(found)) if found else None


def _families(plan: Plan) -> list[str]:
    """The arms before values were given to them, in the plan's order."""
    return list(dict.fromkeys(arm.family for arm in plan.arms.values() if arm.family))


def _rates(plan: Plan) -> list[str]:
    """From the most frequent success on."""
    return sorted(plan.vary["rate"].values, key=lambda rate: int(rate.rstrip("%")), reverse=True)


def _set_name(settings: Sequence[str]) -> str:
    """`tiny-hard-20`, from `data.train=.../tiny-hard-20.jsonl`."""
    (path,) = [value for name, _, value in (s.partition("=") for s in settings) if name == "data.train"]
    return path.rpartition("/")[2].removesuffix(".jsonl")
