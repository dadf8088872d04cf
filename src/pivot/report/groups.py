"""Runs to compare: runs of a group differ only in their seed, groups of a sweep only in one setting."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pivot.errors import UserError
from pivot.report.run import RunData, is_number
from pivot.report.series import Series, mean_over_runs

USUAL_BASELINES = ("dapo", "grpo")
"""The baseline if none is named: the first of these that is among the runs."""
NOT_SETTINGS = re.compile(r"(.*\.)?seed$|recipe$|plugins$|log\.|checkpoint\.|train\.threads$")
"""Config keys that do not matter for whether runs belong to one group."""


@dataclass(eq=False)
class RunGroup:
    """Runs with the same settings, one per seed."""

    runs: list[RunData]
    settings: dict[str, Any]
    """`section.field` -> value, without the seed."""
    label: str = ""

    @property
    def method(self) -> str:
        return self.runs[0].method

    @property
    def subject(self) -> tuple[str, str]:
        """Model and training set; only groups that share both are compared in one table."""
        return str(self.settings.get("model.path", "model")), str(self.settings.get("data.train", "data"))

    def mean(self, key: str) -> float | None:
        """A metric's mean over all steps and runs; None if no run logged it."""
        logged = [series.values.mean() for series in self._logged(key)]
        return float(np.mean(logged)) if logged else None

    def last(self, key: str) -> float | None:
        """A metric's last value, mean over runs; None if no run logged it."""
        logged = [series.values[-1] for series in self._logged(key)]
        return float(np.mean(logged)) if logged else None

    def curve(self, key: str) -> tuple[Series, np.ndarray] | None:
        """Mean and standard deviation of a metric over the runs that logged it, at the steps they share."""
        logged = self._logged(key)
        if not logged:
            return None
        mean, spread = mean_over_runs(logged)
        return (mean, spread) if len(mean) else None

    def _logged(self, key: str) -> list[Series]:
        return [series for run in self.runs if len(series := run.series(key))]

    def evaluations(self, when: str = "after") -> dict[str, list[dict[str, Any]]]:
        """Benchmark -> the entries of the runs' scores.json, with images shown."""
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for run in self.runs:
            for evaluation in run.evaluations:
                if evaluation.get("when") == when and not evaluation.get("blank"):
                    found[str(evaluation.get("name", "evaluation"))].append(evaluation)
        return dict(found)

    def accuracies(self, when: str = "after") -> dict[str, list[float]]:
        """Benchmark -> accuracies of the runs, with images shown.

        If there is no evaluation after training, the last validation accuracy is used as `validation`.
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
    """Groups that differ in one setting only."""

    key: str
    members: list[tuple[Any, RunGroup]] = field(default_factory=list)

    @property
    def is_numeric(self) -> bool:
        return all(is_number(value) for value, _ in self.members)


@dataclass
class RunGroups:
    """All runs that are compared."""

    groups: list[RunGroup]
    sweeps: list[Sweep]
    representatives: list[RunGroup]
    """One group per method; the other groups differ from theirs in one swept setting only."""


def group_runs(runs: list[RunData]) -> RunGroups:
    """Group the runs, find the swept settings, and label every group by its method and what is special about it."""
    groups = _group(runs)
    sweeps = _sweeps(groups)
    representatives = []
    for group in groups:
        usual = _representative(group, groups, sweeps)
        group.label = _label(group, usual)
        swept = any({id(group), id(usual)} <= {id(g) for _, g in sweep.members} for sweep in sweeps)
        if group is usual or not swept:
            representatives.append(group)
    return RunGroups(groups, sweeps, representatives)


def _group(runs: list[RunData]) -> list[RunGroup]:
    found: dict[str, RunGroup] = {}
    for run in runs:
        settings = {key: value for key, value in _flat(run.config).items() if not NOT_SETTINGS.match(key)}
        identity = json.dumps(settings, sort_keys=True) if settings else str(run.folder)
        found.setdefault(identity, RunGroup([], settings)).runs.append(run)
    return list(found.values())


def _sweeps(groups: list[RunGroup]) -> list[Sweep]:
    """Every setting in which two or more groups differ and in nothing else."""
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


def _representative(group: RunGroup, groups: list[RunGroup], sweeps: list[Sweep]) -> RunGroup:
    """Of the groups with this method, model and data: the one with most seeds, then in most sweeps, then the first."""
    rivals = [g for g in groups if (g.method, g.subject) == (group.method, group.subject)]

    def weight(rival: RunGroup) -> tuple[int, int]:
        return len(rival.runs), sum(any(g is rival for _, g in sweep.members) for sweep in sweeps)

    return max(rivals, key=weight)


def find_baseline(groups: list[RunGroup], name: str | None) -> RunGroup | None:
    """The group with this method, label or run; without a name one of `USUAL_BASELINES`, else the first group."""
    if name is not None:
        named = [g for g in groups if name in (g.method, g.label, *(run.name for run in g.runs))]
        return named[0] if named else None
    for usual in USUAL_BASELINES:
        for group in groups:
            if group.method == usual:
                return group
    return groups[0] if groups else None


def check_baseline(groups: list[RunGroup], name: str | None) -> None:
    """Raise a UserError if the baseline is not among the runs."""
    if name is not None and find_baseline(groups, name) is None:
        known = ", ".join(group.label for group in groups)
        raise UserError(
            f"--baseline {name} is not among the runs; give the method or label of one of them ({known}) "
            "or its folder's name."
        )


def _label(group: RunGroup, usual: RunGroup) -> str:
    if not group.settings:
        return group.runs[0].name
    keys = sorted(set(group.settings) | set(usual.settings))
    differing = [key for key in keys if group.settings.get(key) != usual.settings.get(key)]
    special = [f"{key.rpartition('.')[2]} = {group.settings.get(key)}" for key in differing]
    return f"{group.method} ({', '.join(special)})" if special else group.method


def _flat(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in section.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
