"""The configuration options that several commands share, and their order of precedence."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

from pivot import recipes
from pivot.config.loading import apply_settings, load_file, overlay
from pivot.config.methods import find_method
from pivot.config.sections import Config, DataConfig
from pivot.config.validation import problems, validate
from pivot.errors import UserError


class Shortcuts(TypedDict, total=False):
    """Settings with an option of their own; None: not given."""

    plugins: list[str] | None
    method: str | None
    corruption: str | None
    steps: int | None
    seed: int | None
    model: str | None
    data: str | None
    sampler: str | None


SHORTCUTS = {
    "method": "method",
    "corruption": "corruption.kind",
    "steps": "train.steps",
    "seed": "train.seed",
    "model": "model.path",
    "data": "data.train",
    "sampler": "sampling.engine",
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
    # First, and besides those of the file: they may register the method that another option names.
    plugins = [*config.plugins, *(shortcuts.pop("plugins", None) or ())]
    config = overlay(config, {"plugins": list(dict.fromkeys(plugins))})
    given = [f"{SHORTCUTS[name]}={value}" for name, value in shortcuts.items() if value is not None]
    config = apply_settings(config, [*given, *settings])
    validate(config)
    return config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --recipe, --config, the shortcuts and --set, which `from_arguments` reads."""
    group = parser.add_argument_group(
        "configuration", "In order of precedence: later options override earlier ones."
    )
    group.add_argument(
        "--recipe",
        metavar="NAME",
        help=f"the recipe to start from: {', '.join(recipes.names())} (default: tiny for a tiny model, else default)",
    )
    group.add_argument(
        "--config", metavar="FILE", help="a YAML, TOML or JSON file, such as a run's config.json"
    )
    add_plugins(group)
    group.add_argument(
        "--method",
        metavar="NAME",
        help="a method from `pivot methods`, NAME+MODULE (gspo+pivot), or your FILE.py:NAME or MODULE:NAME",
    )
    group.add_argument(
        "--corruption", metavar="KIND",
        help="image corruption: patch, grey, gaussian, or your FILE.py:NAME or MODULE:NAME",
    )  # fmt: skip
    group.add_argument("--steps", type=int, metavar="N", help="number of training steps")
    group.add_argument("--seed", type=int, metavar="N", help="random seed; fixes the run on one machine")
    group.add_argument("--model", metavar="PATH", help="`tiny`, a model folder, or a hub id")
    group.add_argument(
        "--data",
        metavar="NAME",
        help="training set: a known name, a hub id, a file or a folder; or A,B for several",
    )
    group.add_argument(
        "--sampler",
        choices=("auto", "native", "vllm"),
        help="what samples responses: our decoder, or vLLM in this process (docs/gpu.md)",
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.FIELD=VALUE",
        dest="settings",
        help="set any field of the configuration; may be repeated",
    )


def add_plugins(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add --plugin."""
    parser.add_argument(
        "--plugin", action="append", metavar="FILE.py|MODULE", dest="plugins",
        help="import this first: it registers model families, engines, trackers or methods; may be repeated",
    )  # fmt: skip


def from_arguments(args: argparse.Namespace, *, needs_data: bool = False) -> Config:
    """The configuration from the options of `add_arguments`; without a recipe or file, the recipe follows the model."""
    recipe = args.recipe
    if recipe is None and args.config is None:
        model = _last(args.settings, "model.path") or args.model
        recipe = recipes.for_model(model)
        has_data = args.data or _last(args.settings, "data.train")
        if recipe == recipes.REAL_RECIPE and needs_data and not has_data:
            raise UserError(
                f"--model {model} needs a training set: name it with --data, such as geometry3k or your own file, or "
                "choose a --recipe."
            )
    shortcuts = _shortcuts(args)
    shortcuts["plugins"] = args.plugins
    return resolve(recipe, config_file=args.config, settings=args.settings, **shortcuts)


def over_run(stored: Config, args: argparse.Namespace) -> Config:
    """A run's configuration with the options that were given, to be compared with it."""
    asked = overlay(stored, {} if args.config is None else load_file(args.config))
    if args.recipe is not None:
        asked = replace(asked, recipe=args.recipe)
    shortcuts = _shortcuts(args)
    if args.method is not None and find_method(args.method).name == stored.method.name:
        shortcuts["method"] = None  # its name alone says nothing about its settings, which are the run's
    given = [f"{SHORTCUTS[name]}={value}" for name, value in shortcuts.items() if value is not None]
    asked = apply_settings(asked, [*given, *args.settings])
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
        sampler=args.sampler,
    )


def _last(settings: Sequence[str], path: str) -> str | None:
    """The value of the last `path=value`."""
    found = [value.strip() for name, _, value in (s.partition("=") for s in settings) if name.strip() == path]
    return found[-1] if found else None


def add_data_settings(parser: argparse._ActionsContainer) -> None:
    """Add --set, which `data_settings` reads: the settings of `data` that `pivot train` has."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="data.FIELD=VALUE",
        dest="settings",
        help="how data is read, such as data.image_root=DIR or data.answer_column=truth; may be repeated",
    )


def data_settings(args: argparse.Namespace) -> DataConfig:
    """The settings of `data` from --set."""
    for setting in args.settings:
        if not setting.strip().startswith("data."):
            raise UserError(
                f"--set takes settings of `data` here, such as data.image_root=DIR, not {setting!r}."
            )
        if setting.strip().startswith(("data.train=", "data.weights=", "data.holdout=")):
            raise UserError(f"{setting.partition('=')[0]} is for training; it has no effect here.")
    config = apply_settings(Config(), args.settings)
    wrong = next((sentence for sentence in problems(config) if sentence.startswith("data.")), None)
    if wrong is not None:
        raise UserError(wrong)
    return config.data


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
        group.add_argument(
            "--answer",
            metavar="FORM",
            help="where responses answer: boxed, tag or a regular expression with one group",
        )
    group.add_argument("--system", metavar="TEXT", help="the system message; empty: the chat template's own")
    group.add_argument(
        "--template", metavar="JINJA", help="the user's turn: Jinja text with {{ question }}, or a file"
    )
    group.add_argument("--max-tokens", type=int, metavar="N", help="longest response, in tokens")
    group.add_argument("--min-pixels", type=int, metavar="N", help="smallest image area after resizing")
    group.add_argument("--max-pixels", type=int, metavar="N", help="largest image area after resizing")
    group.add_argument("--dtype", choices=("float32", "bfloat16"), help="dtype of the weights")


def check_temperature(value: float) -> None:
    """A sampling temperature from the command line."""
    if not 0 <= value < math.inf:
        raise UserError(f"--temperature is {value:g}; it must be a number of at least 0.")
