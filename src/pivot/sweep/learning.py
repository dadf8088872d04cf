"""Learning curves over what was sampled: at equal places arms have spent equally much."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pivot.report.charts import Curve, LineChart
from pivot.sweep import scores
from pivot.sweep.axes import combinations
from pivot.sweep.plan import Plan
from pivot.sweep.runs import SweepRun, slug

POINTS = 60
"""Of a mean over runs that were evaluated at different places."""


def rollout_charts(plan: Plan, runs: Sequence[SweepRun]) -> list[LineChart]:
    """Validation accuracy over sampled responses, one chart for each combination of varied values."""
    return [
        chart for values in combinations(plan.vary, {}) if (chart := _chart(plan, runs, values)) is not None
    ]


def _chart(plan: Plan, runs: Sequence[SweepRun], values: dict[str, str]) -> LineChart | None:
    label = ", ".join(values.values())
    arms = [name for name, arm in plan.arms.items() if not arm.base and arm.values == values]
    curves = []
    for colour, arm in enumerate(arms):
        found = [scores.read_curve(run) for run in runs if run.arm == arm and run.is_trained]
        curve = _mean(plan.arms[arm].family or arm, [one for one in found if one is not None], colour)
        curves += [] if curve is None else [curve]
    if not curves:
        return None
    title = "Validation accuracy over sampled responses" + (f": {label}" if label else "")
    note = "Means over the seeds that are finished, with bands of one standard deviation"
    name = "-".join(["learning", *([slug(label)] if label else [])])
    return LineChart(name, title, note, tuple(curves), x_label="sampled responses", percent=True)


def _mean(label: str, found: Sequence[scores.Curve], colour: int) -> Curve | None:
    """The mean over runs, where all of them have values."""
    if not found:
        return None
    start, end = max(curve.rollouts[0] for curve in found), min(curve.rollouts[-1] for curve in found)
    if start >= end:
        return None
    places = np.linspace(start, end, POINTS)
    values_SN = np.array([np.interp(places, curve.rollouts, curve.accuracy) for curve in found])
    spread = values_SN.std(axis=0, ddof=1) if len(found) > 1 else None
    return Curve(label, places, values_SN.mean(axis=0), spread=spread, colour=colour)
