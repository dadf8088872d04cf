"""The evaluations of a run as charts and tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from pivot.evaluation.settings import comparability_notes
from pivot.report.charts import Chart, Curve, Estimate, IntervalChart, LineChart
from pivot.report.run import RunData, is_number
from pivot.report.tables import Column, Row, Table, Value


def evaluation_charts(run: RunData) -> list[Chart]:
    """Accuracy with intervals before and after training, and pass@k if several k were measured."""
    rows: dict[str, list[Estimate]] = {}
    for evaluation in run.evaluations:
        when, blank = str(evaluation.get("when") or "evaluated"), bool(evaluation.get("blank"))
        estimate = Estimate(when, float(evaluation["accuracy"]), interval(evaluation), hollow=blank)
        rows.setdefault(_name(evaluation), []).append(estimate)
    if not rows:
        return []
    note = "With 95% confidence intervals; rings: blank image"
    whole = tuple((name, tuple(estimates)) for name, estimates in rows.items())
    return [IntervalChart("evaluation", "Accuracy", note, whole), *_pass_at_k_charts(run)]


def evaluation_label(evaluation: dict[str, Any]) -> str:
    blank = ", blank image" if evaluation.get("blank") else ""
    return f"{evaluation.get('when') or 'evaluated'}{blank}"


def interval(evaluation: dict[str, Any]) -> tuple[float, float] | None:
    """The confidence interval; None if it was not recorded."""
    given = evaluation.get("interval")
    if isinstance(given, list) and len(given) == 2 and all(is_number(n) for n in given):
        return float(given[0]), float(given[1])
    return None


def _pass_at_k_charts(run: RunData) -> list[Chart]:
    by_name: dict[str, list[Curve]] = {}
    for evaluation in run.evaluations:
        pairs = [] if evaluation.get("blank") else sorted(_pass_at_k(evaluation).items())
        if len(pairs) > 1:
            curves = by_name.setdefault(_name(evaluation), [])
            ks, values = np.array(pairs, dtype=float).T
            curves.append(Curve(evaluation_label(evaluation), ks, values, colour=len(curves)))
    note = "Chance that at least one of k samples is correct"
    return [
        LineChart(
            f"pass-at-k-{i}", f"pass@k, {name}", note, tuple(curves), x_label="k", percent=True, dots=True
        )
        for i, (name, curves) in enumerate(by_name.items(), start=1)
    ]


def evaluation_table(run: RunData) -> Table:
    """One row per evaluation: accuracy with its interval, pass@k at the largest k, format, length, sizes."""
    columns = (
        Column("Accuracy, %", best=None),
        Column("95% interval", best=None),
        Column("pass@k, %", best=None),
        Column("Well-formed, %", best=None),
        Column("Tokens", best=None, form=".1f"),
        Column("Prompts", best=None, form=".0f"),
        Column("Samples", best=None, form=".0f"),
    )
    rows: list[Row] = []
    names = [_name(evaluation) for evaluation in run.evaluations]
    notes = comparability_notes([{name: [entry]} for name, entry in zip(names, run.evaluations, strict=True)])
    for name, evaluation, note in zip(names, run.evaluations, notes, strict=True):
        label = f"{name}, {evaluation_label(evaluation)}"
        is_new = len(rows) > 0 and name not in names[: len(rows)]
        rows.append(Row(label, _values(evaluation), rule_above=is_new, note=note))
    return Table(
        "evaluations",
        "Evaluations: accuracy is the mean over prompts and samples, tokens the mean per response",
        "Evaluation",
        columns,
        tuple(rows),
    )


def category_table(run: RunData) -> Table | None:
    """Accuracy per category with images shown, one column per evaluation of a benchmark."""
    measured: dict[tuple[str, str], dict[str, float]] = {}
    for evaluation in run.evaluations:
        categories = evaluation.get("categories")
        if evaluation.get("blank") or not isinstance(categories, dict):
            continue
        for category, scores in categories.items():
            if isinstance(scores, dict) and is_number(scores.get("accuracy")):
                row = measured.setdefault((_name(evaluation), category), {})
                row[evaluation_label(evaluation)] = 100 * scores["accuracy"]
    if not measured:
        return None
    moments = list(dict.fromkeys(moment for row in measured.values() for moment in row))
    columns = tuple(Column(f"{moment}, %", best=None) for moment in moments)
    names = [name for name, _ in measured]
    rows = tuple(
        Row(f"{name}, {category}", tuple(map(row.get, moments)), rule_above=i > 0 and name != names[i - 1])
        for i, ((name, category), row) in enumerate(measured.items())
    )
    return Table("categories", "Categories: accuracy with images shown", "Category", columns, rows)


def _values(evaluation: dict[str, Any]) -> tuple[Value, ...]:
    ends, pass_at_k = interval(evaluation), _pass_at_k(evaluation)
    most = max(pass_at_k, default=None)
    return (
        100 * float(evaluation["accuracy"]),
        None if ends is None else f"{100 * ends[0]:.2f} to {100 * ends[1]:.2f}",
        None if most is None else f"{100 * pass_at_k[most]:.2f} (k = {most})",
        _number(evaluation, "format", 100),
        _number(evaluation, "length"),
        _number(evaluation, "prompts"),
        _number(evaluation, "samples"),
    )


def _name(evaluation: dict[str, Any]) -> str:
    return str(evaluation.get("name", "evaluation"))


def _pass_at_k(evaluation: dict[str, Any]) -> dict[int, float]:
    counted = evaluation.get("pass_at_k")
    pairs = counted.items() if isinstance(counted, dict) else ()
    return {int(k): float(v) for k, v in pairs if k.isdigit() and is_number(v)}


def _number(evaluation: dict[str, Any], key: str, factor: int = 1) -> float | None:
    value = evaluation.get(key)
    return factor * float(value) if is_number(value) else None
