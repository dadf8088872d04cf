"""What the options of `options` mean: a configuration, and their order of precedence."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from pivot import recipes
from pivot.cli.early import last_value
from pivot.config import Config, DataConfig, apply_settings, load_file, overlay, validate
from pivot.config.methods import find_method
from pivot.config.validation import problems
from pivot.errors import UserError

SHORTCUTS = {
    "method": "method",
    "corruption": "corruption.kind",
    "steps": "train.steps",
    "seed": "train.seed",
    "model": "model.path",
    "data": "data.train",
    "sampler": "sampling.engine",
}
"""Option, with its value None if it is not given -> its setting."""


def resolve(
    recipe: str | None = None,
    *,
    config_file: str | Path | None = None,
    settings: Iterable[str] = (),
    plugins: Iterable[str] | None = None,
    **shortcuts: str | int | None,
) -> Config:
    """The validated configuration; recipe < file < shortcuts < settings, where later ones override earlier ones.

    Example:
        resolve("geo3k-3b", method="dapo", settings=["train.lr=2e-6"])
    """
    mapping = {} if config_file is None else load_file(config_file)
    config = recipes.from_mapping(mapping, recipe)
    # First, and besides those of the file: they may register the method that another option names.
    named = dict.fromkeys((*config.plugins, *(plugins or ())))
    config = overlay(config, {"plugins": list(named)})
    config = apply_settings(config, [*_given(shortcuts), *settings])
    validate(config)
    return config


def from_arguments(args: argparse.Namespace, *, needs_data: bool = False) -> Config:
    """The configuration from the options of `add_arguments`; without a recipe or file, the recipe follows the model."""
    recipe = args.recipe
    if recipe is None and args.config is None:
        model = last_value(args.settings, "model.path") or args.model
        recipe = recipes.for_model(model)
        has_data = args.data or last_value(args.settings, "data.train")
        if recipe == recipes.REAL_RECIPE and needs_data and not has_data:
            raise UserError(
                f"--model {model} needs a training set: name it with --data, such as geometry3k or your own file, or "
                "choose a --recipe."
            )
    shortcuts = {name: vars(args)[name] for name in SHORTCUTS}
    return resolve(recipe, config_file=args.config, settings=args.settings, plugins=args.plugins, **shortcuts)


def over_run(stored: Config, args: argparse.Namespace) -> Config:
    """A run's configuration with the options that were given, to be compared with it."""
    asked = overlay(stored, {} if args.config is None else load_file(args.config))
    if args.recipe is not None:
        asked = replace(asked, recipe=args.recipe)
    shortcuts = {name: vars(args)[name] for name in SHORTCUTS}
    if args.method is not None and find_method(args.method).name == stored.method.name:
        shortcuts["method"] = None  # its name alone says nothing about its settings, which are the run's
    asked = apply_settings(asked, [*_given(shortcuts), *args.settings])
    validate(asked)
    return asked


def _given(shortcuts: Mapping[str, str | int | None]) -> list[str]:
    return [f"{SHORTCUTS[name]}={value}" for name, value in shortcuts.items() if value is not None]


def data_settings(args: argparse.Namespace) -> DataConfig:
    """The settings of `data` from --set."""
    return section_settings(args, "data").data


def section_settings(args: argparse.Namespace, *sections: str) -> Config:
    """The defaults with the settings of these sections, the only ones that --set may name."""
    prefixes = tuple(f"{section}." for section in sections)
    named = "` and `".join(sections)
    for setting in args.settings:
        if not setting.strip().startswith(prefixes):
            raise UserError(
                f"--set takes settings of `{named}` here, such as data.image_root=DIR, not {setting!r}."
            )
        if setting.strip().startswith(("data.train=", "data.weights=", "data.holdout=")):
            raise UserError(f"{setting.partition('=')[0]} is for training; it has no effect here.")
    config = apply_settings(Config(), args.settings)
    wrong = next(
        (sentence for sentence in problems(config) if sentence.startswith((*prefixes, "the prompt"))), None
    )
    if wrong is not None:
        raise UserError(wrong)
    return config
