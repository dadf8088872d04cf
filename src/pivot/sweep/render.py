"""Tables and figures of a plan from whatever runs are there; what is missing is shown as missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pivot.config.schema import all_fields
from pivot.evaluate.benchmarks import HEADINGS
from pivot.report.charts import Chart, Curve, LineChart
from pivot.report.comparison import overlaid
from pivot.report.comparison_tables import overhead_table
from pivot.report.figures import save_figures
from pivot.report.groups import RunGroup, RunGroups
from pivot.report.run import read_run
from pivot.report.tables import Column, Row, Table, Value, to_markdown, write_tables
from pivot.sweep.followups import results_folder
from pivot.sweep.plan import Plan
from pivot.sweep.runs import SweepRun
from pivot.sweep.scores import ArmScores, count, mean, spread

DYNAMICS = ("compared-training-accuracy", "compared-validation-accuracy")
"""The charts of the training dynamics: accuracy rewards, and accuracy on the validation prompts."""


def render(plan: Plan, runs: Sequence[SweepRun]) -> tuple[str, Path]:
    """Write what the plan asks for; returns the tables as Markdown and the folder with all files."""
    folder = results_folder(plan, runs)
    tables: list[Table] = []
    charts: list[Chart] = []
    for wanted in plan.render:
        if wanted == "accuracy":
            tables.append(accuracy_table(plan, runs))
        elif wanted == "overhead":
            tables += overhead_tables(plan, runs)
        elif wanted == "dynamics":
            groups = _groups(runs)
            charts += [chart for chart in overlaid(RunGroups(groups, [], groups)) if chart.name in DYNAMICS]
        else:
            charts += sensitivity_charts(plan, runs)
    folder.mkdir(parents=True, exist_ok=True)
    write_tables(tables, folder)
    save_figures(charts, folder)
    return "\n".join(map(to_markdown, tables)), folder


def accuracy_table(plan: Plan, runs: Sequence[SweepRun]) -> Table:
    """A row per arm: accuracy on each benchmark, their mean, its gain over the baseline, the seeds behind it, and how
    many of the groups that steps asked for they trained on."""
    scores = {arm: ArmScores.read([run for run in runs if run.arm == arm]) for arm in plan.arms}
    columns = [Column(HEADINGS.get(name, name)) for name in plan.sets] + [Column("Avg.")]
    columns += [Column("Δ, %", best=None, form="+.2f")] if plan.baseline else []
    columns += [Column("Seeds", best=None), Column("Groups, %", best=None, form=".1f")]
    base = mean(scores[plan.baseline].averages(plan.sets)) if plan.baseline in scores else None
    rows = []
    for arm, found in scores.items():
        averages, is_base = found.averages(plan.sets), plan.arms[arm].base
        values: list[Value] = [mean(found.values(name)) for name in plan.sets]
        values.append(mean(averages))
        if plan.baseline:
            values.append(None if arm == plan.baseline else _gain(mean(averages), base))
        values += [None if is_base else found.seeds(plan.sets), mean(found.full)]
        spreads = [spread(found.values(name)) for name in plan.sets] + [spread(averages)]
        spreads += [None] * (len(columns) - len(spreads))
        rows.append(Row(arm, tuple(values), tuple(spreads), ranked=not is_base))
    rows += paper_rows(plan, len(columns))
    return Table(plan.name, f"{plan.title}: {_how(plan)}", "Method", tuple(columns), tuple(rows))


def _gain(value: float | None, base: float | None) -> float | None:
    """In per cent."""
    return 100 * (value / base - 1) if value is not None and base else None


def _how(plan: Plan) -> str:
    """What the numbers are, for the caption."""
    said = f"accuracy@{plan.samples}, %, mean over seeds; {_origin(plan)}"
    if plan.limit is not None:
        said += f"; the first {plan.limit} rows of each set"
    if any(arm.paper for arm in plan.arms.values()):
        said += "; rows marked (paper) are the paper's printed numbers"
    return said


def _origin(plan: Plan) -> str:
    """Where the runs come from, and what they are for; a plan with another recipe is for no table of the paper."""
    return f"recipe {plan.recipe}" + (f"; for {plan.source} of the paper" if plan.source else "")


def paper_rows(plan: Plan, width: int) -> list[Row]:
    """The paper's own numbers below ours; they are not ranked with them."""
    printed = {name: arm.paper for name, arm in plan.arms.items() if arm.paper}
    return [
        Row(f"{name} (paper)", numbers + (None,) * (width - len(numbers)), ranked=False, rule_above=i == 0)
        for i, (name, numbers) in enumerate(printed.items())
    ]


