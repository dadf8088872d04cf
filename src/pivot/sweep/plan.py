"""A plan: the arms of an experiment, how they are evaluated, the claims they decide, and what is rendered from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pivot.config import load_file, overlay
from pivot.config.methods import find_method
from pivot.errors import UserError, nearest
from pivot.evaluation.sets import check_name, check_score_names, expand
from pivot.sweep.axes import Axis, Selection, combinations, is_selected, read_axes, read_selection

Rendering = Literal["accuracy", "overhead", "dynamics", "sensitivity", "rollouts"]
Sampler = Literal["native", "vllm"]
PLACEHOLDER = re.compile(r"\{(.+?)\}")
FILLED = ("data", "limits", "results")
"""Placeholders of `then` besides the arms: the first benchmark, the recipe's limits as options, the results folder."""

TRAIN = "train"
"""Among the benchmarks: the prompts that a run was trained on."""

MEASURES = {
    "accuracy": "mean accuracy of the last checkpoint over the plan's benchmarks",
    "final": "validation accuracy at the last step",
    "best": "highest validation accuracy during training",
    "area": "area under the validation curve over steps",
    "area_rollouts": "area under the validation curve over sampled responses, as far as both arms got",
    "equal_rollouts": "validation accuracy after equally many sampled responses",
    "equal_tokens": "validation accuracy after equally many sampled tokens",
    "equal_time": "validation accuracy after equally long training (processor time without a GPU)",
}
"""What a claim can be about, besides the name of a benchmark. Areas are divided by their width: a mean accuracy."""


@dataclass(frozen=True)
class Engine:
    """What trains: this process, verl on one node or many (docs/cluster.md), or an engine of a plugin."""

    name: str = "local"
    """As `pivot train --engine` takes it."""
    nodes: int = 1
    gpus: int = 1
    """Per node."""
    address: str | None = None
    """Of a running Ray cluster, which several nodes need."""

    def options(self) -> list[str]:
        """As `pivot train` takes them."""
        if self.name != "verl":
            return [] if self.name == "local" else ["--engine", self.name]
        words = ["--engine", "verl", "--gpus", str(self.gpus)]
        words += ["--nodes", str(self.nodes)] if self.nodes > 1 else []
        return words + (["--address", self.address] if self.address else [])


@dataclass(frozen=True)
class Arm:
    """One row of the table: a method with its settings, or the model before training."""

    method: str = "pivot"
    """A name of `pivot methods`."""
    base: bool = False
    """Evaluate the recipe's model as it is; nothing is trained, and one evaluation serves all seeds."""
    settings: tuple[str, ...] = ()
    """`section.field=value`, over the plan's own."""
    needs: tuple[str, ...] = ()
    """Settings that only the user can give (`--set`); without them the arm is listed and left out."""
    paper: tuple[float | None, ...] = ()
    """The numbers that the paper prints for it, in the order of the first table's columns; null: none printed."""
    at: Selection = field(default_factory=dict)
    """Axis of `vary` -> the values at which it runs; an axis that is not there: all."""
    family: str = ""
    """Of an arm that `vary` has made: the arm it was made from. Not written in a plan."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Likewise: axis -> label of its value."""


@dataclass(frozen=True)
class Claim:
    """A claim that one arm is better than another by a measure; the runs, paired by seed, decide it."""

    better: str = ""
    than: str = ""
    measure: str = ""
    """One of MEASURES or a benchmark of the plan; empty: `accuracy`, or `final` where the plan has no benchmarks."""
    margin: float | None = None
    """Points. An interval around 0 that reaches further decides nothing: "cannot be told"."""
    at: Selection = field(default_factory=dict)
    """Axis of `vary` -> the values at which it is claimed; an axis that is not there: all."""


@dataclass(frozen=True)
class Stage:
    """Runs that come before those of later stages."""

    arms: tuple[str, ...] = ()
    """Empty: all."""
    at: Selection = field(default_factory=dict)
    """Axis of `vary` -> values; an axis that is not there: all."""

    def has(self, name: str, arm: Arm) -> bool:
        return (not self.arms or bool({name, arm.family} & {*self.arms})) and is_selected(arm.values, self.at)


