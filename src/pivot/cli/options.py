"""The configuration options that several commands share, and their order of precedence."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from pivot import recipes
from pivot.config.loading import apply_settings, load_file, overlay
from pivot.config.methods import find_method
from pivot.config.sections import Config
from pivot.config.validation import validate


class Shortcuts(TypedDict, total=False):
    """Settings with an option of their own; None: not given."""

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
"""Option -> its setting."""


def resolve(
    recipe: str | None = None,
    *,
    config_file: str | Path | None = None,
    settings: Iterable[str] = (),
    **shortcuts: Unpack[Shortcuts],
) -> Config:
    """The validated configuration; recipe < file < shortcuts < settings, where later ones override earlier ones.

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
    """Add --recipe, --config, the shortcuts and --set, which `from_arguments` reads."""
    group = parser.add_argument_group(
        "configuration", "In order of precedence: later options override earlier ones."
    )
    group.add_argument(
        "--recipe", metavar="NAME", help=f"the recipe to start from: {', '.join(recipes.names())}"
    )
    group.add_argument(
        "--config", metavar="FILE", help="a YAML, TOML or JSON file, such as a run's config.json"
    )
    group.add_argument(
        "--method", metavar="NAME", help="a method from `pivot methods`, or package.module:name"
    )
    group.add_argument(
        "--corruption", metavar="KIND", help="image corruption: patch, grey, gaussian or module:function"
    )
    group.add_argument("--steps", type=int, metavar="N", help="number of training steps")
    group.add_argument("--seed", type=int, metavar="N", help="random seed; fixes the run on one machine")
    group.add_argument("--model", metavar="PATH", help="`tiny`, a model folder, or a hub id")
    group.add_argument("--data", metavar="NAME", help="training set: a known name, a hub id, or a file")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.FIELD=VALUE",
        dest="settings",
        help="set any field of the configuration; may be repeated",
    )


def from_arguments(args: argparse.Namespace, default_recipe: str | None = None) -> Config:
    """The configuration from the options of `add_arguments`."""
    recipe = args.recipe or (default_recipe if args.config is None else None)
    return resolve(recipe, config_file=args.config, settings=args.settings, **_shortcuts(args))


def over_run(stored: Config, args: argparse.Namespace) -> Config:
    """A run's configuration with the options that were given, to be compared with it."""
    asked = overlay(stored, {} if args.config is None else load_file(args.config))
    if args.recipe is not None:
        asked = replace(asked, recipe=args.recipe)
    # The method's name alone says nothing about its settings, which are the run's.
    same_method = args.method is not None and find_method(args.method).name == stored.method.name
    for name, value in _shortcuts(args).items():
        if value is not None and not (name == "method" and same_method):
            asked = overlay(asked, _nested(SHORTCUTS[name], value))
    asked = apply_settings(asked, args.settings)
    validate(asked)
    return asked


def _shortcuts(args: argparse.Namespace) -> Shortcuts:
    return Shortcuts(
        method=args.method,
        corruption=args.corruption,
        steps=args.steps,
        seed=args.seed,
        model=args.model,
        data=args.data,
    )


def add_model_settings(parser: argparse.ArgumentParser, graders: Sequence[str] = ()) -> None:
    """Add the options that `evaluate.target.GivenOptions` holds; without graders there is no --grader."""
    group = parser.add_argument_group(
        "model settings", "Default: those of the run that trained the model; for other models see --recipe."
    )
    group.add_argument(
        "--recipe", metavar="NAME",
        help=f"settings for models that no run trained: {', '.join(recipes.names())} (default: those of the runs given "
        "beside them if these agree, else the paper's)",
    )  # fmt: skip
    if graders:
        group.add_argument("--grader", choices=graders, help="the verifier, or PAPO's grader")
    group.add_argument("--max-tokens", type=int, metavar="N", help="longest response, in tokens")
    group.add_argument("--min-pixels", type=int, metavar="N", help="smallest image area after resizing")
    group.add_argument("--max-pixels", type=int, metavar="N", help="largest image area after resizing")
    group.add_argument("--dtype", choices=("float32", "bfloat16"), help="dtype of the weights")