def overhead_tables(plan: Plan, runs: Sequence[SweepRun]) -> list[Table]:
    """Seconds per step and buffer RAM as in the paper's table, and seconds by phase."""
    groups = {group.label: group for group in _groups(runs)}
    base = groups[plan.baseline].mean("time/step") if plan.baseline in groups else None
    columns = (
        Column("Buffer RAM, MB", best=None, form=".1f"),
        Column("s / step", best=None, form=".1f"),
        Column("Δ, %", best=None, form="+.1f"),
        Column("Ranks", best=None, form=".0f"),
        Column("Seeds", best=None),
    )
    rows = []
    for arm in plan.arms:
        group, theirs = groups.get(arm), [run for run in runs if run.arm == arm]
        seeds = count(sum(run.is_trained for run in theirs), len(theirs))
        if group is None:
            rows.append(Row(arm, (None, None, None, None, seeds)))
            continue
        seconds, buffer = group.mean("time/step"), group.last("buffer/megabytes")
        gain = None if arm == plan.baseline else _gain(seconds, base)
        rows.append(Row(arm, (buffer, seconds, gain, _ranks(group.runs[0].folder), seeds)))
    rows += paper_rows(plan, len(columns))
    caption = f"{plan.title}: seconds per step, mean over steps and seeds; {_origin(plan)}"
    table = Table(plan.name, caption, "Method", columns, tuple(rows))
    phases = overhead_table(list(groups.values()), groups.get(plan.baseline or ""))
    return [table] if phases is None else [table, phases]


def _ranks(folder: Path) -> int:
    """Processes that trained: what verl was started with, else one."""
    path = folder / "cluster.json"
    if not path.exists():
        return 1
    saved = json.loads(path.read_bytes())
    return saved["nodes"] * saved["gpus"]


def sensitivity_charts(plan: Plan, runs: Sequence[SweepRun]) -> list[Chart]:
    """The average accuracy against each swept setting, over the arms that share all other settings."""
    charts: list[Chart] = []
    for path in plan.swept:
        points = sorted(_points(plan, runs, path))
        if len(points) > 1:
            x, y, band = (np.array(column, dtype=float) for column in zip(*points, strict=True))
            curve = Curve("average", x, y, spread=band if band.any() else None)
            note = f"Average accuracy@{plan.samples}; bands over seeds"
            name = f"sensitivity-{path.replace('.', '-')}"
            shown = LineChart(name, path, note, (curve,), x_label=path, percent=True, dots=True, whole=False)
            charts.append(shown)
    return charts


def _points(plan: Plan, runs: Sequence[SweepRun], path: str) -> list[tuple[float, float, float]]:
    """(value, mean, standard deviation) of the largest set of arms that differ in `path` alone."""
    alike: dict[str, dict[str, float]] = {}
    for run in runs:
        settings = {f.path: f.value for f in all_fields(run.config) if f.path != "train.seed"}
        value = settings.pop(path)
        alike.setdefault(json.dumps(settings, sort_keys=True), {})[run.arm] = value
    members = max(alike.values(), key=len)
    points = []
    for arm, value in members.items():
        found = ArmScores.read([run for run in runs if run.arm == arm]).averages(plan.sets)
        if found:
            points.append((float(value), float(np.mean(found)) / 100, (spread(found) or 0.0) / 100))
    return points


def _groups(runs: Sequence[SweepRun]) -> list[RunGroup]:
    """The trained runs of each arm that have logged a step."""
    folders: dict[str, list[Path]] = {}
    for run in runs:
        if run.seed is not None and (run.folder / "metrics.jsonl").exists():
            folders.setdefault(run.arm, []).append(run.folder)
    return [RunGroup([read_run(f) for f in found], {}, label=arm) for arm, found in folders.items()]