@dataclass(frozen=True)
class Plan:
    """An experiment as its file describes it; `load_plan` reads it."""

    name: str = ""
    """The file's name without its ending."""
    title: str = ""
    source: str = ""
    """The table or figure that it is for."""
    recipe: str = "tiny"
    engine: Engine = Engine()
    seeds: int = 1
    """Runs per trained arm, with seeds 0, 1, ..."""
    settings: tuple[str, ...] = ()
    """`section.field=value` of every run."""
    benchmarks: tuple[str, ...] = ()
    """Sets and groups that every model is evaluated on; none: nothing is evaluated."""
    samples: int = 8
    """Responses per prompt (accuracy@8)."""
    limit: int | None = None
    """The first N rows of each benchmark; null: all."""
    sampler: Sampler = "native"
    """What samples the responses of evaluations."""
    render: tuple[Rendering, ...] = ("accuracy",)
    baseline: str | None = None
    """The arm that gains are relative to."""
    swept: tuple[str, ...] = ()
    """The settings on the x axes of the sensitivity figure."""
    then: tuple[str, ...] = ()
    """Commands after the runs: `report {PIVOT}`. `{ARM}` is the arm's first run or the base model's name."""
    vary: Mapping[str, Axis] = field(default_factory=dict)
    """Setting or name -> values: every trained arm runs at each of them, with several axes at each combination."""
    screen: int = 0
    """Seeds that run at every value of `vary`; the others run at the arm's best on the validation split. 0: all."""
    arms: Mapping[str, Arm] = field(default_factory=dict)
    """Name -> arm, one for each value of `vary`."""
    claims: tuple[Claim, ...] = ()
    stages: tuple[Stage, ...] = ()
    """What runs first; the runs of no stage come last."""

    def stage(self, name: str) -> int:
        """The number of the first stage that an arm belongs to."""
        found = (i for i, stage in enumerate(self.stages) if stage.has(name, self.arms[name]))
        return next(found, len(self.stages))

    def variants(self, family: str) -> list[str]:
        """The arms that `vary` has made from one; without `vary` the arm itself."""
        return [name for name, arm in self.arms.items() if family in (name, arm.family)]

    def counterpart(self, name: str, family: str) -> str | None:
        """The arm of another family at the values that this arm has: what it is compared with."""
        if family in self.arms:
            return family
        own = self.arms[name].family
        wanted = family + name.removeprefix(own) if own else family
        return wanted if wanted in self.arms else None

    @property
    def sets(self) -> list[str]:
        """The benchmarks, groups expanded."""
        return expand(self.benchmarks)

    @property
    def averaged(self) -> list[str]:
        """The benchmarks of prompts that no run was trained on."""
        return [name for name in self.sets if name != TRAIN]

    @property
    def num_columns(self) -> int:
        """Columns of the first table that the paper has too."""
        if self.render[:1] == ("overhead",):
            return 3
        return len(self.averaged) + 1 + (self.baseline is not None)


def load_plan(path: Path) -> Plan:
    """The plan in a YAML, TOML or JSON file; a UserError names the first thing in it that makes no sense."""
    raw = load_file(path)
    listed = {key: raw.pop(key, None) for key in ("arms", "vary", "claims", "stages")}
    plan = overlay(Plan(name=path.stem), raw, f"{path}: ")
    arms = listed["arms"]
    if not isinstance(arms, Mapping) or not arms:
        raise UserError(
            f"{path}: arms is {arms!r}, but must name at least one, such as DAPO: {{method: dapo}}."
        )
    axes = read_axes(listed["vary"] or {}, f"{path}: vary")
    plan = replace(
        plan,
        arms={str(name): _arm(given, axes, f"{path}: arms.{name}") for name, given in arms.items()},
        vary=axes,
        claims=tuple(_claim(given, axes, f"{path}: claims") for given in listed["claims"] or ()),
        stages=tuple(_stage(given, axes, f"{path}: stages") for given in listed["stages"] or ()),
    )
    _check(plan, path)
    return replace(plan, arms=_vary(plan.arms, axes))


def _arm(given: Any, axes: Mapping[str, Axis], where: str) -> Arm:
    if not isinstance(given, Mapping):
        raise UserError(
            f"{where} is {given!r}, but must be a mapping such as {{method: dapo}} or {{base: true}}."
        )
    arm = _with_selection(Arm(), given, axes, where)
    if arm.base and {"method", "settings", "at"} & given.keys():
        raise UserError(f"{where} is the model before training (base: true): leave method and settings out.")
    if not arm.base:
        find_method(arm.method)
    return arm


def _with_selection(start: Any, given: Mapping[str, Any], axes: Mapping[str, Axis], where: str) -> Any:
    """`start` with the fields of a mapping, `at` among them."""
    others = {key: value for key, value in given.items() if key != "at"}
    return replace(
        overlay(start, others, f"{where}."), at=read_selection(given.get("at", {}), axes, f"{where}.at")
    )


