"""The figures of the results page: learning curves over steps and over time, and all claims with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from pivot.report.charts import Curve, LineChart
from pivot.report.figures import COLOURS, STYLE, plot
from pivot.reproduce.plan import Plan
from pivot.reproduce.results import Raw, Results
from pivot.reproduce.tables import lines
from pivot.reproduce.verdicts import Judged, judge

VERDICT_COLOURS = {"holds": COLOURS[2], "no difference seen": COLOURS[5], "reversed": COLOURS[1]}
CURVES = "main"
"""The group whose learning curves are drawn."""


def figures(plan: Plan, results: Results) -> dict[str, Figure]:
    """File name -> figure, those for which there is something to draw."""
    found: dict[str, Figure] = {}
    if CURVES in plan.groups:
        for name, over in (("learning-steps", "steps"), ("learning-time", "seconds")):
            chart = _learning(plan, results, over)
            if chart.curves:
                found[name] = _drawn(chart)
    judged = [judge(results, claim) for claim in plan.claims]
    shown = [one for one in judged if one.difference is not None and one.claim.metric != "dependency"]
    if shown:
        found["claims"] = _forest(shown)
    return found


def write_figures(drawn: dict[str, Figure], folder: Path) -> None:
    """NAME.svg of each; the same numbers give the same bytes."""
    if drawn:
        folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, figure in drawn.items():
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def _learning(plan: Plan, results: Results, over: str) -> LineChart:
    """Mean validation accuracy of each arm whose seeds are all finished; bands of one deviation over seeds."""
    curves = []
    for line in lines(plan.groups[CURVES]):
        raws = results.get(line.cells)
        if len(raws) == len(line.cells) and all("curve" in raw for raw in raws):
            curves.append(_curve(line.label, raws, over, len(curves)))
    title = "Validation accuracy over " + ("steps" if over == "steps" else "training time")
    x_label = "step" if over == "steps" else "seconds on one thread"
    return LineChart(
        f"learning-{over}", title, "", tuple(curves), x_label=x_label, percent=True, whole=over == "steps"
    )


def _curve(label: str, raws: Sequence[Raw], over: str, colour: int) -> Curve:
    places = np.mean([raw["curve"][over] for raw in raws], axis=0)
    values = np.array([raw["curve"]["accuracy"] for raw in raws])
    spread = values.std(axis=0, ddof=1) if len(raws) > 1 else None
    return Curve(label, places, values.mean(axis=0), spread=spread, colour=colour)


def _drawn(chart: LineChart) -> Figure:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.6))
        axes = figure.add_subplot()
        axes.set_title(chart.title)
        plot(chart, axes)
    return figure


def _forest(judged: Sequence[Judged]) -> Figure:
    """A line a claim, from the first at the top: the difference and its interval, coloured by the verdict."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 0.9 + 0.24 * len(judged)))
        axes = figure.add_subplot()
        for place, one in enumerate(judged):
            found = one.difference
            assert found is not None
            colour = VERDICT_COLOURS[one.verdict]
            axes.plot([100 * found.low, 100 * found.high], [place, place], color=colour, linewidth=2)
            axes.plot(100 * found.mean, place, "o", color=colour, markersize=4.5)
        axes.axvline(0, color="#8a939f", linewidth=0.8)
        axes.set_yticks(range(len(judged)), [one.claim.text for one in judged], fontsize=7)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("difference, points (95% interval)")
        axes.set_title("Claims")
    return figure
