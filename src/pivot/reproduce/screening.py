"""What is best is chosen on the validation split; in a screened group only the winner gets the remaining seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pivot.reproduce.plan import Cell, Group, Side, side_cells
from pivot.reproduce.results import Results


def sides_of(group: Group, arm: str, world: str = "main") -> list[Side]:
    """The values of a sweep, for one arm."""
    return [Side(arm, world, settings) for settings in group.variants()]


def seeds_of_choice(results: Results, sides: Sequence[Side], group: Group) -> int:
    """The first so many seeds are finished at every value; 0 where they are too few to choose by."""
    finished = 0
    while finished < group.seeds and all(
        side_cells(side, finished + 1)[finished] in results.by_cell for side in sides
    ):
        finished += 1
    return finished if finished >= (group.screened or group.seeds) else 0


def best_side(results: Results, sides: Sequence[Side], group: Group) -> Side | None:
    """The one with the highest mean validation accuracy, of equal ones the first; None until enough is finished."""
    seeds = seeds_of_choice(results, sides, group)
    if not seeds:
        return None
    found = [results.values(side_cells(side, seeds), "validation") for side in sides]
    means = [float(values_SP.mean()) for values_SP in found if values_SP is not None]
    return sides[means.index(max(means))]


def due_cells(results: Results, cells: Iterable[Cell]) -> list[Cell]:
    """Of these cells the ones that some group of the plan asks for, as far as the results can tell by now."""
    due = {cell for name in results.plan.groups for cell in due_of_group(results, name)}
    return [cell for cell in cells if cell in due]


def due_of_group(results: Results, name: str) -> list[Cell]:
    group = results.plan.groups[name]
    return [cell for cell in results.plan.group_cells(name) if _is_due(results, group, cell)]


def _is_due(results: Results, group: Group, cell: Cell) -> bool:
    """Everything but the seeds after the screening at values other than the common and the best one.

    What is finished stays, whoever won.
    """
    if not group.screened or cell.is_single or cell.seed < group.screened or cell.settings == group.settings:
        return True
    if cell in results.by_cell:
        return True
    best = best_side(results, sides_of(group, cell.arm, cell.world), group)
    return best is not None and best.settings == cell.settings
