"""The figures of the page: learning curves, claims with their intervals, and every seed of the varied settings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.tiny_world.cells import cell_config
from experiments.tiny_world.plan import Cell, Plan, Side, side_cells
from experiments.tiny_world.results import Judged, Results, judge
from experiments.tiny_world.tables import lines
from pivot.config.schema import all_fields
from pivot.report.charts import Curve, LineChart
from pivot.report.figures import COLOURS, STYLE, plot

VERDICT_COLOURS = {"holds": COLOURS[2], "reversed": COLOURS[1]}
WIDEST = 40.0
"""Points; wider intervals, of seeds that disagree, are cut so that the others stay readable."""
CURVES = "main"
"""The group whose learning curves are drawn."""


def figures(plan: Plan, results: Results) -> dict[str, Figure]:
    """File name -> figure, where there is something to draw."""
    found: dict[str, Figure] = {}
    for chart in _learning_charts(plan, results) if CURVES in plan.groups else ():
        if chart.curves:
            found[chart.name] = _drawn(chart)
    judged = [judge(results, claim) for claim in plan.claims]
    shown = [one for one in judged if one.difference is not None and one.claim.metric != "dependency"]
    if shown:
        found["claims"] = claims_figure(shown)
    for name, drawn in (
        ("worlds", worlds_figure(plan, results)),
        ("sensitivity", sensitivity_figure(plan, results)),
        ("push", push_figure(plan, results)),
    ):
        if drawn is not None:
            found[name] = drawn
    return found


def write_figures(drawn: dict[str, Figure], folder: Path) -> None:
    """NAME.svg of each; the same numbers give the same bytes."""
    if drawn:
        folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, figure in drawn.items():
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def _learning_charts(plan: Plan, results: Results) -> list[LineChart]:
    """Held-out accuracy over steps and over time, and the accuracy of the rollouts themselves."""
    common = {"note": "", "percent": True}
    return [
        LineChart(
            "learning-steps", "Validation accuracy over steps",
            curves=_curves(plan, results, "curve", "accuracy"), **common,
        ),
        LineChart(
            "learning-time", "Validation accuracy over training time",
            curves=_over_time(results, _curves(plan, results, "curve", "accuracy")),
            x_label="seconds on one thread", whole=False, **common,
        ),
        LineChart(
            "training-accuracy", "Accuracy of the rollouts",
            curves=_curves(plan, results, "dynamics", "reward/accuracy"), **common,
        ),
    ]  # fmt: skip


def _curves(plan: Plan, results: Results, part: str, key: str) -> tuple[Curve, ...]:
    """The mean of each arm whose seeds are all finished; bands of one deviation over seeds."""
    curves = []
    for line in lines(plan.groups[CURVES]):
        raws = results.get(line.cells)
        if len(raws) == len(line.cells) and all(key in raw.get(part, {}) for raw in raws):
            places = np.mean([raw[part]["steps"] for raw in raws], axis=0)
            values = np.array([raw[part][key] for raw in raws], dtype=float)
            spread = values.std(axis=0, ddof=1) if len(raws) > 1 else None
            curves.append(Curve(line.label, places, values.mean(axis=0), spread=spread, colour=len(curves)))
    return tuple(curves)


def _over_time(results: Results, curves: Sequence[Curve]) -> tuple[Curve, ...]:
    """Curves over steps as curves over seconds, those of methods that were timed."""
    paces = [results.pace(curve.label) for curve in curves]
    return tuple(
        replace(curve, steps=curve.steps * pace)
        for curve, pace in zip(curves, paces, strict=True)
        if pace is not None
    )


def _drawn(chart: LineChart) -> Figure:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.6))
        axes = figure.add_subplot()
        axes.set_title(chart.title)
        plot(chart, axes)
    return figure


def claims_figure(judged: Sequence[Judged]) -> Figure:
    """A line per claim, the first at the top: the difference and its interval, coloured by the verdict."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 0.9 + 0.24 * len(judged)))
        axes = figure.add_subplot()
        for place, one in enumerate(judged):
            found = one.difference
            assert found is not None
            colour = VERDICT_COLOURS.get(one.verdict, COLOURS[5])
            low, mean, high = (100 * value for value in (found.low, found.mean, found.high))
            axes.plot(np.clip([low, high], -WIDEST, WIDEST), [place, place], color=colour, linewidth=2)
            if abs(mean) <= WIDEST:
                axes.plot(mean, place, "o", color=colour, markersize=4.5)
            for end in (low, high):
                if abs(end) > WIDEST:
                    arrow = "<" if end < 0 else ">"
                    axes.plot(np.sign(end) * WIDEST, place, arrow, color=colour, markersize=6)
        axes.axvline(0, color="#8a939f", linewidth=0.8)
        axes.set_yticks(range(len(judged)), [one.claim.text for one in judged], fontsize=7)
        axes.set_ylim(len(judged) - 0.3, -0.7)
        axes.grid(axis="y", visible=False)
        axes.set_xlim(-WIDEST * 1.05, WIDEST * 1.05)
        axes.set_xlabel("difference, points (95% interval; arrow: beyond the figure)")
        axes.set_title("Claims")
    return figure


WORLD_ARMS = ("ser", "vaa", "pivot", "pivot-absolute", "pivot-bounded", "pivot-weighted")
SWEPT = {"beta": "beta", "lambda-exp": "lambda_exp"}
"""Groups that vary one setting of one arm, and what the axis says."""

PUSHED = {"push": ("DAPO with a perception term", 1.0), "beta": ("PIVOT, at 0.8 beta", 0.8)}
"""Groups that vary the weight of a push away from the corrupted image: the series, and its weight per unit.

In a group of eight responses with one to seven right ones |A| is 0.80 on average, so the weight is 0.8 beta.
"""

Strips = Mapping[str, Mapping[str, np.ndarray]]
"""Series -> column -> its seeds, in points."""


def worlds_figure(plan: Plan, results: Results) -> Figure | None:
    """In-domain difference to DAPO of each seed, a column per world; None before there are two worlds to compare."""
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
    """In-domain accuracy of each seed over the values of a setting, a panel per setting; DAPO is the dashed line."""
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
    """Well-formed responses of each seed over the weight of the push: as its own term, and as what Eq. 14 adds."""
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
        axes.set_title("Well-formed responses by the weight of the push")
        axes.set_xlabel("weight of the push away from the corrupted image")
        axes.set_ylabel("well-formed, per cent")
        axes.legend(loc="lower left")
    return figure


def _dodged(axes: Axes, strips: Strips, columns: Sequence[str]) -> None:
    """Series side by side in each column: a dot per seed, a bar at their mean."""
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
    """Value -> its seeds; an unchanged setting has the value of the arm's own configuration."""
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
