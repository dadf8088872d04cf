"""The figures of the results page: learning curves, all claims with their intervals, and what varies by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from pivot.report.charts import Curve, LineChart
from pivot.report.figures import COLOURS, STYLE, plot
from pivot.reproduce.plan import Plan
from pivot.reproduce.results import Results
from pivot.reproduce.strips import push_figure, sensitivity_figure, worlds_figure
from pivot.reproduce.tables import lines
from pivot.reproduce.verdicts import Judged, judge

VERDICT_COLOURS = {"holds": COLOURS[2], "no difference seen": COLOURS[5], "reversed": COLOURS[1]}
WIDEST = 40.0
"""Points; an interval that is wider, because seeds disagree, must not squeeze the others to dots."""
CURVES = "main"
"""The group whose learning curves are drawn."""


def figures(plan: Plan, results: Results) -> dict[str, Figure]:
    """File name -> figure, those for which there is something to draw."""
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
    """A line a claim, from the first at the top: the difference and its interval, coloured by the verdict."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 0.9 + 0.24 * len(judged)))
        axes = figure.add_subplot()
        for place, one in enumerate(judged):
            found = one.difference
            assert found is not None
            colour = VERDICT_COLOURS[one.verdict]
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
        axes.set_xlabel("difference, points (95% interval; an arrow: it goes on)")
        axes.set_title("Claims")
    return figure
