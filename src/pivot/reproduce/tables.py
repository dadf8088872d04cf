"""The tables of the results page, from the raw numbers of finished cells; a row whose cells are missing says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pivot.reproduce.plan import BASE, Cell, Group, Side, short_setting, side_cells
from pivot.reproduce.results import Results, task_accuracy, values_of
from pivot.reproduce.statistics import Difference, show, spread
from pivot.reproduce.verdicts import Judged, compare

NOT_RUN = "not run yet"
GAP = "–"
DAPO = Side("dapo")


@dataclass(frozen=True)
class Line:
    """A row to be: what it is called, what it is, and what it is compared with."""

    label: str
    side: Side
    seeds: int
    reference: Side | None = None

    @property
    def cells(self) -> list[Cell]:
        return side_cells(self.side, self.seeds)


def lines(group: Group, reference: str | None = "dapo") -> list[Line]:
    """A group's rows; each trained arm is compared with `reference` in its own world.

    An arm of the group is the reference as the group has it, any other arm as its preset is; what varies is left out.
    """
    common = group.settings if reference in group.arms else ()
    found = []
    for world in group.worlds:
        for arm in group.arms:
            for settings in [()] if Cell(world, arm).is_single else group.variants():
                side = Side(arm, world, settings)
                against = Side(reference, world, common) if reference and arm != BASE else None
                said = [arm, *map(short_setting, settings)]
                label = " ".join(said if len(group.worlds) == 1 else [f"{world}:", *said])
                found.append(Line(label, side, group.seeds, None if against == side else against))
    return found


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, the first column to the left and the others to the right; a bar in a cell stays one."""
    marks = [":--", *("--:" for _ in head[1:])]
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in (head, marks, *rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def accuracy_table(results: Results, chosen: Sequence[Line]) -> str:
    """Accuracy@8 in and out of domain with differences, the area under the learning curve, and who keeps the format."""
    head = ["", "in domain", "difference", "out of domain", "difference", "area", "difference", "in form"]
    rows = []
    for line in chosen:
        cells = [line.label]
        for metric in ("test", "ood", "auc"):
            if metric == "auc" and line.side.arm == BASE:
                cells += [GAP, GAP]
            else:
                cells += [mean_of(results, line, metric), difference_of(results, line, metric)]
        rows.append(_shortened(results, line, [*cells, mean_of(results, line, "format")]))
    return markdown(head, rows)


def image_table(results: Results, chosen: Sequence[Line]) -> str:
    """How much responses hang on the image: blank images, V(y), attention."""
    head = ["", "blank images", "V(y)", "difference", "attention to the image", "difference"]
    rows = []
    for line in chosen:
        cells = [line.label, mean_of(results, line, "blank")]
        for metric in ("dependency", "attention"):
            percent = metric == "attention"
            cells += [mean_of(results, line, metric, percent=percent)]
            cells += [difference_of(results, line, metric, percent=percent)]
        rows.append(_shortened(results, line, cells))
    return markdown(head, rows)


def task_table(results: Results, chosen: Sequence[Line], name: str) -> str:
    """Accuracy@8 of each task of a set, mean over seeds."""
    tasks = next((raw["sets"][name]["tasks"] for raw in results.by_cell.values() if "sets" in raw), [])
    rows = []
    for line in chosen:
        raws = results.get(line.cells)
        complete = len(raws) == len(line.cells)
        found = [task_accuracy(raw, name) for raw in raws] if complete else []
        means = [_percent(float(np.mean([f[task] for f in found]))) if found else GAP for task in tasks]
        rows.append(_shortened(results, line, [line.label, *means]))
    return markdown(["", *tasks], rows) if tasks else NOT_RUN


def time_table(results: Results, chosen: Sequence[Line]) -> str:
    """The last validation accuracy after the same steps, and after the same time as the faster of the two."""
    rows = []
    for line in chosen:
        cells = [line.label, GAP, GAP, GAP]
        raws = results.get(line.cells)
        if line.side.arm != BASE and len(raws) == len(line.cells):
            pace = results.pace(line.side.arm)
            cells[1:] = [GAP if pace is None else f"{show(pace, '.2f')} s"]
            cells += [difference_of(results, line, metric) for metric in ("validation", "equal_time")]
        rows.append(_shortened(results, line, cells))
    return markdown(["", "processor, a step", "difference after equal steps", "after equal time"], rows)


def seeds_table(results: Results) -> str:
    """Every finished training cell: in-domain accuracy, and in brackets what is in form; a row for each side."""
    rows: dict[Side, dict[int, str]] = {}
    for cell, raw in results.by_cell.items():
        if not cell.is_single:
            found = [_percent(float(values_of(raw, metric).mean())) for metric in ("test", "format")]
            rows.setdefault(Side(cell.arm, cell.world, cell.settings), {})[cell.seed] = (
                f"{found[0]} ({found[1]})"
            )
    seeds = range(1 + max((seed for row in rows.values() for seed in row), default=-1))
    named = [
        [
            " ".join([side.world, side.arm, *map(short_setting, side.settings)]),
            *(row.get(s, GAP) for s in seeds),
        ]
        for side, row in rows.items()
    ]
    return markdown(["", *(f"seed {seed}" for seed in seeds)], named)


def claims_table(judged: Sequence[Judged]) -> str:
    rows = []
    for one in judged:
        claim = one.claim
        progress = f"{NOT_RUN} ({one.done} of {one.needed} cells)"
        percent = claim.metric != "dependency"
        shown = GAP if one.difference is None else interval(one.difference, percent=percent)
        verdict = progress if one.difference is None else f"**{one.verdict}**"
        rows.append([claim.text, METRICS[claim.metric], f"{claim.seeds}", shown, verdict])
    return markdown(["claim", "measured by", "seeds", "difference", "verdict"], rows)


METRICS = {
    "test": "in domain",
    "ood": "out of domain",
    "auc": "area under the curve",
    "equal_time": "validation, equal time",
    "dependency": "V(y)",
    "attention": "attention",
    "validation": "validation",
    "blank": "blank images",
}


def mean_of(results: Results, line: Line, metric: str, *, percent: bool = True) -> str:
    """`74.0 ± 1.2` over seeds."""
    values_SP = results.values(line.cells, metric)
    if values_SP is None:
        return GAP
    means_S = values_SP.mean(axis=1)
    wide = spread(means_S)
    if not percent:
        return show(float(means_S.mean()), ".3f") + ("" if wide is None else f" ± {show(wide, '.3f')}")
    return _percent(float(means_S.mean())) + ("" if wide is None else f" ± {_percent(wide)}")


def difference_of(results: Results, line: Line, metric: str, *, percent: bool = True) -> str:
    if line.reference is None:
        return GAP
    found = compare(results, line.side, line.reference, metric, line.seeds)
    return GAP if found is None else interval(found, percent=percent)


def interval(found: Difference, *, percent: bool = True) -> str:
    """`+2.1 [+0.4, +3.8]`, in points of a hundred."""
    scale, form = (100, "+.1f") if percent else (1, "+.3f")
    mean, low, high = (show(scale * value, form) for value in (found.mean, found.low, found.high))
    return f"{mean} [{low}, {high}]"


def with_seeds(chosen: Sequence[Line], seeds: int) -> list[Line]:
    return [replace(line, seeds=seeds) for line in chosen]


def _shortened(results: Results, line: Line, cells: list[str]) -> list[str]:
    """A row that is not complete says how far it is."""
    done, needed = len(results.get(line.cells)), len(line.cells)
    if done == needed:
        return cells
    return [cells[0], f"{NOT_RUN} ({done} of {needed})", *(GAP for _ in cells[2:])]


def _percent(share: float) -> str:
    return show(100 * share, ".1f")
