"""The plan: which cells are run and which claims they decide. It was committed before the runs."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from experiments.tiny_world.starts import Start
from pivot.config import Config, load_file, overlay
from pivot.config.coerce import coerce
from pivot.config.schema import all_fields
from pivot.errors import UserError, nearest
from pivot.method import PRESETS

PLAN = Path(__file__).with_name("plan.yaml")
"""The plan of the committed results."""
QUICK_PLAN = Path(__file__).with_name("quick.yaml")
"""Every kind of cell in a few minutes, to see that everything runs; its numbers mean nothing."""

BASE = "base"
"""The arm that is not trained: its world's starting checkpoint."""
OVERHEAD = "overhead"
"""The arm that measures the methods' step times, one step of each in turn."""
UNCHANGED = "recipe"
"""Among the values of a varied setting: the recipe's or the method's own."""


@dataclass(frozen=True)
class World:
    """One variation of the tiny world."""

    about: str = ""
    """How it differs from the main world."""
    settings: tuple[str, ...] = ()
    start: Start = Start()  # noqa: RUF009 - frozen
    """Another starting checkpoint than the settings' `model.path`; without an origin: none."""
    test: str = "test"
    """The in-domain split."""


@dataclass(frozen=True)
class Measure:
    """What is measured of every model."""

    prompts: int = 200
    """Per set."""
    samples: int = 8
    """Per prompt: accuracy@8."""
    looked_at: int = 60
    """Test prompts whose responses are scored under the corrupted image and for attention to it."""


@dataclass(frozen=True)
class Group:
    """Cells that belong to one table: every world x arm x variant x seed."""

    about: str = ""
    worlds: tuple[str, ...] = ("main",)
    arms: tuple[str, ...] = ()
    seeds: int = 3
    screened: int = 0
    """Seeds that run at every value; the others run at the common value and at the arm's best on these. 0: all."""
    settings: tuple[str, ...] = ()
    """Of every cell of the group, over its method's own."""
    vary: tuple[str, ...] = ()
    """`section.field = a | b | recipe`: settings that are varied, one at a time."""

    def variants(self) -> list[tuple[str, ...]]:
        """The settings of each variant; only the group's own where nothing is varied."""
        found: list[tuple[str, ...]] = []
        for varied in self.vary:
            setting, _, values = varied.partition("=")
            for value in (value.strip() for value in values.split("|")):
                changed = () if value == UNCHANGED else (f"{setting.strip()}={value}",)
                found.append(self.settings + changed)
        return list(dict.fromkeys(found)) or [self.settings]


@dataclass(frozen=True)
class Side:
    """One side of a comparison: an arm in a world, with its settings."""

    arm: str = "dapo"
    world: str = "main"
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """That `first` is better than `second` by a metric; the results decide it."""

    text: str = ""
    first: Side = Side()
    second: Side = Side()
    metric: str = "test"
    source: Literal["paper", "ours"] = "paper"
    seeds: int = 3


@dataclass(frozen=True)
class Cell:
    """One run: a world, an arm, a seed and the settings in which it differs from the world's own.

    Example:
        Cell("main", "pivot", 3, ("method.beta=1.0",)).label == "main pivot beta=1.0 seed 3"
    """

    world: str
    arm: str
    seed: int = 0
    settings: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        said = [short_setting(setting) for setting in self.settings]
        return " ".join([self.world, self.arm, *said, *([] if self.is_single else [f"seed {self.seed}"])])

    @property
    def is_single(self) -> bool:
        """Whether one cell serves all seeds: nothing is trained."""
        return self.arm in (BASE, OVERHEAD)


