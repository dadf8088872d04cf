"""When a run collapses, and when it should by what Eq. 14 adds in expectation.

Eq. 14 adds beta E|A| (p - q) to the logits in every update, whether responses are right or wrong
(experiments/tiny_world). If that push decides, a run collapses after a fixed amount of it, so that the step is
inversely proportional to beta x learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from pivot.config import Config
from pivot.method.variants import VariantAllocation
from pivot.method.visual import VisualAllocation
from pivot.report.tables import Column, Row, Table
from pivot.sweep.plan import Plan

WINDOW = 5
"""Steps over which accuracy is averaged."""
FALL = 0.6
"""A run has collapsed once its accuracy is below this share of the highest so far."""
WARM = 15
"""Steps that are too early to tell."""
USUAL_RATE = 1e-4


def collapse_step(accuracy: Sequence[float]) -> int | None:
    """The last step of the first window with less than FALL of the highest accuracy of any window before; or None.

    Example:
        collapse_step([0.5] * 40 + [0.1] * 5) == 45
    """
    windows = [
        (start + WINDOW, float(np.mean(accuracy[start : start + WINDOW])))
        for start in range(0, len(accuracy) - WINDOW + 1, WINDOW)
    ]
    highest = 0.0
    for end, value in windows:
        highest = max(highest, value)
        if end > WARM and value < FALL * highest:
            return end
    return None


def push(config: Config) -> float:
    """beta x learning rate in units of the usual rate; 0 where Eq. 14 is weighed, which has no push in expectation."""
    visual = config.method.visual
    assert isinstance(visual, VisualAllocation)
    if isinstance(visual, VariantAllocation) and visual.modulation == "weigh":
        return 0.0
    return visual.beta * config.train.lr / USUAL_RATE


def predicted_step(known: Mapping[str, Mapping[str, Any]], reference: str) -> float | None:
    """The step at which a push of 1 collapses: the median over the seeds of the arm that it is taken from."""
    found = [one["collapse"] or one["steps"] for one in known.values() if one["arm"] == reference]
    return median(found) if found else None


def table(plan: Plan, known: Mapping[str, Mapping[str, Any]], reference: str = "VAA, beta 1") -> Table:
    """A row per arm, the strongest push first: when it should collapse by the reference, and when its seeds did."""
    unit = predicted_step(known, reference)
    rows = []
    for arm in plan.arms:
        ours = [one for one in known.values() if one["arm"] == arm]
        if not ours:
            continue
        strength = ours[0]["push"]
        due = f"{unit / strength:.0f}" if unit and strength and arm != reference else None
        seen = [str(one["collapse"] or f"not in {one['steps']}") for one in ours]
        rows.append((strength, Row(arm, (strength, due, ", ".join(seen)), ranked=False)))
    columns = (
        Column("Push", best=None, form=".2f"),
        Column("Predicted step", best=None),
        Column("Step of collapse, by seed", best=None),
    )
    ordered = sorted(rows, key=lambda row: -row[0])
    caption = (
        f"Step at which the mean accuracy of {WINDOW} steps falls below {FALL:.0%} of its highest; predicted from "
        f"the median of `{reference}`, in inverse proportion to the push: beta x learning rate / {USUAL_RATE:g}"
    )
    return Table("collapse", caption, "Arm", columns, tuple(row for _, row in ordered))