def _stage(given: Any, axes: Mapping[str, Axis], where: str) -> Stage:
    if not isinstance(given, Mapping):
        raise UserError(f"{where} has {given!r}, but a stage is a mapping such as {{arms: [DAPO, PIVOT]}}.")
    return _with_selection(Stage(), given, axes, where)


def _claim(given: Any, axes: Mapping[str, Axis], where: str) -> Claim:
    if not isinstance(given, Mapping) or not {"better", "than"} <= given.keys():
        raise UserError(
            f"{where} has {given!r}, but a claim is a mapping such as {{better: PIVOT, than: DAPO}}."
        )
    return _with_selection(Claim(), given, axes, where)


def _vary(arms: Mapping[str, Arm], axes: Mapping[str, Axis]) -> dict[str, Arm]:
    """Every trained arm at every combination of values: `PIVOT, lr=1e-6`."""
    if not axes:
        return dict(arms)
    found: dict[str, Arm] = {}
    for name, arm in arms.items():
        if arm.base:
            found[name] = arm
            continue
        for values in combinations(axes, arm.at):
            settings = [one for axis, label in values.items() for one in axes[axis].values[label]]
            label = ", ".join([name, *values.values()])
            found[label] = replace(arm, settings=(*arm.settings, *settings), family=name, values=values)
    return found


def _check(plan: Plan, path: Path) -> None:
    """What the fields' types cannot say."""
    for key, value in {"seeds": plan.seeds, "samples": plan.samples}.items():
        if value < 1:
            raise UserError(f"{path}: {key} is {value}, but must be at least 1.")
    if not 0 <= plan.screen <= plan.seeds:
        raise UserError(
            f"{path}: screen is {plan.screen}, but must be from 0 to {plan.seeds}, the number of seeds."
        )
    for name in plan.averaged:
        check_name(name)
    check_score_names(expand(plan.averaged))
    for name in (name for stage in plan.stages for name in stage.arms):
        if name not in plan.arms:
            raise UserError(f"{path}: a stage names arm {name!r}; {nearest(name, plan.arms)}.")
    if plan.baseline is not None and plan.baseline not in plan.arms:
        raise UserError(f"{path}: baseline is {plan.baseline!r}; {nearest(plan.baseline, plan.arms)}.")
    for name in (name for text in plan.then for name in PLACEHOLDER.findall(text)):
        if name not in (*plan.arms, *FILLED):
            raise UserError(f"{path}: then names {{{name}}}; {nearest(name, [*plan.arms, *FILLED])}.")
    for name, arm in plan.arms.items():
        if arm.paper and plan.vary:
            raise UserError(f"{path}: arms.{name}.paper has no place in a table whose rows are varied.")
        if arm.paper and len(arm.paper) != plan.num_columns:
            raise UserError(
                f"{path}: arms.{name}.paper has {len(arm.paper)} numbers, but the table has {plan.num_columns} columns."
            )
    _check_claims(plan, path)


def _check_claims(plan: Plan, path: Path) -> None:
    known = [*MEASURES, *plan.sets]
    for claim in plan.claims:
        for name in (claim.better, claim.than):
            if name not in plan.arms:
                raise UserError(f"{path}: a claim names arm {name!r}; {nearest(name, plan.arms)}.")
        if claim.measure and claim.measure not in known:
            raise UserError(
                f"{path}: a claim is about measure {claim.measure!r}; {nearest(claim.measure, known)}."
            )
        if claim.measure == "accuracy" and not plan.sets:
            raise UserError(
                f"{path}: a claim is about accuracy, but the plan has no benchmarks; use `final`."
            )


def choose_arms(plan: Plan, only: list[str]) -> Plan:
    """The plan with the arms named alone, and the claims about them; none named: all."""
    if not only:
        return plan
    names = {name for name, arm in plan.arms.items() if {name, arm.family} & set(only)}
    for name in only:
        if not any(name in (one, plan.arms[one].family) for one in names):
            raise UserError(f"--only {name} is not an arm of {plan.name}; {nearest(name, plan.arms)}.")
    chosen = {name: arm for name, arm in plan.arms.items() if name in names}
    left = replace(plan, arms=chosen)
    claims = tuple(c for c in plan.claims if left.variants(c.better) and left.variants(c.than))
    return replace(left, claims=claims)