@dataclass(frozen=True)
class Plan:
    """Everything that was decided before the runs."""

    recipe: str = "tiny-evidence"
    version: int = 1
    """Raised when finished cells no longer count."""
    settings: tuple[str, ...] = ()
    """Of every cell."""
    defaults: tuple[str, ...] = ()
    """Package defaults that have changed since the plan was written, with their values at that time."""
    presets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Method -> settings in which its preset has changed since, with their values at that time."""
    timed: tuple[str, ...] = ()
    """The methods of an `overhead` cell."""
    timed_rounds: int = 30
    """Steps of each; the first half is not counted."""
    changes: tuple[str, ...] = ()
    """What was changed after the first run, and why; newest last."""
    measure: Measure = Measure()
    worlds: Mapping[str, World] = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    digest: str = ""

    def cells(self, only: Iterable[str] = ()) -> list[Cell]:
        """The cells of the groups asked for (none named: all), in their order, each once."""
        chosen = list(only) or list(self.groups)
        for name in chosen:
            if name not in self.groups:
                raise UserError(f"--only {name} is not a group of the plan; {nearest(name, self.groups)}.")
        return list(dict.fromkeys(cell for name in chosen for cell in self.group_cells(name)))

    def seeds_of(self, side: Side) -> int:
        """How many seeds are planned for this side of a comparison; 0 where no group has it."""
        return sum(
            (c.world, c.arm, c.settings) == (side.world, side.arm, side.settings) for c in self.cells()
        )

    def group_cells(self, name: str) -> list[Cell]:
        group = self.groups[name]
        found: list[Cell] = []
        for world, arm in itertools.product(group.worlds, group.arms):
            if Cell(world, arm).is_single:
                found.append(Cell(world, arm))
                continue
            for variant, seed in itertools.product(group.variants(), range(group.seeds)):
                found.append(Cell(world, arm, seed, variant))
        return found


def short_setting(setting: str) -> str:
    """`method.beta=1.0` as `beta=1.0`."""
    name, _, value = setting.partition("=")
    return f"{name.rpartition('.')[2]}={value}"


def setting_path(setting: str) -> str:
    """`method.beta=1.0` as `method.beta`."""
    return setting.partition("=")[0].strip()


def load_plan(path: Path = PLAN) -> Plan:
    """The plan in a YAML file; a UserError says what in it makes no sense."""
    raw = load_file(path)
    listed = {key: raw.pop(key, None) or {} for key in ("worlds", "groups", "claims", "presets")}
    plan = overlay(Plan(), raw, f"{path}: ")
    plan = replace(
        plan,
        worlds=_all(World(), listed["worlds"], f"{path}: worlds."),
        groups=_all(Group(), listed["groups"], f"{path}: groups."),
        claims=tuple(
            overlay(Claim(), given, f"{path}: claims[{i}].") for i, given in enumerate(listed["claims"])
        ),
        presets={
            name: coerce(given, tuple[str, ...], f"{path}: presets.{name}")
            for name, given in listed["presets"].items()
        },
        digest=hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12],
    )
    _check(plan, path)
    return plan


def _all(start: Any, given: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name: overlay(start, fields or {}, f"{prefix}{name}.") for name, fields in given.items()}


def _check(plan: Plan, path: Path) -> None:
    """Every world that a group names exists, every claim has its cells, and every kept default is a setting."""
    _check_kept(plan, path)
    for name, group in plan.groups.items():
        for world in group.worlds:
            if world not in plan.worlds:
                raise UserError(f"{path}: group {name} names world {world!r}; {nearest(world, plan.worlds)}.")
        if not 0 <= group.screened <= group.seeds:
            raise UserError(
                f"{path}: group {name} has screened: {group.screened}; give 0 (every seed at every value) "
                f"to {group.seeds}, its number of seeds."
            )
    cells = set(plan.cells())
    for claim in plan.claims:
        for cell in (c for side in (claim.first, claim.second) for c in side_cells(side, claim.seeds)):
            if cell not in cells:
                raise UserError(f"{path}: claim {claim.text!r} needs a cell that no group has: {cell.label}.")


def _check_kept(plan: Plan, path: Path) -> None:
    known = [info.path for info in all_fields(Config())]
    for name in plan.presets:
        if name not in PRESETS:
            raise UserError(f"{path}: presets names method {name!r}; {nearest(name, PRESETS)}.")
    for kept in (plan.defaults, *plan.presets.values()):
        for setting in kept:
            if setting_path(setting) not in known:
                raise UserError(
                    f"{path}: {setting!r} is not a setting; {nearest(setting_path(setting), known)}."
                )


def side_cells(side: Side, seeds: int) -> list[Cell]:
    """The cells of one side of a comparison: one per seed, or one that serves all seeds."""
    if Cell(side.world, side.arm).is_single:
        return [Cell(side.world, side.arm)]
    return [Cell(side.world, side.arm, seed, side.settings) for seed in range(seeds)]
