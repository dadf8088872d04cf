"""Runs put together: a group differs only in its seeds, a sweep only in one setting."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pivot.errors import UserError
from pivot.report.curves import band
from pivot.report.run import Run, Series, is_number

USUAL_BASELINES = ("dapo", "grpo")
"""What the paper compares with, where nobody names a baseline."""
NOT_SETTINGS = re.compile(r"(.*\.)?seed$|recipe$|log\.|checkpoint\.|train\.threads$")
"""Config keys in which runs may differ and still be repetitions of one another."""


@dataclass(eq=False)
class Group:
    """Runs of the same settings, one a seed."""

    runs: list[Run]
    settings: dict[str, Any]
    """`section.field` -> value, without the seed."""
    label: str = ""

    @property
    def method(self) -> str:
        return self.runs[0].method

    @property
    def subject(self) -> tuple[str, str]:
        """What was trained on what: only groups that share it belong into one table."""
        return str(self.settings.get("model.path", "model")), str(self.settings.get("data.train", "data"))

    def mean(self, key: str) -> float | None:
        """A metric's mean over all steps and runs; None where no run logged it."""
        logged = [run.series(key).values.mean() for run in self.runs if len(run.series(key))]
        return float(np.mean(logged)) if logged else None

    def last(self, key: str) -> float | None:
        """A metric's last value, mean over runs."""
        logged = [run.series(key).values[-1] for run in self.runs if len(run.series(key))]
        return float(np.mean(logged)) if logged else None

    def curve(self, key: str) -> tuple[Series, np.ndarray] | None:
        """Mean and standard deviation over the runs that logged a metric, at the steps they share."""
        logged = [run.series(key) for run in self.runs if len(run.series(key))]
        if not logged:
            return None
        steps, mean, spread = band(logged)
        return (Series(steps, mean), spread) if len(steps) else None

    def evaluations(self, when: str = "after") -> dict[str, list[dict[str, Any]]]:
        """Benchmark -> the runs' entries of scores.json, images shown."""
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for run in self.runs:
            for evaluation in run.evaluations:
                if evaluation.get("when") == when and not evaluation.get("blank"):
                    found[str(evaluation.get("name", "evaluation"))].append(evaluation)
        return dict(found)

    def accuracies(self, when: str = "after") -> dict[str, list[float]]:
        """Benchmark -> accuracies of the runs, images shown.

        After training without any evaluation: the last validation accuracy stands in, under its own name.
        """
        found = {
            name: [float(entry["accuracy"]) for entry in entries]
            for name, entries in self.evaluations(when).items()
        }
        if not found and when == "after":
            last = [run.series("eval/accuracy").last for run in self.runs]
            found["validation"] = [value for value in last if value is not None]
        return {name: values for name, values in found.items() if values}


@dataclass
class Sweep:
    """Groups that differ in one setting alone."""

    key: str
    members: list[tuple[Any, Group]] = field(default_factory=list)

    @property
    def is_numeric(self) -> bool:
        return all(is_number(value) for value, _ in self.members)


@dataclass
class Study:
    """All that was given to compare."""

    groups: list[Group]
    sweeps: list[Sweep]
    leaders: list[Group]
    """The groups that stand for their methods; the others differ from a leader in one swept setting alone."""


def study(runs: list[Run]) -> Study:
    """Group runs, find what was swept, name every group by its method and its difference from its leader."""
    groups = _group(runs)
    sweeps = _sweeps(groups)
    leaders = []
    for group in groups:
        leader = _leader(group, groups, sweeps)
        group.label = _label(group, leader)
        swept = any({id(group), id(leader)} <= {id(g) for _, g in sweep.members} for sweep in sweeps)
        if group is leader or not swept:
            leaders.append(group)
    return Study(groups, sweeps, leaders)


def _group(runs: list[Run]) -> list[Group]:
    found: dict[str, Group] = {}
    for run in runs:
        settings = {key: value for key, value in _flat(run.config).items() if not NOT_SETTINGS.match(key)}
        identity = json.dumps(settings, sort_keys=True) if settings else str(run.folder)
        found.setdefault(identity, Group([], settings)).runs.append(run)
    return list(found.values())


def _sweeps(groups: list[Group]) -> list[Sweep]:
    """Every setting in which two or more groups differ, and in nothing else."""
    keys = sorted({key for group in groups for key in group.settings} - {"method.name"})
    sweeps = []
    for key in keys:
        alike: dict[str, Sweep] = {}
        for group in groups:
            if key in group.settings:
                rest = json.dumps({k: v for k, v in group.settings.items() if k != key}, sort_keys=True)
                alike.setdefault(rest, Sweep(key)).members.append((group.settings[key], group))
        sweeps += [sweep for sweep in alike.values() if len(sweep.members) > 1]
    for sweep in sweeps:
        if sweep.is_numeric:
            sweep.members.sort(key=lambda member: member[0])
    return sweeps


def _leader(group: Group, groups: list[Group], sweeps: list[Sweep]) -> Group:
    """Of one method, model and data: the group with most seeds, then in most sweeps, then the first."""
    rivals = [g for g in groups if (g.method, g.subject) == (group.method, group.subject)]

    def weight(rival: Group) -> tuple[int, int]:
        return len(rival.runs), sum(any(g is rival for _, g in sweep.members) for sweep in sweeps)

    return max(rivals, key=weight)


def find_baseline(groups: list[Group], name: str | None) -> Group | None:
    """By method, label or a run's folder; else the first of `USUAL_BASELINES`, else the first group."""
    if name is not None:
        named = [g for g in groups if name in (g.method, g.label, *(run.name for run in g.runs))]
        return named[0] if named else None
    for usual in USUAL_BASELINES:
        for group in groups:
            if group.method == usual:
                return group
    return groups[0] if groups else None


def check_baseline(groups: list[Group], name: str | None) -> None:
    """A baseline that is not among the runs is a mistake."""
    if name is not None and find_baseline(groups, name) is None:
        known = ", ".join(group.label for group in groups)
        raise UserError(
            f"--baseline {name} is none of the runs: give a method, a label or a folder's name out of {known}"
        )


def _label(group: Group, leader: Group) -> str:
    if not group.settings:
        return group.runs[0].name
    keys = sorted(set(group.settings) | set(leader.settings))
    differing = [key for key in keys if group.settings.get(key) != leader.settings.get(key)]
    said = [f"{key.rpartition('.')[2]} = {group.settings.get(key)}" for key in differing]
    return f"{group.method} ({', '.join(said)})" if said else group.method


def _flat(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in section.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
