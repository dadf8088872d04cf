"""The options that several commands share; `configuring` says what they mean. Imports nothing heavy."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence

from pivot.errors import UserError
from pivot.setting_names import recipe_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --recipe, --config, the shortcuts and --set, which `configuring.from_arguments` reads."""
    group = parser.add_argument_group(
        "configuration", "In order of precedence: later options override earlier ones."
    )
    group.add_argument(
        "--recipe",
        metavar="NAME",
        help=f"the recipe to start from: {', '.join(recipe_names())} (default: tiny for a tiny model, else default)",
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


def add_data_settings(parser: argparse._ActionsContainer, more: str = "") -> None:
    """Add --set, which `configuring.data_settings` reads: the settings of `data` that `pivot train` has."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="data.FIELD=VALUE",
        dest="settings",
        help=f"how data is read, such as data.image_root=DIR or data.answer_column=truth{more}; may be repeated",
    )


def add_model_settings(parser: argparse.ArgumentParser, graders: Sequence[str] = ()) -> None:
    """Add the options that `evaluate.target.GivenOptions` holds; without graders there is no --grader."""
    group = parser.add_argument_group(
        "model settings", "Default: those of the run that trained the model; for other models see --recipe."
    )
    group.add_argument(
        "--recipe", metavar="NAME",
        help=f"settings for models that no run trained: {', '.join(recipe_names())} (default: those of the runs given "
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


def check_numbers(args: argparse.Namespace, counts: Iterable[str] = ("samples", "limit")) -> None:
    """Check the counts, the numbers of `add_model_settings` and the temperature; None: not given."""
    for name in (*counts, "max_tokens", "min_pixels", "max_pixels"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} is {value}; it must be at least 1.")
    if not 0 <= args.temperature < math.inf:
        raise UserError(f"--temperature is {args.temperature:g}; it must be a number of at least 0.")
