"""The tables of the page, from the raw numbers of finished cells; a row whose cells are missing says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.tiny_world.kinds import KINDS, Kind
from experiments.tiny_world.plan import BASE, Cell, Group, Side, short_setting, side_cells
from experiments.tiny_world.results import (
    Judged,
    Raw,
    Results,
    best_side,
    compare,
    seeds_of_choice,
    sides_of,
    task_accuracy,
    values_of,
)
from pivot.sweep.statistics import Difference, show

NOT_RUN = "not run yet"
GAP = "–"
DAPO = Side("dapo")


@dataclass(frozen=True)
class Line:
    """A row of a table: its label, the side it shows, and the side that it is compared with."""

    label: str
    side: Side
    seeds: int
    reference: Side | None = None

    @property
    def cells(self) -> list[Cell]:
        return side_cells(self.side, self.seeds)


def lines(group: Group, reference: str | None = "dapo") -> list[Line]:
    """A group's rows; each trained arm is compared with `reference` in its own world.

    A reference of the group has the group's settings, any other its preset's; varied settings are left out.
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
    """Accuracy@8 in and out of domain with differences, area under the learning curve, well-formed responses."""
    head = ["", "in domain", "difference", "out of domain", "difference", "area", "difference", "well-formed"]
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
    """How much responses depend on the image: blank images, V(y), attention."""
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
    return markdown(["", "processor, per step", "difference after equal steps", "after equal time"], rows)


def seeds_table(results: Results) -> str:
    """Every finished training cell: in-domain accuracy, and in brackets the well-formed responses; a row per side."""
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
    said = _percent if percent else lambda value: show(value, ".3f")
    wide = f" ± {said(float(means_S.std(ddof=1)))}" if len(means_S) > 1 else ""
    return said(float(means_S.mean())) + wide


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


def _shortened(results: Results, line: Line, cells: list[str]) -> list[str]:
    """An incomplete row says how many of its cells are finished."""
    done, needed = len(results.get(line.cells)), len(line.cells)
    if done == needed:
        return cells
    return [cells[0], f"{NOT_RUN} ({done} of {needed})", *(GAP for _ in cells[2:])]


def _percent(share: float) -> str:
    return show(100 * share, ".1f")


OWN = "unchanged"
"""The label of a cell without the varied setting."""


def sweep_table(results: Results, group: Group) -> str:
    """One arm's sweep: validation accuracy, the choice, and the final sets; compared with DAPO."""
    chosen = lines(group)
    best = best_side(results, [line.side for line in chosen], group)
    rows = []
    for line in chosen:
        mark = " (chosen)" if line.side == best else ""
        found = [mean_of(results, line, metric) for metric in ("validation", "test", "ood")]
        deltas = [difference_of(results, line, metric) for metric in ("test", "ood")]
        rows.append([_value(line.side) + mark, found[0], found[1], deltas[0], found[2], deltas[1]])
    head = ["", "validation", "in domain", "difference", "out of domain", "difference"]
    return markdown(head, rows)


def fair_table(results: Results, group: Group) -> str:
    """Every arm at its own best value of the sweep, against DAPO at its own best and both at the common value."""
    dapo = best_side(results, sides_of(group, "dapo"), group)
    rows = []
    for arm in group.arms:
        sides = sides_of(group, arm)
        seeds = seeds_of_choice(results, sides, group)
        curve = [mean_of(results, Line(arm, side, seeds or group.seeds), "validation") for side in sides]
        best = best_side(results, sides, group)
        common = difference_of(results, Line(arm, Side(arm), group.seeds, DAPO), "test")
        own = said = GAP
        if arm == "dapo":
            common = GAP
        elif best is not None and dapo is not None:
            found = compare(results, best, dapo, "test", group.seeds)
            own = GAP if found is None else interval(found)
            said = NOT_RUN if found is None else found.verdict()
        chosen = NOT_RUN if best is None else _value(best)
        rows.append([arm, *curve, f"{seeds}" if seeds else GAP, chosen, common, own, said])
    names = [_value(side) for side in sides_of(group, "dapo")]
    head = ["", *(f"validation, {name}" for name in names), "seeds of the choice", "own best"]
    return markdown([*head, "common value", "own best", "verdict"], rows)


def area_table(results: Results, group: Group) -> str:
    """Area under the learning curve at each value, on the seeds that make the choice."""
    rows = []
    for arm in group.arms:
        sides = sides_of(group, arm)
        seeds = seeds_of_choice(results, sides, group)
        found = [mean_of(results, Line(arm, side, seeds or group.seeds), "auc") for side in sides]
        rows.append([arm, f"{seeds}" if seeds else GAP, *found])
    return markdown(["", "seeds", *(_value(side) for side in sides_of(group, group.arms[0]))], rows)


