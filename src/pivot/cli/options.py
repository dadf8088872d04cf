"""The options that every command with a configuration shares, and the order in which they count."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict, Unpack

from pivot import recipes
from pivot.config.loading import apply_settings, load_file, overlay
from pivot.config.sections import Config
from pivot.config.validation import validate


class Shortcuts(TypedDict, total=False):
    """Settings that have an option of their own; None: not given."""

    method: str | None
    corruption: str | None
    steps: int | None
    seed: int | None
    model: str | None
    data: str | None


SHORTCUTS = {
    "method": ("method",),
    "corruption": ("corruption", "kind"),
    "steps": ("train", "steps"),
    "seed": ("train", "seed"),
    "model": ("model", "path"),
    "data": ("data", "train"),
}
"""Option -> the setting it stands for."""


def resolve(
    recipe: str | None = None,
    *,
    config_file: str | Path | None = None,
    settings: Iterable[str] = (),
    **shortcuts: Unpack[Shortcuts],
) -> Config:
    """Recipe < file < shortcuts < settings; the result is validated.

    Example:
        resolve("geo3k-3b", method="dapo", settings=["train.lr=2e-6"])
    """
    mapping = {} if config_file is None else load_file(config_file)
    config = recipes.from_mapping(mapping, recipe)
    for name, value in shortcuts.items():
        if value is not None:
            config = overlay(config, _nested(SHORTCUTS[name], value))
    config = apply_settings(config, settings)
    validate(config)
    return config


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--recipe, --config, the shortcuts and --set; `from_arguments` reads them."""
    group = parser.add_argument_group("configuration (later ones win)")
    group.add_argument("--recipe", metavar="NAME", help=f"start from: {', '.join(recipes.names())}")
    group.add_argument("--config", metavar="FILE", help="a YAML, TOML or JSON file, or a run's config.json")
    group.add_argument("--method", metavar="NAME", help="a method of `pivot methods`, or package.module:name")
    group.add_argument("--corruption", metavar="KIND", help="patch, grey or gaussian")
    group.add_argument("--steps", type=int, metavar="N", help="optimisation steps")
    group.add_argument("--seed", type=int, metavar="N", help="fixes the run bit for bit")
    group.add_argument("--model", metavar="PATH", help="`tiny`, a folder, or a hub id")
    group.add_argument("--data", metavar="NAME", help="training set: a known name, hub id, or file")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="A.B=C",
        dest="settings",
        help="any setting; may be repeated",
    )


def from_arguments(args: argparse.Namespace, default_recipe: str | None = None) -> Config:
    """The configuration that the options of `add_arguments` ask for."""
    recipe = args.recipe or (default_recipe if args.config is None else None)
    shortcuts = Shortcuts(
        method=args.method,
        corruption=args.corruption,
        steps=args.steps,
        seed=args.seed,
        model=args.model,
        data=args.data,
    )
    return resolve(recipe, config_file=args.config, settings=args.settings, **shortcuts)
