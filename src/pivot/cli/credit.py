"""`pivot credit --model M --image I --question Q`: which tokens of a response matter, by every method's measure."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from pivot.cli import early
from pivot.cli.options import add_data_settings, add_model_settings, add_plugins, check_numbers
from pivot.errors import UserError
from pivot.types import Prompt

IMPORTS = ("pivot.token_credit",)
SAMPLES = 4
LONGEST = 1_000_000
"""Bytes of a response's file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", required=True, metavar="NAME",
        help="`tiny`, a run's folder or one of its checkpoints, a Hugging Face folder, or a hub id",
    )  # fmt: skip
    asked = parser.add_argument_group("question", "An image and a question, or a row of a data set.")
    asked.add_argument(
        "--image", action="append", default=[], dest="images", metavar="FILE",
        help="an image; repeat it for several",
    )  # fmt: skip
    asked.add_argument("--question", metavar="TEXT", help="the question; <image> marks where an image is")
    asked.add_argument("--answer", metavar="TEXT", help="the right answer, to grade the responses")
    asked.add_argument(
        "--data", metavar="NAME",
        help="`tiny`, `tiny-SPLIT`, a benchmark or training set, a hub id, or a file",
    )  # fmt: skip
    asked.add_argument("--row", type=int, metavar="K", help="which row of the set, from 0 (default: 0)")
    asked.add_argument("--id", metavar="ID", help="the row with this id")
    asked.add_argument("--split", help="split of the data set (default: the set's usual one)")
    add_data_settings(asked)
    drawn = parser.add_argument_group("responses")
    drawn.add_argument(
        "--samples", type=int, metavar="N",
        help=f"responses to sample (default: {SAMPLES}, or 0 if a response is given)",
    )  # fmt: skip
    drawn.add_argument(
        "--response", action="append", default=[], dest="responses", type=Path, metavar="FILE",
        help="score the text of this file as a response; may be repeated",
    )  # fmt: skip
    drawn.add_argument("--temperature", type=float, default=1.0, help="sampling temperature (default: 1.0)")
    drawn.add_argument(
        "--seed", type=int, default=0, help="seed of the samples and of the corruption (default: 0)"
    )
    parser.add_argument(
        "--methods", default="", metavar="A,B",
        help="whose measures: pivot, vppo, papo, pepo, pgpo, entropy (default: all)",
    )  # fmt: skip
    add_model_settings(parser)
    add_plugins(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("credit.html"),
        metavar="FILE",
        help="the page (default: credit.html)",
    )


def check(args: argparse.Namespace) -> None:
    """Check names, paths and numbers before anything heavy is imported."""
    _check(args)
    early.check_evaluation(args, [args.model])
    early.check_data(args.data, None)


def run(args: argparse.Namespace) -> int:
    from pivot.evaluation.target import GivenOptions, leased_target
    from pivot.token_credit import CreditRequest, measure_prompt
    from pivot.token_measures import choose_methods

    methods = choose_methods([name.strip() for name in args.methods.split(",") if name.strip()])
    texts = tuple(_read(path) for path in args.responses)
    samples = args.samples if args.samples is not None else 0 if texts else SAMPLES
    prompt = _from_data(args) if args.data is not None else _from_options(args)
    options = GivenOptions(
        args.recipe,
        args.min_pixels,
        args.max_pixels,
        max_tokens=args.max_tokens,
        dtype=args.dtype,
        system=args.system,
        template=args.template,
    )
    request = CreditRequest(texts, samples, methods, args.temperature, args.seed, options)
    with leased_target(args.model) as target:
        found = measure_prompt(target, prompt, request)
    print(f"{args.model}: {found.facts['Settings']}")
    print(found.write(args.out))
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.samples is not None and args.samples < (0 if args.responses else 1):
        raise UserError(f"--samples is {args.samples}; it must be at least {0 if args.responses else 1}.")
    check_numbers(args, counts=())
    if args.out.is_dir():
        raise UserError(
            f"--out {args.out} is a folder; name the file of the page, such as {args.out / 'credit.html'}."
        )
    if args.row is not None and args.id is not None:
        raise UserError("--row and --id both choose a row; give one of them.")
    if args.data is None:
        given = {"--row": args.row, "--id": args.id, "--split": args.split, "--set": args.settings or None}
        for option, value in given.items():
            if value is not None:
                raise UserError(f"{option} is for a data set; name it with --data.")
    elif args.images or args.question is not None:
        raise UserError(
            "--data brings its own image and question; leave out --image and --question, or --data."
        )


def _from_options(args: argparse.Namespace) -> Prompt:
    from pivot.token_scores import make_prompt

    if not args.images:
        raise UserError(
            "there is no image; give one with --image FILE, or a row of a data set with --data NAME."
        )
    if not (args.question or "").strip():
        raise UserError("there is no question; give it with --question TEXT.")
    return replace(make_prompt(args.images, args.question), answer=args.answer or "")


def _from_data(args: argparse.Namespace) -> Prompt:
    """One row of a set; its answer unless another is given."""
    from pivot.cli.configuring import data_settings
    from pivot.data.formats import SkippedRow
    from pivot.evaluation.sets import SetOptions, read_set

    wanted = args.row or 0
    if wanted < 0:
        raise UserError(f"--row is {wanted}; rows are counted from 0.")
    limit = None if args.id is not None else wanted + 1
    rows = read_set(args.data, SetOptions({}, limit, split=args.split, data=data_settings(args))).rows
    if args.id is not None:
        rows = [row for row in rows if isinstance(row, Prompt) and row.id == args.id]
        wanted = 0
        if not rows:
            raise UserError(
                f"{args.data} has no usable row with the id {args.id!r}; `pivot data` lists them."
            )
    if wanted >= len(rows):
        raise UserError(f"--row is {wanted}, but {args.data} has {len(rows)} rows, counted from 0.")
    row = rows[wanted]
    if isinstance(row, SkippedRow):
        raise UserError(f"row {wanted} of {args.data} cannot be used: {row.reason}.")
    return row if args.answer is None else replace(row, answer=args.answer)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > LONGEST:
            raise UserError(f"--response {path} has over {LONGEST:,} bytes; give the text of one response.")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as unreadable:
        raise UserError(f"--response {path} is not UTF-8 text.") from unreadable
    except OSError as missing:
        raise UserError(
            f"--response {path} cannot be read: {(missing.strerror or str(missing)).lower()}."
        ) from missing
