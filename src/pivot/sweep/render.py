"""Tables, figures and the page of a plan from the runs that exist; missing numbers are shown as missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np

from pivot.config.schema import all_fields
from pivot.durable import write_bytes
from pivot.evaluation.benchmarks import HEADINGS
from pivot.evaluation.sets import score_name
from pivot.report import write_comparison
from pivot.report.charts import Chart, Curve, LineChart
from pivot.report.comparison import overlaid
from pivot.report.comparison_tables import overhead_table
from pivot.report.figures import save_figures
from pivot.report.groups import RunGroup, RunGroups
from pivot.report.page import Page
from pivot.report.run import read_run
from pivot.report.tables import Column, Row, Table, Value, to_html, to_markdown, write_tables
from pivot.sweep.axes import combinations
from pivot.sweep.claims import claims_table, judge_claims
from pivot.sweep.followups import results_folder
from pivot.sweep.learning import rollout_charts
from pivot.sweep.plan import TRAIN, Plan
from pivot.sweep.runs import SweepRun, slug
from pivot.sweep.schedule import best_variant, families
from pivot.sweep.scores import ArmScores, count, mean, read_curve, spread

DYNAMICS = ("compared-training-accuracy", "compared-validation-accuracy")
"""The charts of the training dynamics: accuracy rewards, and accuracy on the validation prompts."""


def render(plan: Plan, runs: Sequence[SweepRun]) -> tuple[str, Path]:
    """Write what the plan asks for and a page of all of it; returns the tables as Markdown, and the page."""
    folder = results_folder(plan, runs)
    tables, charts = _rendered(plan, runs)
    trained = [run.folder for run in runs if run.seed is not None and (run.folder / "config.json").exists()]
    folder.mkdir(parents=True, exist_ok=True)
    write_tables(tables, folder)
    save_figures(charts, folder / "figures")
    compared = write_comparison(trained, folder / "comparison") if trained else None
    page = folder / "index.html"
    write_bytes(page, _page(plan, tables, charts, compared).encode("utf-8", "backslashreplace"))
    return "\n".join(map(to_markdown, tables)), page


def _rendered(plan: Plan, runs: Sequence[SweepRun]) -> tuple[list[Table], list[Chart]]:
    tables = [claims_table(judge_claims(plan, runs))] if plan.claims else []
    tables += [screening_table(plan, runs)] if plan.screen else []
    charts: list[Chart] = []
    for wanted in plan.render:
        if wanted == "accuracy":
            tables += accuracy_tables(plan, runs)
        elif wanted == "overhead":
            tables += overhead_tables(plan, runs)
        elif wanted == "rollouts":
            charts += rollout_charts(plan, runs)
        elif wanted == "dynamics":
            charts += _dynamics(runs)
        else:
            charts += sensitivity_charts(plan, runs)
    return tables, charts


def _page(plan: Plan, tables: Sequence[Table], charts: list[Chart], compared: Path | None) -> str:
    page = Page(title=f"{plan.title or plan.name} · pivot sweep", brand="pivot")
    lead = f"{len(plan.arms)} arms, {plan.seeds} seed{'s' * (plan.seeds > 1)}; {_origin(plan)}"
    page.header = f'<h1>{escape(plan.title or plan.name)}</h1><p class="lead">{escape(lead)}</p>'
    titles = {"claims": "Claims", "screening": "Screening", plan.name: "Results"}
    titles |= {_table_name(plan, label): label for label in _combined(plan)}
    for table in tables:
        page.add(table.name, titles.get(table.name, table.name.capitalize()), to_html(table))
    if charts:
        page.add("curves", "Curves", page.charts(charts))
    if compared is not None:
        link = f'<p><a href="{compared.parent.name}/{compared.name}">Curves and tables of every run</a></p>'
        page.add("runs", "All runs", link)
    return page.html()


def accuracy_tables(plan: Plan, runs: Sequence[SweepRun]) -> list[Table]:
    """One table; where values of `vary` have names, one for each of their combinations."""
    if not (combined := _combined(plan)):
        return [accuracy_table(plan, runs)]
    tables = []
    for label, values in combined.items():
        arms = {name: arm for name, arm in plan.arms.items() if not arm.values or arm.values == values}
        if any(arm.values for arm in arms.values()):
            some = replace(plan, arms=arms, title=f"{plan.title}, {label}")
            table = accuracy_table(some, [run for run in runs if run.arm in arms])
            tables.append(replace(table, name=_table_name(plan, label)))
    return tables


def _combined(plan: Plan) -> dict[str, dict[str, str]]:
    """What each table of a plan whose values have names is called, and its values; empty for all other plans."""
    if plan.screen or not any(axis.is_named for axis in plan.vary.values()):
        return {}
    return {", ".join(values.values()): values for values in combinations(plan.vary, {})}


def _table_name(plan: Plan, label: str) -> str:
    return f"{plan.name}-{slug(label)}"


def accuracy_table(plan: Plan, runs: Sequence[SweepRun]) -> Table:
    """A row per arm: accuracy on each benchmark, their mean, its gain over the baseline, the seeds behind it, and how
    many of the groups that steps asked for they trained on. Without benchmarks: validation accuracy."""
    arms = _shown_arms(plan, runs)
    names = plan.sets or ["final", "best"]
    scores = {arm: ArmScores.read([run for run in runs if run.arm == arm]) for arm in arms}
    averaged = plan.averaged or names[:1]
    headings = HEADINGS | VALIDATION
    columns = [Column(headings.get(name) or score_name(name)) for name in names]
    columns += [Column("Avg.")] if plan.averaged else []
    columns += [Column("Δ, %", best=None, form="+.2f")] if plan.baseline else []
    columns += [Column("Seeds", best=None), Column("Groups, %", best=None, form=".1f")]
    rows = []
    for arm, found in scores.items():
        averages, is_base = found.averages(averaged), plan.arms[arm].base
        values: list[Value] = [mean(found.values(name)) for name in names]
        spreads = [spread(found.values(name)) for name in names]
        if plan.averaged:
            values.append(mean(averages))
            spreads.append(spread(averages))
        if plan.baseline:
            other = _baseline(plan, runs, arm)
            base = None if other in (None, arm) else mean(scores[other].averages(averaged))
            values.append(_gain(mean(averages), base))
        values += [None if is_base else found.seeds(averaged), mean(found.full)]
        spreads += [None] * (len(columns) - len(spreads))
        rows.append(Row(arm, tuple(values), tuple(spreads), ranked=not is_base))
    rows += paper_rows(plan, len(columns))
    return Table(plan.name, f"{plan.title}: {_how(plan)}", "Method", tuple(columns), tuple(rows))


VALIDATION = {"final": "Validation", "best": "Best on the way", TRAIN: "Training prompts"}
"""Columns of a plan without benchmarks, and of the prompts that a run was trained on."""


def _shown_arms(plan: Plan, runs: Sequence[SweepRun]) -> list[str]:
    """All arms; of screened ones those that were chosen, once they are."""
    best = {family: best_variant(plan, runs, family) for family in families(plan)} if plan.screen else {}
    return [name for name, arm in plan.arms.items() if best.get(arm.family) in (None, name)]


def _baseline(plan: Plan, runs: Sequence[SweepRun], arm: str) -> str | None:
    """The baseline at the arm's own values; of a screened plan at the baseline's best."""
    assert plan.baseline is not None
    if plan.screen and plan.baseline not in plan.arms:
        return best_variant(plan, runs, plan.baseline) if plan.variants(plan.baseline) else None
    return plan.counterpart(arm, plan.baseline)


def screening_table(plan: Plan, runs: Sequence[SweepRun]) -> Table:
    """Validation accuracy of every value over the screening seeds; the chosen one says so."""
    rows = []
    for name, arm in plan.arms.items():
        if not arm.family:
            continue
        screened = [r for r in runs if r.arm == name and r.seed is not None and r.seed < plan.screen]
        curves = [read_curve(run) if run.is_trained else None for run in screened]
        found = [100 * curve.accuracy[-1] for curve in curves if curve is not None]
        chosen = "chosen" if best_variant(plan, runs, arm.family) == name else None
        rows.append(Row(name, (mean(found), count(len(found), len(screened)), chosen), ranked=False))
    columns = (Column("Validation", best=None), Column("Seeds", best=None), Column("", best=None))
    caption = (
        "Screening: validation accuracy at the last step, %; the best value of each arm runs with all seeds"
    )
    return Table("screening", caption, "Arm", columns, tuple(rows))


def _dynamics(runs: Sequence[SweepRun]) -> list[Chart]:
    groups = _groups(runs)
    return [chart for chart in overlaid(RunGroups(groups, [], groups)) if chart.name in DYNAMICS]


def _gain(value: float | None, base: float | None) -> float | None:
    """In per cent."""
    return 100 * (value / base - 1) if value is not None and base else None


def _how(plan: Plan) -> str:
    """What the numbers are, for the caption."""
    what = f"accuracy@{plan.samples}" if plan.averaged else "validation accuracy"
    said = f"{what}, %, mean over seeds; {_origin(plan)}"
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
        found = ArmScores.read([run for run in runs if run.arm == arm]).averages(plan.averaged)
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
