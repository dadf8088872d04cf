"""`pivot data NAME [--set data.FIELD=VALUE] [--json]`: the rows of a data set as training and evaluation use them."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from pivot.cli import early
from pivot.cli.options import add_data_settings
from pivot.errors import UserError
from pivot.setting_names import split_setting
from pivot.terminal import printable

if TYPE_CHECKING:
    from pivot.config import Config, DataConfig
    from pivot.data import DataSet

SHOWN = 20
"""Rows in the table unless --limit is larger; --json prints all rows."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        metavar="NAME",
        help="a file, a folder, an owner/name of the hub, `tiny`, or a name from `pivot benchmarks`",
    )
    add_data_settings(parser, "; also prompt.system and prompt.template")
    parser.add_argument("--limit", type=int, help="read at most this many rows")
    parser.add_argument("--json", action="store_true", help="one JSON line per row instead of a table")
    parser.add_argument("--papo-eval", action="store_true", help="take a benchmark from the PAPO-Eval bundle")
    parser.add_argument(
        "--strict", action="store_true", help="refuse a set whose number of rows differs from the known one"
    )
    group = parser.add_argument_group("short for --set data.FIELD=VALUE")
    group.add_argument("--path", help="a local file or folder, instead of the hub")
    group.add_argument("--split", help="which split (default: the set's usual one)")
    group.add_argument("--config", help="the configuration of a hub set that has several")
    group.add_argument("--revision", help="the hub revision: a commit, branch or tag")
    group.add_argument("--bad-rows", choices=("skip", "refuse"), help="skip bad rows or refuse the set")
    group.add_argument("--check-images", choices=("quick", "full"), help="full decodes every image")
    for name, meaning in (
        ("allow-missing-images", "keep rows whose image is missing, as text"),
        ("allow-absolute-paths", "allow rows to name images anywhere on this machine"),
        ("point-overlay", "InterGPS: use the diagram with points drawn over it"),
    ):
        group.add_argument(f"--{name}", action="store_const", const=True, help=meaning)
    for column in ("image", "problem", "answer", "id", "category"):
        group.add_argument(f"--{column}-column", metavar="NAME", help=f"the column with the {column}")


def check(args: argparse.Namespace) -> None:
    """Check names and paths before anything heavy is imported."""
    if args.limit is not None and args.limit < 1:
        raise UserError(f"--limit is {args.limit}; it must be at least 1 (leave it out to read all rows).")
    early.check_settings(split_setting(one)[0] for one in args.settings)
    early.check_data(args.name, args.path or early.last_value(args.settings, "data.path"))


def run(args: argparse.Namespace) -> int:
    from pivot.cli.data_rows import describe, print_table
    from pivot.types import Prompt

    config = _settings(args)
    data, style = _load(args, config.data), config.prompt.style
    data = replace(
        data, rows=tuple(style.apply(row) if isinstance(row, Prompt) else row for row in data.rows)
    )
    for warning in data.warnings:
        print(f"pivot data: {printable(warning)}", file=sys.stderr)
    if args.json:
        for row in data.rows:
            print(printable(json.dumps(describe(row), ensure_ascii=False)))
    else:
        print_table(data, SHOWN if args.limit is None else args.limit)
        if is_training(args) and data.prompts and args.limit is None:
            print(printable(_training_use(args.name, data, config.data)))
    return 0


def _settings(args: argparse.Namespace) -> Config:
    """The settings of `data` and `prompt`: --set, and the options that are short for one."""
    from pivot.cli.configuring import section_settings
    from pivot.config import DataConfig
    from pivot.config.schema import hints

    config = section_settings(args, "data", "prompt")
    given = {name: value for name, value in vars(args).items() if name in hints(DataConfig)}
    shortcuts = {name: value for name, value in given.items() if value is not None}
    return replace(config, data=replace(config.data, **shortcuts))


def is_training(args: argparse.Namespace) -> bool:
    """Whether the rows are those that `pivot train` would read: not a benchmark's, nor another split's."""
    from pivot.data import TRAINING_SETS
    from pivot.evaluation import benchmarks

    return args.name not in benchmarks.BENCHMARKS or (args.name in TRAINING_SETS and not args.papo_eval)


def _load(args: argparse.Namespace, settings: DataConfig) -> DataSet:
    """Training sets default to their training split, benchmarks to their evaluation split."""
    from pivot.config.datasets import data_spec, is_procedural, load_set
    from pivot.data import TRAINING_SETS
    from pivot.evaluation import benchmarks

    limit = args.limit or settings.size
    if is_procedural(args.name) or (args.name in TRAINING_SETS and not args.papo_eval and not args.strict):
        return load_set(args.name, settings, settings.split, limit)
    spec = data_spec(args.name, settings, settings.split, limit)
    return benchmarks.load(spec, strict=args.strict, from_papo_eval=args.papo_eval)


def _training_use(name: str, data: DataSet, settings: DataConfig) -> str:
    """What `pivot train --data NAME` does with these rows."""
    from pivot import recipes
    from pivot.training.prompts import Prompts, has_validation, hold_out

    prompts = Prompts(data.name, {prompt.id: prompt for prompt in data.prompts})
    share = recipes.get(recipes.REAL_RECIPE).data.holdout
    if has_validation(name, settings):
        return f"`pivot train` uses {len(prompts):,} rows and validates on the split {settings.validation_split!r}."
    kept, held_out = hold_out(prompts, share, settings.validation_size)
    return (
        f"`pivot train` uses {len(kept):,} rows and holds out {len(held_out):,} for validation (data.holdout={share}), "
        "apart from prompts that are too long for the model."
    )
