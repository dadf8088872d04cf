"""The paper's tables for the given runs: main, out of domain, ablation, GRPO, interventions, overhead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pivot.evaluation.benchmarks import GROUPS
from pivot.evaluation.settings import comparability_notes
from pivot.report.groups import RunGroup, RunGroups, Sweep, find_baseline
from pivot.report.panels import PHASES
from pivot.report.tables import Column, Row, Table, Value

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
OUT_OF_DOMAIN = (*GROUPS["ood"], "infovqa")
"""Names of out-of-domain sets without case and punctuation; a set with `ood` in its name is one too."""


def accuracy_tables(compared: RunGroups, baseline: str | None) -> list[Table]:
    """All accuracy tables that the runs allow, separately for each model and training set."""
    tables: list[Table] = []
    subjects = list(dict.fromkeys(group.subject for group in compared.groups))
    for i, subject in enumerate(subjects, start=1):
        theirs = Subject(
            [g for g in compared.groups if g.subject == subject], f"-{i}" if len(subjects) > 1 else ""
        )
        representatives = [g for g in compared.representatives if g.subject == subject]
        sweeps = [
            s for s in compared.sweeps if s.members[0][1].subject == subject == s.members[-1][1].subject
        ]
        tables += theirs.paper_tables(representatives, baseline) + theirs.sweep_tables(sweeps, baseline)
    return tables


@dataclass(frozen=True)
class Subject:
    """The groups of one model and training set, which are compared in one table."""

    groups: list[RunGroup]
    suffix: str
    """Of the tables' names, if there are several models or training sets."""

    @property
    def about(self) -> str:
        model, data = self.groups[0].subject
        return f"{model} trained on {data}, %"

    @property
    def benchmarks(self) -> list[str]:
        return list(dict.fromkeys(name for group in self.groups for name in group.accuracies()))

    def paper_tables(self, representatives: list[RunGroup], baseline: str | None) -> list[Table]:
        """Main, out of domain, ablation and GRPO, as far as there are runs."""
        near = [name for name in self.benchmarks if not is_out_of_domain(name)]
        far = [name for name in self.benchmarks if is_out_of_domain(name)]
        known = {*MAIN, *ABLATION, *GRPO}
        main = _in_order(representatives, MAIN) + [g for g in representatives if g.method not in known]
        ablation, grpo = _in_order(representatives, ABLATION), _in_order(representatives, GRPO)
        before, compared = _before(self.groups), find_baseline(self.groups, baseline)
        tables = [
            self.table("main", "Accuracy", [*before, *_after(main or representatives)], near),
            self.table(
                "out-of-domain", "Out-of-domain accuracy", [*before, *_after(main or representatives)], far
            ),
        ]
        if any(group.method not in MAIN for group in ablation):
            tables.append(
                self.table("ablation", "Ablation", _with_baseline(_after(ablation), compared), near, 0)
            )
        if {group.method for group in grpo} == {*GRPO}:
            tables.append(self.table("grpo", "PIVOT on GRPO", [*before, *_after(grpo)], near, 0))
        return [table for table in tables if table is not None]

    def sweep_tables(self, sweeps: list[Sweep], baseline: str | None) -> list[Table]:
        """One table per swept setting, the baseline first; `corruption.kind` gives the interventions."""
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
            scores = [
                Scores(f"{g.method}, {field} = {value}", g.accuracies(), g) for value, g in sweep.members
            ]
            tables.append(self.table(name, caption, _with_baseline(scores, compared), near, 0))
        return [table for table in tables if table is not None]

    def table(
        self, name: str, caption: str, scores: list[Scores], benchmarks: list[str], gain_to: int | None = None
    ) -> Table | None:
        """Accuracy in percent with its deviation over seeds, their average, and its gain over one of the rows.

        `gain_to` is the index of that row. None if no run measured any of the benchmarks.
        """
        if not any(
            score.group is not None and score.accuracies.get(b) for score in scores for b in benchmarks
        ):
            return None
        base = None if gain_to is None else average(scores[gain_to].accuracies, benchmarks)
        columns = [Column(benchmark) for benchmark in benchmarks]
        columns += [Column("Avg.")] if len(benchmarks) > 1 else []
        columns += [Column("Δ, %", best=None, form="+.2f")] if base else []
        seeds = [score.num_seeds(benchmarks) for score in scores]
        most = max(count or 0 for count in seeds)
        rows = [
            _row(score, benchmarks, base if base and i != gain_to else None) for i, score in enumerate(scores)
        ]
        # Rows with fewer seeds than others are not marked: the best of single runs is high by chance.
        rows = [
            replace(_fitted(row, len(columns), i == 1 and scores[0].group is None), ranked=seeds[i] == most)
            for i, row in enumerate(rows)
        ]
        columns.append(Column("Seeds", best=None, form="d"))
        rows = [
            replace(row, values=(*row.values, count), spreads=(*row.spreads, None))
            for row, count in zip(rows, seeds, strict=True)
        ]
        shown = [{b: score.evaluations[b] for b in benchmarks if b in score.evaluations} for score in scores]
        rows = [replace(row, note=note) for row, note in zip(rows, comparability_notes(shown), strict=True)]
        text = f"{caption}: {self.about}"
        if base and gain_to is not None:
            text += f"; Δ relative to {scores[gain_to].label}"
        return Table(name + self.suffix, text, "Method", tuple(columns), tuple(rows))


