"""The evaluations of a run as a table."""

from __future__ import annotations

from typing import Any

from pivot.evaluate.settings import comparability_notes
from pivot.report.panels import evaluation_label, interval
from pivot.report.run import Run, is_number
from pivot.report.tables import Column, Row, Table, Value


def evaluation_table(run: Run) -> Table:
    """One row an evaluation: accuracy with its interval, pass@k at the largest k, form, length, sizes."""
    columns = (
        Column("Accuracy, %", best=None),
        Column("Interval", best=None),
        Column("pass@k, %", best=None),
        Column("In form, %", best=None),
        Column("Length", best=None, form=".1f"),
        Column("Prompts", best=None, form=".0f"),
        Column("Samples", best=None, form=".0f"),
    )
    rows: list[Row] = []
    names = [str(evaluation.get("name", "evaluation")) for evaluation in run.evaluations]
    notes = comparability_notes([{name: [entry]} for name, entry in zip(names, run.evaluations, strict=True)])
    for name, evaluation, note in zip(names, run.evaluations, notes, strict=True):
        label = f"{name}, {evaluation_label(evaluation)}"
        is_new = len(rows) > 0 and name not in names[: len(rows)]
        rows.append(Row(label, _values(evaluation), rule_above=is_new, note=note))
    return Table(
        "evaluations",
        "Evaluations: accuracy is the mean over the samples of each prompt",
        "Evaluation",
        columns,
        tuple(rows),
    )


def category_table(run: Run) -> Table | None:
    """Accuracy of every category of a benchmark, images shown, a column for each time it was measured."""
    measured: dict[tuple[str, str], dict[str, float]] = {}
    for evaluation in run.evaluations:
        categories = evaluation.get("categories")
        if evaluation.get("blank") or not isinstance(categories, dict):
            continue
        for category, scores in categories.items():
            if isinstance(scores, dict) and is_number(scores.get("accuracy")):
                row = measured.setdefault((str(evaluation.get("name", "evaluation")), category), {})
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
    return Table("categories", "Categories: accuracy of each, images shown", "Category", columns, rows)


def _values(evaluation: dict[str, Any]) -> tuple[Value, ...]:
    low, high = interval(evaluation)
    pass_at_k = evaluation.get("pass_at_k")
    counted = pass_at_k if isinstance(pass_at_k, dict) else {}
    most = max((int(k) for k, v in counted.items() if k.isdigit() and is_number(v)), default=None)
    return (
        100 * float(evaluation["accuracy"]),
        None if low is None or high is None else f"{100 * low:.2f} to {100 * high:.2f}",
        None if most is None else f"{100 * counted[str(most)]:.2f} (k = {most})",
        _number(evaluation, "format", 100),
        _number(evaluation, "length"),
        _number(evaluation, "prompts"),
        _number(evaluation, "samples"),
    )


def _number(evaluation: dict[str, Any], key: str, factor: int = 1) -> float | None:
    value = evaluation.get(key)
    return factor * float(value) if is_number(value) else None
