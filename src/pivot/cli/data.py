"""`pivot data NAME [--set data.FIELD=VALUE] [--json]`: the rows of a data set as training and evaluation use them."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

from rich.table import Table
from rich.text import Text

from pivot.cli.options import add_data_settings, data_settings
from pivot.config import DataConfig
from pivot.config.datasets import PROCEDURAL, data_spec, is_procedural, load_set
from pivot.config.schema import hints
from pivot.console import Console
from pivot.data import TRAINING_SETS, DataSet, SkippedRow, images, template
from pivot.evaluation import benchmarks
from pivot.terminal import printable
from pivot.types import ImageSource, Prompt

SHOWN = 20
"""Rows in the table unless --limit is larger; --json prints all rows."""
_CELL = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = [PROCEDURAL, *dict.fromkeys((*TRAINING_SETS, *benchmarks.BENCHMARKS))]
    parser.add_argument(
        "name", metavar="NAME", help=f"a file, a folder, an owner/name of the hub, or {', '.join(names)}"
    )
    add_data_settings(parser)
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


def run(args: argparse.Namespace) -> int:
    settings = _settings(args)
    data = _load(args, settings)
    for warning in data.warnings:
        print(f"pivot data: {printable(warning)}", file=sys.stderr)
    if args.json:
        for row in data.rows:
            print(printable(json.dumps(describe(row), ensure_ascii=False)))
    else:
        _print_table(data, SHOWN if args.limit is None else args.limit)
        if is_training(args) and data.prompts and args.limit is None:
            print(printable(_training_use(args.name, data, settings)))
    return 0


def _settings(args: argparse.Namespace) -> DataConfig:
    """The settings of `data`: --set, and the options that are short for one."""
    given = {name: value for name, value in vars(args).items() if name in hints(DataConfig)}
    return replace(data_settings(args), **{name: value for name, value in given.items() if value is not None})


def is_training(args: argparse.Namespace) -> bool:
    """Whether the rows are those that `pivot train` would read: not a benchmark's, nor another split's."""
    return args.name not in benchmarks.BENCHMARKS or (args.name in TRAINING_SETS and not args.papo_eval)


def _load(args: argparse.Namespace, settings: DataConfig) -> DataSet:
    """Training sets default to their training split, benchmarks to their evaluation split."""
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


def describe(row: Prompt | SkippedRow) -> dict[str, Any]:
    """A row as one JSON object: `id`, `prompt`, `images`, `answer`, `category`, `skipped`."""
    prompt = row if isinstance(row, Prompt) else row.prompt
    sizes = [_size(source) for source in row.images] if isinstance(row, Prompt) else []
    return {
        "id": row.id,
        "prompt": None if prompt is None else whole_text(prompt),
        "images": {"number": len(sizes), "sizes": sizes},
        "answer": None if prompt is None else prompt.answer,
        "category": None if prompt is None else prompt.task,
        "skipped": None if isinstance(row, Prompt) else row.reason,
    }


def _size(source: ImageSource) -> list[int]:
    return list(images.check(source) if isinstance(source, images.ReadableImage) else source.open().size)


def whole_text(prompt: Prompt) -> str:
    """Everything the model reads, in the chat format of the Qwen-VL family; an image is one `<|image_pad|>`."""
    turn = "".join(
        segment if isinstance(segment, str) else "<|vision_start|><|image_pad|><|vision_end|>"
        for segment in template.segments(prompt)
    )
    system = f"<|im_start|>system\n{prompt.system or template.SYSTEM}<|im_end|>\n"
    return f"{system}<|im_start|>user\n{turn}<|im_end|>\n<|im_start|>assistant\n"


def _print_table(data: DataSet, shown: int) -> None:
    console = Console()
    table = Table(title=Text(printable(f"{data.name}, {data.split}")), show_lines=True)
    for heading in ("id", "question", "images", "answer", "category", "skipped"):
        table.add_column(heading, overflow="fold")
    for row in data.rows[:shown]:
        table.add_row(*(Text(printable(cell)) for cell in _cells(row)))
    console.print(table)
    example = next((row for row in data.rows if isinstance(row, Prompt)), None)
    if example is not None:
        console.print("The complete text that the model reads, for the first row:", style="bold")
        console.print(Text(printable(whole_text(example))), soft_wrap=True)
    if len(data.rows) > shown:
        console.print(f"{shown} of {len(data.rows):,} rows are shown; --limit N shows N, --json shows all.")
    if data.recognised:
        console.print(Text(printable(f"Recognised as {data.recognised}.")))
    console.print(Text(printable(data.summary())))


def _cells(row: Prompt | SkippedRow) -> tuple[str, ...]:
    known = describe(row)
    prompt = row if isinstance(row, Prompt) else row.prompt
    question = "" if prompt is None else prompt.question
    sizes = ", ".join(f"{width} x {height}" for width, height in known["images"]["sizes"])
    cells = (row.id, question, sizes or "none", known["answer"], known["category"], known["skipped"])
    return tuple(_short(cell or "") for cell in cells)


def _short(text: str) -> str:
    return text if len(text) <= _CELL else f"{text[:_CELL]}... ({len(text):,} characters)"
