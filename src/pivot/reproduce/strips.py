"""Figures in which every seed is a dot: what the modules do in each world, and how much a setting matters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pivot.config.schema import all_fields
from pivot.report.figures import COLOURS, STYLE
from pivot.reproduce.cells import cell_config
from pivot.reproduce.plan import Cell, Plan, Side, side_cells
from pivot.reproduce.results import Results

WORLD_ARMS = ("ser", "vaa", "pivot", "pivot-absolute", "pivot-bounded", "pivot-weighted")
SWEPT = {"beta": "beta", "lambda-exp": "lambda_exp"}
"""Groups that vary one setting of one arm, and what the axis says."""

PUSHED = {"push": ("DAPO with a perception term", 1.0), "beta": ("PIVOT, at 0.8 beta", 0.8)}
"""Groups that vary the weight of a push away from the corrupted image: the series, and the weight of one unit.

Of a group of eight responses with one to seven right ones |A| is 0.80 on average, so Eq. 14 has 0.8 beta.
"""

Strips = Mapping[str, Mapping[str, np.ndarray]]
"""Series -> column -> its seeds, in points."""


def worlds_figure(plan: Plan, results: Results) -> Figure | None:
    """In-domain difference to DAPO of each seed, a column a world; None before there are two worlds to compare."""
    theirs = {
        world: _seeds(results, Side("dapo", world), plan.seeds_of(Side("dapo", world)))
        for world in plan.worlds
    }
    finished = {world: values for world, values in theirs.items() if values is not None}
    if len(finished) < 2:
        return None
    strips: dict[str, dict[str, np.ndarray]] = {}
    for arm, (world, dapo) in itertools.product(WORLD_ARMS, finished.items()):
        ours = _seeds(results, Side(arm, world), len(dapo))
        if ours is not None:
            strips.setdefault(arm, {})[world] = ours - dapo
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.6))
        axes = figure.add_subplot()
        _dodged(axes, strips, list(finished))
        axes.axhline(0, color="#8a939f", linewidth=0.8)
        axes.set_title("Difference to DAPO in each world")
        axes.set_ylabel("in domain, points")
        axes.legend(ncols=len(strips), loc="upper center", bbox_to_anchor=(0.5, -0.1))
    return figure


def sensitivity_figure(plan: Plan, results: Results) -> Figure | None:
    """In-domain accuracy of each seed over the values of a setting, a panel a setting; DAPO is the dashed line."""
    panels = {said: _swept(plan, results, name) for name, said in SWEPT.items() if name in plan.groups}
    panels = {said: found for said, found in panels.items() if len(found) > 1}
    if not panels:
        return None
    dapo = _seeds(
        results, Side("dapo"), max(len(values) for found in panels.values() for values in found.values())
    )
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.6 * len(panels), 3.0))
        for axes, (said, found) in zip(
            np.atleast_1d(figure.subplots(1, len(panels), sharey=True)), panels.items(), strict=True
        ):
            for place, values in enumerate(found.values()):
                axes.plot([place] * len(values), values, "o", color=COLOURS[0], alpha=0.55, markersize=4)
            axes.plot([values.mean() for values in found.values()], color=COLOURS[0], linewidth=1.7)
            if dapo is not None:
                axes.axhline(dapo.mean(), color=COLOURS[5], linestyle="--", linewidth=1.2)
            axes.set_xticks(range(len(found)), list(found))
            axes.set_xlabel(said)
            axes.grid(axis="x", visible=False)
        figure.axes[0].set_title("PIVOT, each seed and their mean; dashed: DAPO")
        figure.axes[0].set_ylabel("in domain, per cent")
    return figure


def push_figure(plan: Plan, results: Results) -> Figure | None:
    """Responses in form of each seed over the weight of the push: as a term of its own, and as what Eq. 14 adds."""
    strips: dict[str, dict[str, np.ndarray]] = {}
    for name, (said, unit) in PUSHED.items():
        found = _swept(plan, results, name, "format") if name in plan.groups else {}
        if len(found) > 1:
            strips[said] = {f"{unit * float(value):g}": values for value, values in found.items()}
    if len(strips) < len(PUSHED):
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.2))
        axes = figure.add_subplot()
        _dodged(axes, strips, sorted({weight for found in strips.values() for weight in found}, key=float))
        axes.set_title("What is left of the form, by the weight of the push")
        axes.set_xlabel("weight of the push away from the corrupted image")
        axes.set_ylabel("in form, per cent")
        axes.legend(loc="lower left")
    return figure


def _dodged(axes: Axes, strips: Strips, columns: Sequence[str]) -> None:
    """Series side by side in each column: a dot a seed, a bar at their mean."""
    width = 0.8 / len(strips)
    for number, (name, by_column) in enumerate(strips.items()):
        for column, values in by_column.items():
            place = columns.index(column) + (number - (len(strips) - 1) / 2) * width
            axes.plot([place] * len(values), values, "o", color=COLOURS[number], alpha=0.55, markersize=4)
            axes.hlines(
                values.mean(), place - 0.4 * width, place + 0.4 * width, color=COLOURS[number], linewidth=2
            )
        axes.plot([], [], "o", color=COLOURS[number], label=name)
    axes.set_xticks(range(len(columns)), list(columns))
    axes.grid(axis="x", visible=False)


def _swept(plan: Plan, results: Results, name: str, metric: str = "test") -> dict[str, np.ndarray]:
    """Value -> its seeds; what is unchanged has the value of the arm's own configuration."""
    group = plan.groups[name]
    setting = group.vary[0].partition("=")[0].strip()
    config = cell_config(plan, Cell("main", group.arms[0]))
    own = next(info.value for info in all_fields(config) if info.path == setting)
    found: dict[str, np.ndarray] = {}
    for settings in group.variants():
        values = _seeds(results, Side(group.arms[0], "main", settings), group.seeds, metric)
        if values is not None:
            found[settings[0].partition("=")[2] if settings else f"{own:g}"] = values
    return found


def _seeds(results: Results, side: Side, seeds: int, metric: str = "test") -> np.ndarray | None:
    """A metric of each seed, by default in-domain accuracy, per cent; None unless all are finished."""
    values_SP = results.values(side_cells(side, seeds), metric)
    return None if values_SP is None else 100 * values_SP.mean(axis=1)
