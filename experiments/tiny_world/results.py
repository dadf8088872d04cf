"""The raw numbers of finished cells, which cells are due, and what the numbers say about each claim."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.tiny_world.cells import result_path
from experiments.tiny_world.plan import OVERHEAD, Cell, Claim, Group, Plan, Side, side_cells
from pivot.errors import UserError
from pivot.sweep.scores import area
from pivot.sweep.statistics import Difference, paired_difference

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
        """All finished cells; files that belong to no cell of the plan are ignored."""
        found = {}
        for cell in plan.cells():
            path = result_path(plan, cell, folder)
            if path.exists():
                found[cell] = _read(path)
        return cls(plan, found)

    def pace(self, arm: str) -> float | None:
        """Processor seconds per step of this method in the overhead cell, where methods take turns; None: not timed.

        The cells' own times cannot be compared: they ran under different load.
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
        raise UserError(f"{path} is damaged ({broken}): remove it, and its cell runs again.") from broken


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


def at_equal_time(first: Raw, second: Raw, paces: tuple[float, float]) -> tuple[float, float]:
    """Validation accuracy of two cells when the faster one has finished; `paces` are their seconds per step."""
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


def sides_of(group: Group, arm: str, world: str = "main") -> list[Side]:
    """The values of a sweep, for one arm."""
    return [Side(arm, world, settings) for settings in group.variants()]


def seeds_of_choice(results: Results, sides: Sequence[Side], group: Group) -> int:
    """How many seeds are finished at every value; 0 where they are too few to choose by."""
    finished = 0
    while finished < group.seeds and all(
        side_cells(side, finished + 1)[finished] in results.by_cell for side in sides
    ):
        finished += 1
    return finished if finished >= (group.screened or group.seeds) else 0


def best_side(results: Results, sides: Sequence[Side], group: Group) -> Side | None:
    """The side with the highest mean validation accuracy; None until enough seeds are finished."""
    seeds = seeds_of_choice(results, sides, group)
    if not seeds:
        return None
    found = [results.values(side_cells(side, seeds), "validation") for side in sides]
    means = [float(values_SP.mean()) for values_SP in found if values_SP is not None]
    return sides[means.index(max(means))]


def due_cells(results: Results, cells: Iterable[Cell]) -> list[Cell]:
    """Those of the cells that some group asks for, as far as screening has decided."""
    due = {cell for name in results.plan.groups for cell in due_of_group(results, name)}
    return [cell for cell in cells if cell in due]


def due_of_group(results: Results, name: str) -> list[Cell]:
    group = results.plan.groups[name]
    return [cell for cell in results.plan.group_cells(name) if _is_due(results, group, cell)]


def _is_due(results: Results, group: Group, cell: Cell) -> bool:
    """After screening only the common and the best value run with the remaining seeds; finished cells stay."""
    if not group.screened or cell.is_single or cell.seed < group.screened or cell.settings == group.settings:
        return True
    if cell in results.by_cell:
        return True
    best = best_side(results, sides_of(group, cell.arm, cell.world), group)
    return best is not None and best.settings == cell.settings


@dataclass(frozen=True)
class Judged:
    """A claim with what the results say about it."""

    claim: Claim
    difference: Difference | None
    done: int
    """Cells of both sides that are finished."""
    needed: int

    @property
    def verdict(self) -> str:
        return "not run yet" if self.difference is None else self.difference.verdict()


def judge(results: Results, claim: Claim) -> Judged:
    """Judges only when every planned seed of both sides is finished: a favourable moment must not decide."""
    cells = side_cells(claim.first, claim.seeds) + side_cells(claim.second, claim.seeds)
    done = len(results.get(cells))
    found = compare(results, claim.first, claim.second, claim.metric, claim.seeds)
    return Judged(claim, found, done, len(cells))


def compare(results: Results, first: Side, second: Side, metric: str, seeds: int) -> Difference | None:
    """The paired difference of two sides; None unless all their cells are finished (and timed, for equal time)."""
    ours, theirs = side_cells(first, seeds), side_cells(second, seeds)
    if metric == "equal_time":
        one, other = results.get(ours), results.get(theirs)
        our_pace, their_pace = results.pace(first.arm), results.pace(second.arm)
        if len(one) < len(ours) or len(other) < len(theirs) or our_pace is None or their_pace is None:
            return None
        pairs = np.array(
            [at_equal_time(a, b, (our_pace, their_pace)) for a, b in zip(one, other, strict=True)]
        )
        return paired_difference(pairs[:, :1], pairs[:, 1:])
    one_SP, other_SP = results.values(ours, metric), results.values(theirs, metric)
    if one_SP is None or other_SP is None:
        return None
    return paired_difference(one_SP, other_SP)
