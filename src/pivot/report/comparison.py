"""The page of `pivot compare`: several runs with the paper's tables and figures."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from pivot.durable import write_bytes
from pivot.errors import UserError
from pivot.report.charts import Chart, Curve, LineChart
from pivot.report.comparison_tables import accuracy_tables, average, overhead_table
from pivot.report.figures import save_figures
from pivot.report.groups import RunGroup, RunGroups, Sweep, check_baseline, find_baseline, group_runs
from pivot.report.page import Page, chips, gaps_note
from pivot.report.panels import TRAINING, Panel
from pivot.report.run import RunData, read_run
from pivot.report.series import FEWEST_TO_SMOOTH, Series, smooth
from pivot.report.tables import Table, to_csv, to_html, to_latex, to_markdown, write_tables

NUM_PANELS = 6
"""The first training charts of a run are those that all methods have."""
MOST_CURVES = 8
"""The number of colours."""
MOST_FAINT = 2
"""Curves up to which the logged values are drawn behind the smoothed ones."""


def write_comparison(
    run_dirs: Sequence[Path | str], out_dir: Path | str, baseline: str | None = None
) -> Path:
    """Write `comparison.html`, `tables/` and `figures/` into a folder and return the path of the page.

    `baseline` is a method, a label or the name of a run's folder; None: DAPO, else GRPO, else the first run.
    """
    if not run_dirs:
        raise UserError("no run was given to compare; give the folders of one or more runs.")
    runs = [read_run(folder) for folder in dict.fromkeys(Path(folder).resolve() for folder in run_dirs)]
    compared = group_runs(runs)
    check_baseline(compared.groups, baseline)
    out = Path(out_dir)
    page = Page(title=f"Comparison of {len(runs)} runs · pivot", brand="pivot")
    page.header = _header(runs, compared.groups)
    tables = accuracy_tables(compared, baseline)
    if tables:
        shown = "".join(map(_with_sources, tables))
        page.add("results", "Results", f'<div class="tables">{shown}</div>', _results_intro(compared.groups))
    charts = overlaid(compared)
    if charts:
        page.add("curves", "Training dynamics", page.charts(charts), _curves_intro(compared))
    swept = sensitivity(compared.sweeps)
    if swept:
        intro = "Final accuracy against each setting that was varied while all others stayed the same."
        page.add("sensitivity", "Sensitivity", page.charts(swept), intro)
    overhead = overhead_table(compared.representatives, find_baseline(compared.groups, baseline))
    if overhead is not None:
        page.add("overhead", "Overhead", _with_sources(overhead))
        tables.append(overhead)
    page.add("runs", "Runs", _run_list(compared.groups, out))
    out.mkdir(parents=True, exist_ok=True)
    write_bytes(out / "comparison.html", page.html().encode("utf-8", "backslashreplace"))
    write_tables(tables, out / "tables")
    save_figures([*charts, *swept], out / "figures")
    return out / "comparison.html"


def overlaid(compared: RunGroups) -> list[Chart]:
    """One chart per metric with one curve per group; the representatives alone if there are too many groups."""
    charts: list[Chart] = []
    groups = compared.groups if len(compared.groups) <= MOST_CURVES else compared.representatives
    for panel in TRAINING[:NUM_PANELS]:
        key = next(iter(panel.keys))
        curves = tuple(c for i, group in enumerate(groups) if (c := _curve(group, key, i, panel)) is not None)
        if curves:
            note = panel.note if len(panel.keys) == 1 else panel.keys[key].capitalize()
            chart = replace(panel.chart(curves, "compared-"), note=note)
            charts.append(replace(chart, faint=len(curves) <= MOST_FAINT))
    return charts


def sensitivity(sweeps: list[Sweep]) -> list[Chart]:
    """Average final accuracy against each swept number, one curve per choice of the other settings."""
    by_key: dict[str, list[Sweep]] = defaultdict(list)
    for sweep in sweeps:
        if sweep.is_numeric:
            by_key[sweep.key].append(sweep)
    charts: list[Chart] = []
    for key, theirs in by_key.items():
        curves = tuple(c for i, sweep in enumerate(theirs) if (c := _swept_curve(sweep, i)) is not None)
        if curves:
            note = "Average accuracy at the end; bands: one standard deviation over seeds"
            name = f"sensitivity-{key.replace('.', '-')}"
            charts.append(
                LineChart(name, key, note, curves, x_label=key, percent=True, dots=True, whole=False)
            )
    return charts


def _curve(group: RunGroup, key: str, colour: int, panel: Panel) -> Curve | None:
    found = group.curve(key)
    if found is None:
        return None
    series, spread = found
    if not panel.smoothed:
        return Curve(group.label, series.steps, series.values, spread=spread, colour=colour)
    smoothed_spread = smooth(Series(series.steps, spread))
    band = spread if smoothed_spread is None else smoothed_spread
    return Curve(group.label, series.steps, series.values, smooth(series), band, colour)


def _curves_intro(compared: RunGroups) -> str:
    text = f"Curves of at least {FEWEST_TO_SMOOTH} points are smoothed."
    if any(len(group.runs) > 1 for group in compared.groups):
        text += " Means over seeds, with bands of one standard deviation."
    left_out = len(compared.groups) > MOST_CURVES and len(compared.representatives) < len(compared.groups)
    return text + (" Variants of a sweep are not shown." if left_out else "")


def _swept_curve(sweep: Sweep, colour: int) -> Curve | None:
    """Mean over the benchmarks that all members measured, with a band if every member has several seeds."""
    measured = [(value, group.accuracies()) for value, group in sweep.members]
    shared = sorted(set.intersection(*(set(accuracies) for _, accuracies in measured)))
    if not shared:
        return None
    values = np.array([value for value, _ in measured], dtype=float)
    means = np.array([average(accuracies, shared) for _, accuracies in measured], dtype=float)
    return Curve(
        sweep.members[0][1].method, values, means, spread=_deviations(measured, shared), colour=colour
    )


def _deviations(measured: list[tuple[Any, dict[str, list[float]]]], shared: list[str]) -> np.ndarray | None:
    deviations = []
    for _, accuracies in measured:
        seeds = min(len(accuracies[name]) for name in shared)
        if seeds < 2:
            return None
        averages = np.mean([accuracies[name][:seeds] for name in shared], axis=0)
        deviations.append(averages.std(ddof=1))
    return np.array(deviations)


def _header(runs: list[RunData], groups: list[RunGroup]) -> str:
    labels = chips((group.label, "") for group in groups)
    missing = gaps_note(f"{run.name}: {gap}" for run in runs for gap in run.gaps)
    subjects = "; ".join(
        dict.fromkeys(f"{model}, trained on {data}" for model, data in (g.subject for g in groups))
    )
    title = (
        f"{len(runs)} runs, {len(groups)} settings"
        if len(groups) < len(runs)
        else f"{len(runs)} runs compared"
    )
    return f'{labels}<h1>{title}</h1><p class="lead">{escape(subjects)}</p>{missing}'


def _results_intro(groups: list[RunGroup]) -> str:
    text = "Best in bold, second underlined."
    most = max(len(group.runs) for group in groups)
    return text + (
        " Mean ± standard deviation over seeds."
        if most > 1
        else " One seed each, so small differences may be noise."
    )


def _with_sources(table: Table) -> str:
    """The table, with its Markdown, LaTeX and CSV to copy."""
    sources = (("Markdown", to_markdown), ("LaTeX", to_latex), ("CSV", to_csv))
    folded = "".join(
        f"<details><summary>{name}</summary><pre>{escape(write(table))}</pre></details>"
        for name, write in sources
    )
    return f'<div class="table-block">{to_html(table)}<div class="sources">{folded}</div></div>'


def _run_list(groups: list[RunGroup], out: Path) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Run", "Settings", "Seed", "Steps", "Status"))
    body = []
    for group in groups:
        for run in group.runs:
            name = escape(run.name)
            if (run.folder / "report.html").is_file():
                link = quote(os.path.relpath(run.folder / "report.html", out))
                name = f'<a href="{link}">{name}</a>'
            cells = (group.label, run.setting("train.seed"), run.num_steps, run.status)
            line = "".join(f"<td>{escape(str('–' if cell is None else cell))}</td>" for cell in cells)
            body.append(f'<tr><th scope="row">{name}</th>{line}</tr>')
    inside = f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
    return f'<div class="table-wrap"><table class="data">{inside}</table></div>'
