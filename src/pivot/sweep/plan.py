"""A plan: the arms of an experiment, what they share, how they are evaluated, and what is rendered from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pivot.config.loading import load_file, overlay
from pivot.config.methods import find_method
from pivot.config.nearest import nearest
from pivot.errors import UserError
from pivot.evaluate.sets import check_name, expand

Rendering = Literal["accuracy", "overhead", "dynamics", "sensitivity"]
EvalEngine = Literal["embedded", "vllm"]
PLACEHOLDER = re.compile(r"\{(.+?)\}")
FILLED = ("data", "limits", "results")
"""Placeholders of `then` besides the arms: the first benchmark, the recipe's limits as options, the results' folder."""


@dataclass(frozen=True)
class Engine:
    """What trains: one process, or verl on one node or many (docs/cluster.md)."""

    name: Literal["embedded", "verl"] = "embedded"
    nodes: int = 1
    gpus: int = 1
    """Per node."""
    address: str | None = None
    """Of a running Ray cluster, which several nodes need."""

    def options(self) -> list[str]:
        """As `pivot train` takes them."""
        if self.name == "embedded":
            return []
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
    eval_engine: EvalEngine = "embedded"
    render: tuple[Rendering, ...] = ("accuracy",)
    baseline: str | None = None
    """The arm that gains are relative to."""
    swept: tuple[str, ...] = ()
    """The settings on the x axes of the sensitivity figure."""
    then: tuple[str, ...] = ()
    """Commands after the runs: `report {PIVOT}`. `{ARM}` is the arm's first run or the base model's name."""
    arms: Mapping[str, Arm] = field(default_factory=dict)

    @property
    def sets(self) -> list[str]:
        """The benchmarks, groups expanded."""
        return expand(self.benchmarks)

    @property
    def num_columns(self) -> int:
        """Columns of the first table that the paper has too."""
        if self.render[:1] == ("overhead",):
            return 3
        return len(self.sets) + 1 + (self.baseline is not None)


def load_plan(path: Path) -> Plan:
    """The plan in a YAML, TOML or JSON file; a UserError names the first thing in it that makes no sense."""
    raw = load_file(path)
    arms = raw.pop("arms", None)
    plan = overlay(Plan(name=path.stem), raw, f"{path}: ")
    if not isinstance(arms, Mapping) or not arms:
        raise UserError(
            f"{path}: arms is {arms!r}, but must name at least one, such as DAPO: {{method: dapo}}."
        )
    plan = replace(
        plan, arms={str(name): _arm(given, f"{path}: arms.{name}") for name, given in arms.items()}
    )
    _check(plan, path)
    return plan


def _arm(given: Any, where: str) -> Arm:
    if not isinstance(given, Mapping):
        raise UserError(
            f"{where} is {given!r}, but must be a mapping such as {{method: dapo}} or {{base: true}}."
        )
    arm = overlay(Arm(), given, f"{where}.")
    if arm.base and {"method", "settings"} & given.keys():
        raise UserError(f"{where} is the model before training (base: true): leave method and settings out.")
    if not arm.base:
        find_method(arm.method)
    return arm


def _check(plan: Plan, path: Path) -> None:
    """What the fields' types cannot say."""
    for key, value in {"seeds": plan.seeds, "samples": plan.samples}.items():
        if value < 1:
            raise UserError(f"{path}: {key} is {value}, but must be at least 1.")
    for name in plan.sets:
        check_name(name)
    if plan.baseline is not None and plan.baseline not in plan.arms:
        raise UserError(f"{path}: baseline is {plan.baseline!r}; {nearest(plan.baseline, plan.arms)}.")
    for name in (name for text in plan.then for name in PLACEHOLDER.findall(text)):
        if name not in (*plan.arms, *FILLED):
            raise UserError(f"{path}: then names {{{name}}}; {nearest(name, [*plan.arms, *FILLED])}.")
    for name, arm in plan.arms.items():
        if arm.paper and len(arm.paper) != plan.num_columns:
            raise UserError(
                f"{path}: arms.{name}.paper has {len(arm.paper)} numbers, but the table has {plan.num_columns} columns."
            )


def choose_arms(plan: Plan, only: list[str]) -> Plan:
    """The plan with the arms named alone; none named: all."""
    for name in only:
        if name not in plan.arms:
            raise UserError(f"--only {name} is no arm of {plan.name}; {nearest(name, plan.arms)}.")
    chosen = {name: arm for name, arm in plan.arms.items() if not only or name in only}
    return replace(plan, arms=chosen)
