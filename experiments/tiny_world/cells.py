"""What a cell is as a run: its configuration, its name, and the digest of all that determines it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from experiments.tiny_world.plan import BASE, OVERHEAD, Cell, Plan, setting_path
from pivot import recipes
from pivot.config import Config, apply_settings, to_dict, validate
from pivot.config.coerce import parse
from pivot.config.methods import settings_for
from pivot.config.schema import all_fields
from pivot.method import Method

NOT_TRAINED = ("model", "data", "rollout")
"""The sections that a base cell depends on."""
NO_NUMBERS = ("recipe", "name", "summary", "log", "checkpoint")
"""Fields and sections that change no number."""
FORMER_NAMES = {"experiments.tiny_world.rewards:same_remainder": "pivot.reproduce.rewards:same_remainder"}
"""Values that have been renamed since the cells ran: a digest is made of the name at that time."""


def cell_config(plan: Plan, cell: Cell, start: Path | None = None) -> Config:
    """The training configuration; `start` is the world's own checkpoint, where it has one."""
    world = plan.worlds[cell.world]
    arm = "dapo" if cell.is_single else cell.arm
    model = [f"model.path={start}"] if start is not None else []
    kept = [*_kept_defaults(plan.recipe, arm, plan.defaults), *plan.presets.get(arm, ())]
    settings = [
        f"method={arm}",
        "reward.format=true",
        *kept,
        *plan.settings,
        *world.settings,
        *model,
        *cell.settings,
    ]
    config = apply_settings(_recipe(plan.recipe), [*settings, f"train.seed={cell.seed}"])
    validate(config)
    return config


@cache
def _recipe(name: str) -> Config:
    return recipes.get(name)


@cache
def _kept_defaults(recipe: str, arm: str, defaults: tuple[str, ...]) -> list[str]:
    """Those of the plan's defaults that recipe and preset leave at today's default; a value of their own stays."""
    config = apply_settings(_recipe(recipe), [f"method={arm}"])
    own, today = _values(config), _values(_DEFAULTS)
    kept = [s for s in defaults if own[setting_path(s)] == today[setting_path(s)]]
    return list(settings_for(config.method, kept))


_DEFAULTS = replace(Config(), method=Method("", ""))
"""Every field at its default, the method's too."""


def _values(config: Config) -> dict[str, Any]:
    return {info.path: info.value for info in all_fields(config)}


@cache
def _plan_defaults(settings: tuple[str, ...]) -> Mapping[str, Any]:
    """The defaults with those that have changed since the plan was written, as nested mappings."""
    defaults = to_dict(_DEFAULTS)
    hints = {info.path: info.hint for info in all_fields(_DEFAULTS)}
    for setting in settings:
        path, _, text = setting.partition("=")
        section, name = path.strip().split(".")
        defaults[section][name] = parse(text.strip(), hints[path.strip()], path)
    return _as_written(defaults)


def _as_written(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration as it was when the cells ran: one reward function, and the format advantage with it."""
    reward = {**config["reward"], "format": None}
    (function,) = reward.pop("functions") or [None]
    return config | {"reward": reward | {"function": function}}


def identity(plan: Plan, cell: Cell) -> dict[str, Any]:
    """Everything that determines a cell's numbers except the code, for which the plan's version stands.

    Of the configuration only what differs from the defaults counts, so that a new setting which is off by default
    leaves finished cells valid. A default that has changed since the plan was written counts as the plan has it.
    """
    world = plan.worlds[cell.world]
    resolved = cell_config(plan, cell)
    config = _as_written(to_dict(resolved))
    # Settings of parts that the method lacks change no number.
    config["method"] = {name: config["method"][name] for name in resolved.method.own_settings()}
    changed = difference(config, _plan_defaults(plan.defaults))
    found: dict[str, Any] = {"version": plan.version, "config": changed, "test": world.test}
    if world.start.origin:
        found["start"] = asdict(world.start)
    if cell.arm == OVERHEAD:
        return found | {"arm": OVERHEAD, "timed": list(plan.timed), "rounds": plan.timed_rounds}
    if cell.arm == BASE:
        found["config"] = {key: value for key, value in changed.items() if key in NOT_TRAINED}
    return found | {"arm": cell.arm, "measure": asdict(plan.measure)}


def difference(config: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a nested mapping that are not the default's."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if key in NO_NUMBERS:
            continue
        if isinstance(value, Mapping):
            inside = difference(value, default[key])
            if inside:
                found[key] = inside
        elif value != default[key]:
            found[key] = FORMER_NAMES.get(value, value) if isinstance(value, str) else value
    return found


def cell_name(plan: Plan, cell: Cell) -> str:
    """Readable, and different whenever what determines the cell is: `main-pivot-seed-3-1f0c99ab`."""
    text = json.dumps(identity(plan, cell), sort_keys=True)
    readable = re.sub(r"[^a-z0-9.]+", "-", cell.label.lower())
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def result_path(plan: Plan, cell: Cell, results: Path) -> Path:
    return results / f"{cell_name(plan, cell)}.json"
