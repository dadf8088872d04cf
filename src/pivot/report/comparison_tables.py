"""The paper's tables from whatever runs there are: main, ablation, out of domain, interventions, GRPO."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pivot.evaluate.settings import comparability_notes
from pivot.report.groups import Group, Study, Sweep, find_baseline
from pivot.report.tables import Column, Row, Table

MAIN = ("grpo", "dapo", "papo", "vppo", "pivot")
ABLATION = (
    "dapo",
    "ser",
    "vaa",
    "off-pg-vaa",
    "off-sft-vaa",
    "ser-vaa-local",
    "calibrl",
    "calibrl-vaa",
    "pivot",
)
GRPO = ("grpo", "pivot-grpo")
OUT_OF_DOMAIN = ("scienceqa", "hallusionbench", "chartqapro", "infographicvqa", "infovqa", "realworldqa")
"""Table 4's benchmarks, without case and punctuation; a set with `ood` in its name also belongs to them."""


def accuracy_tables(study: Study, baseline: str | None) -> list[Table]:
    """All that the runs give, one set of tables for each model and training set among them."""
    tables: list[Table] = []
    subjects = list(dict.fromkeys(group.subject for group in study.groups))
    for i, subject in enumerate(subjects, start=1):
        theirs = Subject(
            [g for g in study.groups if g.subject == subject], f"-{i}" if len(subjects) > 1 else ""
        )
        leaders = [g for g in study.leaders if g.subject == subject]
        sweeps = [s for s in study.sweeps if s.members[0][1].subject == subject == s.members[-1][1].subject]
        tables += theirs.paper_tables(leaders, baseline) + theirs.sweep_tables(sweeps, baseline)
    return tables


@dataclass(frozen=True)
class Subject:
    """The groups of one model and training set, whose accuracies may stand in one table."""

    groups: list[Group]
    ending: str
    """Of the tables' names, where there are several subjects."""

    @property
    def about(self) -> str:
        model, data = self.groups[0].subject
        return f"{model} trained on {data}, %"

    @property
    def benchmarks(self) -> list[str]:
        return list(dict.fromkeys(name for group in self.groups for name in group.accuracies()))

    def paper_tables(self, leaders: list[Group], baseline: str | None) -> list[Table]:
        """Main, out of domain, ablation and GRPO: those for which there are runs."""
        near = [name for name in self.benchmarks if not is_out_of_domain(name)]
        far = [name for name in self.benchmarks if is_out_of_domain(name)]
        known = {*MAIN, *ABLATION, *GRPO}
        main = _in_order(leaders, MAIN) + [g for g in leaders if g.method not in known]
        ablation, grpo = _in_order(leaders, ABLATION), _in_order(leaders, GRPO)
        before, compared = _before(self.groups), find_baseline(self.groups, baseline)
        tables = [
            self.table("main", "Accuracy", [*before, *_after(main or leaders)], near),
            self.table("out-of-domain", "Out-of-domain accuracy", [*before, *_after(main or leaders)], far),
        ]
        if any(group.method not in MAIN for group in ablation):
            tables.append(
                self.table("ablation", "Ablation", _with_baseline(_after(ablation), compared), near, 0)
            )
        if {group.method for group in grpo} == {*GRPO}:
            tables.append(self.table("grpo", "PIVOT on GRPO", [*before, *_after(grpo)], near, 0))
        return [table for table in tables if table is not None]

    def sweep_tables(self, sweeps: list[Sweep], baseline: str | None) -> list[Table]:
        """A table for each swept setting, the baseline first; `corruption.kind` gives the interventions."""
        near = [name for name in self.benchmarks if not is_out_of_domain(name)] or self.benchmarks
        compared = find_baseline(self.groups, baseline)
        tables = []
        for i, sweep in enumerate(sweeps, start=1):
            name, caption = f"sweep-{i}-{sweep.key.replace('.', '-')}", f"{sweep.key} varied"
            if sweep.key == "corruption.kind":
                num_before = sum(table is not None and "interventions" in table.name for table in tables)
                name = f"interventions-{num_before + 1}" if num_before else "interventions"
                caption = "Image interventions"
            field = sweep.key.rpartition(".")[2]
            lines = [Line(f"{g.method}, {field} = {value}", g.accuracies(), g) for value, g in sweep.members]
            tables.append(self.table(name, caption, _with_baseline(lines, compared), near, 0))
        return [table for table in tables if table is not None]

    def table(
        self, name: str, caption: str, lines: list[Line], benchmarks: list[str], gain_to: int | None = None
    ) -> Table | None:
        """Accuracy in per cent, mean and deviation over seeds, the average, its gain relative to one line.

        `gain_to` is that line's index. None where no run measured any of the benchmarks.
        """
        if not any(line.group is not None and line.accuracies.get(b) for line in lines for b in benchmarks):
            return None
        base = None if gain_to is None else average(lines[gain_to].accuracies, benchmarks)
        columns = [Column(benchmark) for benchmark in benchmarks]
        columns += [Column("Avg.")] if len(benchmarks) > 1 else []
        columns += [Column("Δ, %", best=None, form="+.2f")] if base else []
        rows = [
            _row(line, benchmarks, base if base and i != gain_to else None) for i, line in enumerate(lines)
        ]
        rows = [_fitted(row, len(columns), i == 1 and not rows[0].ranked) for i, row in enumerate(rows)]
        shown = [{b: line.evaluations[b] for b in benchmarks if b in line.evaluations} for line in lines]
        rows = [replace(row, note=note) for row, note in zip(rows, comparability_notes(shown), strict=True)]
        said = f"{caption}: {self.about}"
        if base and gain_to is not None:
            said += f"; Δ relative to {lines[gain_to].label}"
        return Table(name + self.ending, said, "Method", tuple(columns), tuple(rows))