@dataclass(frozen=True)
class Scores:
    """The accuracies behind a row: of a group, or of the model before training (no group)."""

    label: str
    accuracies: dict[str, list[float]]
    group: RunGroup | None = None
    before: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Without a group: the entries of scores.json."""

    @property
    def evaluations(self) -> dict[str, list[dict[str, Any]]]:
        """Benchmark -> the entries of scores.json."""
        return self.before if self.group is None else self.group.evaluations()

    def num_seeds(self, benchmarks: Sequence[str]) -> int | None:
        """Runs behind the row's least measured benchmark; None for the model before training."""
        if self.group is None:
            return None
        return min((len(self.accuracies[b]) for b in benchmarks if b in self.accuracies), default=0)


def _row(score: Scores, benchmarks: list[str], base: float | None) -> Row:
    values = [_percent(score.accuracies.get(name, [])) for name in benchmarks]
    spreads = [_spread(score.accuracies.get(name, [])) for name in benchmarks]
    whole = average(score.accuracies, benchmarks)
    if len(benchmarks) > 1:
        values.append(None if whole is None else 100 * whole)
    if base is not None and whole is not None:
        values.append(100 * (whole / base - 1))
    return Row(score.label, tuple(values), tuple(spreads), ranked=score.group is not None)


def _fitted(row: Row, width: int, rule_above: bool) -> Row:
    """The row with empty cells up to the table's width."""
    values = row.values + (None,) * (width - len(row.values))
    spreads = row.spreads + (None,) * (width - len(row.spreads))
    return replace(row, values=values, spreads=spreads, rule_above=rule_above)


def average(accuracies: dict[str, list[float]], benchmarks: Sequence[str]) -> float | None:
    """Mean over benchmarks of the mean over seeds; None unless all were measured."""
    if not benchmarks or any(not accuracies.get(benchmark) for benchmark in benchmarks):
        return None
    return float(np.mean([np.mean(accuracies[benchmark]) for benchmark in benchmarks]))


def is_out_of_domain(benchmark: str) -> bool:
    plain = re.sub(r"[^a-z0-9]", "", benchmark.lower())
    return "ood" in re.split(r"[^a-z0-9]+", benchmark.lower()) or any(name in plain for name in OUT_OF_DOMAIN)


def _after(groups: list[RunGroup]) -> list[Scores]:
    return [Scores(group.label, group.accuracies(), group) for group in groups]


def _with_baseline(scores: list[Scores], baseline: RunGroup | None) -> list[Scores]:
    """The baseline first, whether or not it is among them."""
    theirs = [score for score in scores if score.group is baseline]
    if not theirs and baseline is not None:
        theirs = _after([baseline])
    return theirs + [score for score in scores if score.group is not baseline]


def _before(groups: list[RunGroup]) -> list[Scores]:
    """The model before training; all runs start from it, so the first score of each benchmark is taken."""
    seen: dict[str, list[dict[str, Any]]] = {}
    for group in groups:
        for name, entries in group.evaluations("before").items():
            seen.setdefault(name, entries[:1])
    accuracies = {name: [float(entry["accuracy"]) for entry in entries] for name, entries in seen.items()}
    return [Scores(f"{groups[0].subject[0]} (before training)", accuracies, before=seen)] if seen else []


def _in_order(groups: list[RunGroup], methods: Sequence[str]) -> list[RunGroup]:
    chosen = [group for group in groups if group.method in methods]
    return sorted(chosen, key=lambda group: methods.index(group.method))


def _percent(values: list[float]) -> float | None:
    return 100 * float(np.mean(values)) if values else None


def _spread(values: list[float]) -> float | None:
    return 100 * float(np.std(values, ddof=1)) if len(values) > 1 else None


def overhead_table(groups: list[RunGroup], baseline: RunGroup | None) -> Table | None:
    """Seconds per step, in total and by phase, relative to the baseline; the memory of buffer and process.

    Columns without any value are left out; None if no group measured its time.
    """
    timed = [group for group in groups if group.mean("time/step") is not None]
    if not timed:
        return None
    base = None if baseline is None else baseline.mean("time/step")
    columns: dict[Column, list[Value]] = {
        Column("s / step", best=None, form=".3f"): [group.mean("time/step") for group in timed],
        Column("Δ, %", best=None, form="+.1f"): [None if g is baseline else _gain(g, base) for g in timed],
    }
    for phase in PHASES:
        columns[Column(f"{phase}, s", best=None, form=".3f")] = [
            group.mean(f"time/{phase}") for group in timed
        ]
    columns[Column("buffer, MB", best=None)] = [group.last("buffer/megabytes") for group in timed]
    columns[Column("peak memory, GB", best=None)] = [group.last("memory/peak_gb") for group in timed]
    measured = {column: values for column, values in columns.items() if any(v is not None for v in values)}
    rows = [Row(g.label, tuple(values[i] for values in measured.values())) for i, g in enumerate(timed)]
    caption = "Overhead: seconds per step, mean over steps and runs" + (
        f"; Δ relative to {baseline.label}" if baseline else ""
    )
    return Table("overhead", caption, "Method", tuple(measured), tuple(rows))


def _gain(group: RunGroup, base: float | None) -> float | None:
    seconds = group.mean("time/step")
    return 100 * (seconds / base - 1) if base and seconds is not None else None
