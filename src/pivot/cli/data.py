"""`pivot data NAME [--path FILE] [--json]`: the rows of a data set as training and evaluation use them."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.table import Table
from rich.text import Text

from pivot.console import Console
from pivot.data import CUSTOM, TRAINING_SETS, DataSet, DataSpec, SkippedRow, images, load, template
from pivot.evaluate import benchmarks
from pivot.terminal import printable
from pivot.types import ImageSource, Prompt

SHOWN = 20
"""Rows in the table unless --limit is larger; --json prints all rows."""
_CELL = 300


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = [*dict.fromkeys((*TRAINING_SETS, *benchmarks.BENCHMARKS)), CUSTOM]
    parser.add_argument("name", metavar="NAME", help=f"{', '.join(names)}; or an owner/name of the hub")
    parser.add_argument(
        "--path", help="a local parquet, JSONL, JSON or Arrow file, or a folder, instead of the hub"
    )
    parser.add_argument("--split", help="which split (default: the set's usual one)")
    parser.add_argument("--config", help="the configuration of a hub set that has several")
    parser.add_argument("--revision", help="the hub revision: a commit, branch or tag")
    parser.add_argument("--limit", type=int, help="read at most this many rows")
    parser.add_argument("--json", action="store_true", help="one JSON line per row instead of a table")
    parser.add_argument("--papo-eval", action="store_true", help="take a benchmark from the PAPO-Eval bundle")
    parser.add_argument(
        "--strict", action="store_true", help="refuse a set whose number of rows differs from the known one"
    )
    parser.add_argument(
        "--bad-rows", choices=("skip", "refuse"), default="skip", help="skip bad rows or refuse the set"
    )
    parser.add_argument(
        "--check-images", choices=("quick", "full"), default="quick", help="full decodes every image"
    )
    parser.add_argument(
        "--allow-missing-images", action="store_true", help="keep rows whose image is missing, as text"
    )
    parser.add_argument(
        "--absolute-paths", action="store_true", help="allow rows to name images anywhere on this machine"
    )
    parser.add_argument(
        "--point-overlay", action="store_true", help="InterGPS: use the diagram with points drawn over it"
    )
    for column in ("image", "problem", "answer", "id", "category"):
        parser.add_argument(f"--{column}-column", metavar="NAME", help=f"the column with the {column}")


def run(args: argparse.Namespace) -> int:
    data = _load(args)
    for warning in data.warnings:
        print(f"pivot data: {printable(warning)}", file=sys.stderr)
    if args.json:
        for row in data.rows:
            print(printable(json.dumps(describe(row), ensure_ascii=False)))
    else:
        _print_table(data, SHOWN if args.limit is None else args.limit)
    return 0


def _load(args: argparse.Namespace) -> DataSet:
    """Training sets default to their training split, benchmarks to their evaluation split."""
    fields = DataSpec.__dataclass_fields__.keys()
    spec = DataSpec(**{name: value for name, value in vars(args).items() if name in fields})
    is_training = args.name in TRAINING_SETS and not args.papo_eval
    if is_training and not args.strict:
        return load(spec)
    return benchmarks.load(spec, strict=args.strict, from_papo_eval=args.papo_eval)


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
    assert isinstance(source, images.ReadableImage)  # Data sets have no other kind.
    return list(images.check(source))


def whole_text(prompt: Prompt) -> str:
    """Everything the model reads, in the chat format of the Qwen-VL family; an image is one `<|image_pad|>`."""
    turn = "".join(
        segment if isinstance(segment, str) else "<|vision_start|><|image_pad|><|vision_end|>"
        for segment in template.segments(prompt)
    )
    system = f"<|im_start|>system\n{template.SYSTEM}<|im_end|>\n"
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