@dataclass(frozen=True)
class Line:
    """A row to be: a group's accuracies, or those of the model before training (no group)."""

    label: str
    accuracies: dict[str, list[float]]
    group: Group | None = None
    before: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Without a group: the entries behind the accuracies."""

    @property
    def evaluations(self) -> dict[str, list[dict[str, Any]]]:
        """Benchmark -> the entries behind the row."""
        return self.before if self.group is None else self.group.evaluations()


def _row(line: Line, benchmarks: list[str], base: float | None) -> Row:
    values = [_percent(line.accuracies.get(name, [])) for name in benchmarks]
    spreads = [_spread(line.accuracies.get(name, [])) for name in benchmarks]
    whole = average(line.accuracies, benchmarks)
    if len(benchmarks) > 1:
        values.append(None if whole is None else 100 * whole)
    if base is not None and whole is not None:
        values.append(100 * (whole / base - 1))
    return Row(line.label, tuple(values), tuple(spreads), ranked=line.group is not None)


def _fitted(row: Row, width: int, rule_above: bool) -> Row:
    """The row with gaps up to the table's width."""
    values = row.values + (None,) * (width - len(row.values))
    spreads = row.spreads + (None,) * (width - len(row.spreads))
    return replace(row, values=values, spreads=spreads, rule_above=rule_above)


def average(accuracies: dict[str, list[float]], benchmarks: Sequence[str]) -> float | None:
    """Mean over benchmarks of the means over seeds; None unless all were measured."""
    if not benchmarks or any(not accuracies.get(benchmark) for benchmark in benchmarks):
        return None
    return float(np.mean([np.mean(accuracies[benchmark]) for benchmark in benchmarks]))


def is_out_of_domain(benchmark: str) -> bool:
    plain = re.sub(r"[^a-z0-9]", "", benchmark.lower())
    return "ood" in re.split(r"[^a-z0-9]+", benchmark.lower()) or any(name in plain for name in OUT_OF_DOMAIN)


def _after(groups: list[Group]) -> list[Line]:
    return [Line(group.label, group.accuracies(), group) for group in groups]


def _with_baseline(lines: list[Line], baseline: Group | None) -> list[Line]:
    """The baseline's line first; it is added where it is not among them."""
    theirs = [line for line in lines if line.group is baseline]
    if not theirs and baseline is not None:
        theirs = _after([baseline])
    return theirs + [line for line in lines if line.group is not baseline]


def _before(groups: list[Group]) -> list[Line]:
    """The model before training; every run measured the same one, so each benchmark's first number stands."""
    seen: dict[str, list[dict[str, Any]]] = {}
    for group in groups:
        for name, entries in group.evaluations("before").items():
            seen.setdefault(name, entries[:1])
    accuracies = {name: [float(entry["accuracy"]) for entry in entries] for name, entries in seen.items()}
    return [Line(f"{groups[0].subject[0]} (before training)", accuracies, before=seen)] if seen else []


def _in_order(groups: list[Group], methods: Sequence[str]) -> list[Group]:
    chosen = [group for group in groups if group.method in methods]
    return sorted(chosen, key=lambda group: methods.index(group.method))


def _percent(values: list[float]) -> float | None:
    return 100 * float(np.mean(values)) if values else None


def _spread(values: list[float]) -> float | None:
    return 100 * float(np.std(values, ddof=1)) if len(values) > 1 else None
