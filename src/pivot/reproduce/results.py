"""The raw numbers of finished cells, and the values that comparisons are made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pivot.errors import UserError
from pivot.reproduce.cells import result_path
from pivot.reproduce.plan import OVERHEAD, Cell, Plan

Raw = dict[str, Any]

SETS = ("test", "ood", "validation", "blank")
LOOKS = ("dependency", "attention")


@dataclass(frozen=True)
class Results:
    """What a results folder holds of a plan's cells."""

    plan: Plan
    by_cell: dict[Cell, Raw]

    @classmethod
    def load(cls, plan: Plan, folder: Path) -> Results:
        """All cells that are there; files that belong to no cell of the plan are left alone."""
        found = {}
        for cell in plan.cells():
            path = result_path(plan, cell, folder)
            if path.exists():
                found[cell] = _read(path)
        return cls(plan, found)

    def durations(self) -> dict[bool, list[float]]:
        """Seconds of finished cells, by whether they are single ones."""
        found: dict[bool, list[float]] = {True: [], False: []}
        for cell, raw in self.by_cell.items():
            found[cell.is_single].append(raw["seconds"]["cell"])
        return found

    def pace(self, arm: str) -> float | None:
        """Processor seconds of a step of this method, from the cell in which methods take turns; None if not timed.

        The cells' own times would not do: they ran under different load.
        """
        timed = [raw["overhead"] for cell, raw in self.by_cell.items() if cell.arm == OVERHEAD]
        return timed[0][arm]["processor"] if timed and arm in timed[0] else None

    def get(self, cells: Sequence[Cell]) -> list[Raw]:
        """Those of the cells that are finished."""
        return [self.by_cell[cell] for cell in cells if cell in self.by_cell]

    def values(self, cells: Sequence[Cell], metric: str) -> np.ndarray | None:
        """[seeds, prompts] of a metric (one column where it has no prompts); None unless all cells are finished."""
        raws = self.get(cells)
        if not cells or len(raws) < len(cells):
            return None
        return np.stack([values_of(raw, metric) for raw in raws])


def _read(path: Path) -> Raw:
    try:
        return json.loads(path.read_bytes())
    except ValueError as broken:
        raise UserError(f"{path} is damaged ({broken}): remove it, and its cell is run again.") from broken


def values_of(raw: Raw, metric: str) -> np.ndarray:
    """A metric's values of one cell: by prompt where it is measured on prompts, else a single number."""
    if metric in SETS:
        return np.array(raw["sets"][metric]["correct"]) / raw["sets"][metric]["samples"]
    if metric in LOOKS:
        return np.array(raw["looks"][metric])
    if metric == "format":
        return np.array([raw["sets"]["test"]["format"]])
    if metric == "auc":
        return np.array([area(raw["curve"]["steps"], raw["curve"]["accuracy"])])
    raise UserError(
        f"there is no metric {metric!r}: choose among {', '.join((*SETS, *LOOKS, 'format', 'auc', 'equal_time'))}."
    )


def area(steps: Sequence[float], accuracy: Sequence[float]) -> float:
    """Mean height of the validation curve between its first and its last point, by trapezoids."""
    if len(steps) < 2:
        return float(accuracy[0])
    widths = np.diff(steps)
    heights = (np.array(accuracy[1:]) + np.array(accuracy[:-1])) / 2
    return float((widths * heights).sum() / widths.sum())


def at_equal_time(first: Raw, second: Raw, paces: tuple[float, float]) -> tuple[float, float]:
    """Validation accuracy of two cells at the moment when the one that takes less time has finished its steps.

    Args:
        first: a cell's numbers.
        second: the other's.
        paces: seconds of a step of each.
    """
    times = [np.array(raw["curve"]["steps"]) * pace for raw, pace in zip((first, second), paces, strict=True)]
    moment = min(time[-1] for time in times)
    one, other = (
        float(np.interp(moment, time, raw["curve"]["accuracy"]))
        for raw, time in zip((first, second), times, strict=True)
    )
    return one, other


def task_accuracy(raw: Raw, name: str) -> dict[str, float]:
    """Accuracy of each task of a set, whose prompts take turns."""
    found = raw["sets"][name]
    accuracies = np.array(found["correct"]) / found["samples"]
    tasks = found["tasks"]
    return {task: float(accuracies[i :: len(tasks)].mean()) for i, task in enumerate(tasks)}
