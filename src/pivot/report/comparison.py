"""`pivot compare`: several runs on one page, with the paper's tables and figures."""

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
from pivot.report.comparison_tables import accuracy_tables, average
from pivot.report.curves import smooth
from pivot.report.figures import save_figures
from pivot.report.groups import Group, Study, Sweep, check_baseline, find_baseline, study
from pivot.report.overhead import overhead_table
from pivot.report.page import Page
from pivot.report.panels import TRAINING, Panel
from pivot.report.run import Run, Series, read_run
from pivot.report.tables import Table, to_csv, to_html, to_latex, to_markdown, write_tables

NUM_PANELS = 6
"""Of a run's training charts, those that the methods share."""
MOST_CURVES = 8
"""As many as there are colours."""
MOST_FAINT = 2
"""Behind more curves the steps as logged would be a thicket."""


def write_comparison(
    run_dirs: Sequence[Path | str], out_dir: Path | str, baseline: str | None = None
) -> Path:
    """Write `comparison.html`, `tables/` and `figures/` into a folder and return the page's path.

    `baseline` is a method, a label or a run's folder name; None: DAPO, else GRPO, else the first run.
    """
    if not run_dirs:
        raise UserError("no run was given to compare; give the folders of one or more runs")
    runs = [read_run(folder) for folder in dict.fromkeys(Path(folder).resolve() for folder in run_dirs)]
    compared = study(runs)
    check_baseline(compared.groups, baseline)
    out = Path(out_dir)
    page = Page(title=f"Comparison of {len(runs)} runs · pivot", brand="pivot")
    page.header = _header(runs, compared.groups)
    tables = accuracy_tables(compared, baseline)
    if tables:
        shown = "".join(map(_with_sources, tables))
        page.add("results", "Results", f'<div class="tables">{shown}</div>', _reading(compared.groups))
    charts = overlaid(compared)
    if charts:
        page.add("curves", "Training dynamics", page.charts(charts), _drawn(compared))
    swept = sensitivity(compared.sweeps)
    if swept:
        intro = "Final accuracy over each setting that was varied while all others stayed the same."
        page.add("sensitivity", "Sensitivity", page.charts(swept), intro)
    overhead = overhead_table(compared.leaders, find_baseline(compared.groups, baseline))
    if overhead is not None:
        page.add("overhead", "Overhead", _with_sources(overhead))
        tables.append(overhead)
    page.add("runs", "Runs", _run_list(compared.groups, out))
    out.mkdir(parents=True, exist_ok=True)
    write_bytes(out / "comparison.html", page.html().encode("utf-8", "backslashreplace"))
    write_tables(tables, out / "tables")
    save_figures([*charts, *swept], out / "figures")
    return out / "comparison.html"


def overlaid(compared: Study) -> list[Chart]:
    """One chart a metric with a curve a group; of more than `MOST_CURVES` groups, the leaders alone."""
    charts: list[Chart] = []
    groups = compared.groups if len(compared.groups) <= MOST_CURVES else compared.leaders
    for panel in TRAINING[:NUM_PANELS]:
        key = next(iter(panel.keys))
        curves = tuple(c for i, group in enumerate(groups) if (c := _curve(group, key, i, panel)) is not None)
        if curves:
            name = "compared-" + panel.title.lower().replace(" ", "-")
            chart = LineChart(name, panel.title, panel.note, curves, percent=panel.percent, dots=panel.dots)
            charts.append(replace(chart, from_zero=panel.from_zero, faint=len(curves) <= MOST_FAINT))
    return charts


def sensitivity(sweeps: list[Sweep]) -> list[Chart]:
    """Average final accuracy against each swept number, a curve for each set of the other settings."""
    by_key: dict[str, list[Sweep]] = defaultdict(list)
    for sweep in sweeps:
        if sweep.is_numeric:
            by_key[sweep.key].append(sweep)
    charts: list[Chart] = []
    for key, theirs in by_key.items():
        curves = tuple(c for i, sweep in enumerate(theirs) if (c := _swept_curve(sweep, i)) is not None)
        if curves:
            note = "Average accuracy at the end; bands over seeds"
            name = f"sensitivity-{key.replace('.', '-')}"
            charts.append(
                LineChart(name, key, note, curves, x_label=key, percent=True, dots=True, whole=False)
            )
    return charts


def _curve(group: Group, key: str, colour: int, panel: Panel) -> Curve | None:
    found = group.curve(key)
    if found is None:
        return None
    series, spread = found
    if not panel.smoothed:
        return Curve(group.label, series.steps, series.values, spread=spread, colour=colour)
    softened = smooth(Series(series.steps, spread))
    wide = spread if softened is None else softened
    return Curve(group.label, series.steps, series.values, smooth(series), wide, colour)


def _drawn(compared: Study) -> str:
    said = "Means over seeds, smoothed; bands are one standard deviation over seeds."
    left_out = len(compared.groups) > MOST_CURVES and len(compared.leaders) < len(compared.groups)
    return said + (" Variants of a sweep are left out here." if left_out else "")


def _swept_curve(sweep: Sweep, colour: int) -> Curve | None:
    """Mean over the benchmarks that all members measured; a band where every member has several seeds."""
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


def _header(runs: list[Run], groups: list[Group]) -> str:
    chips = "".join(f'<span class="chip">{escape(group.label)}</span>' for group in groups)
    gaps = "".join(f"<li>{escape(run.name)}: {escape(gap)}</li>" for run in runs for gap in run.gaps)
    missing = f'<aside class="gaps"><b>Not all is here</b><ul>{gaps}</ul></aside>' if gaps else ""
    subjects = "; ".join(
        dict.fromkeys(f"{model}, trained on {data}" for model, data in (g.subject for g in groups))
    )
    title = (
        f"{len(runs)} runs, {len(groups)} settings"
        if len(groups) < len(runs)
        else f"{len(runs)} runs compared"
    )
    return f'<div class="chips">{chips}</div><h1>{title}</h1><p class="lead">{escape(subjects)}</p>{missing}'


def _reading(groups: list[Group]) -> str:
    said = "Best in bold, second underlined."
    most = max(len(group.runs) for group in groups)
    return said + (
        " Mean ± standard deviation over seeds."
        if most > 1
        else " One seed each: small differences are noise."
    )


def _with_sources(table: Table) -> str:
    """The table with its Markdown, LaTeX and CSV to copy."""
    sources = (("Markdown", to_markdown), ("LaTeX", to_latex), ("CSV", to_csv))
    folded = "".join(
        f"<details><summary>{name}</summary><pre>{escape(write(table))}</pre></details>"
        for name, write in sources
    )
    return f'<div class="table-block">{to_html(table)}<div class="sources">{folded}</div></div>'


def _run_list(groups: list[Group], out: Path) -> str:
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