def _value(side: Side) -> str:
    return " ".join(map(short_setting, side.settings)) or OWN


Entry = tuple[float, float, float]
"""Tokens, mean c, sum of 1 - p."""


def description_table(results: Results, worlds: Iterable[str]) -> str:
    """Each world's start: accuracy, origin of errors, how often a wrong percept is rewarded, weight of filler words."""
    head = ["", "in domain", "out of domain", "blank", "wrong: guessed", "wrong: a wrong percept",
            "rewarded without right percepts", "weight of words", "c, right percepts", "c, wrong percepts"]  # fmt: skip
    rows = []
    for world in worlds:
        raw = results.by_cell.get(Cell(world, BASE))
        rows.append([world, NOT_RUN, *(GAP for _ in head[2:])] if raw is None else [world, *_described(raw)])
    return markdown(head, rows)


def _described(raw: Raw) -> list[str]:
    sets = (raw["sets"][name] for name in ("test", "ood", "blank"))
    accuracies = [_share(sum(s["correct"]), len(s["correct"]) * s["samples"]) for s in sets]
    origins = raw["looks"]["origins"]
    wrong = sum(counts[1] for counts in origins.values())
    blind = [origins["guessed"], origins["looked wrong"]]
    pooled = pool(raw, ("right", "wrong"))
    weight = sum(entry[2] for entry in pooled.values())
    return [
        *accuracies,
        _share(origins["guessed"][1], wrong),
        _share(origins["looked wrong"][1], wrong),
        _share(sum(c[0] for c in blind), sum(c[0] + c[1] for c in blind)),
        _share(pooled["words"][2], weight) if "words" in pooled else GAP,
        _support(pooled, "right percept"),
        _support(pooled, "wrong percept"),
    ]


def pool(raw: Raw, verdicts: Sequence[str]) -> dict[Kind, Entry]:
    """c by kind of token over right responses, wrong ones, or both."""
    found: dict[Kind, Entry] = {}
    for kind in KINDS:
        entries = [
            raw["looks"]["kinds"][v][kind] for v in verdicts if kind in raw["looks"]["kinds"].get(v, {})
        ]
        tokens = sum(entry[0] for entry in entries)
        if tokens:
            mean = sum(entry[0] * entry[1] for entry in entries) / tokens
            found[kind] = (tokens, mean, sum(entry[2] for entry in entries))
    return found


def kind_table(results: Results, chosen: Sequence[Line]) -> str:
    """Mean c of each kind of token in right and in wrong responses, all finished seeds together."""
    columns = [(line, verdict) for line in chosen for verdict in ("right", "wrong")]
    pooled = []
    for line, verdict in columns:
        raws = results.get(line.cells)
        pooled.append([pool(raw, (verdict,)) for raw in raws] if len(raws) == len(line.cells) else [])
    if not any(pooled):
        return NOT_RUN
    rows = [[kind, *(_mean_support(found, kind) for found in pooled)] for kind in KINDS]
    return markdown(["", *(f"{line.label}, {verdict} responses" for line, verdict in columns)], rows)


def _mean_support(found: Sequence[Mapping[Kind, Entry]], kind: Kind) -> str:
    entries = [one[kind] for one in found if kind in one]
    tokens = sum(entry[0] for entry in entries)
    return show(sum(n * c for n, c, _ in entries) / tokens, "+.2f") if tokens else GAP


def help_table(results: Results, worlds: Sequence[str], arms: Sequence[str], seeds: Mapping[str, int]) -> str:
    """Difference to DAPO of the same world, in and out of domain; a row per world."""
    head = ["", *(f"{arm}, {where}" for arm in arms for where in ("in domain", "out of domain"))]
    rows = []
    for world in worlds:
        cells = [world]
        for arm in arms:
            line = Line(arm, Side(arm, world), seeds[world], Side("dapo", world))
            cells += [difference_of(results, line, metric) for metric in ("test", "ood")]
        rows.append(cells)
    return markdown(head, rows)


def _share(part: float, whole: float) -> str:
    return show(100 * part / whole, ".1f") if whole else GAP


def _support(pooled: Mapping[Kind, Entry], kind: Kind) -> str:
    return show(pooled[kind][1], "+.2f") if kind in pooled else GAP
