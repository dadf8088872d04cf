"""`pivot eval --model A [--model B ...] --benchmarks geometry3k,tiny-test`: accuracy@k of models; resumable."""

from __future__ import annotations

import argparse
from pathlib import Path

from pivot.cli import early
from pivot.cli.options import add_data_settings, add_model_settings, add_plugins, check_numbers
from pivot.errors import UserError
from pivot.rewards.verifier import GRADERS

IMPORTS = ("pivot.cli.evaluating",)
"""What `run` needs."""
NO_SET = "name what to evaluate on: --benchmarks A,B from `pivot benchmarks`, or --data FILE."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", action="append", required=True, metavar="NAME",
        help="`tiny`, a run's folder or one of its checkpoints, a Hugging Face folder, or a hub id; repeat it to "
        "compare several models",
    )  # fmt: skip
    parser.add_argument(
        "--benchmarks", default="", metavar="A,B",
        help="names and groups from `pivot benchmarks`, tiny-test, tiny-ood, tiny-validation, a data file, a hub id, "
        "or your FILE.py:NAME or MODULE:NAME",
    )  # fmt: skip
    parser.add_argument(
        "--data", action="append", default=[], metavar="NAME",
        help="a set of your own, as `pivot train --data` takes it: a file, a folder or a hub id; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--samples", type=int, default=8, metavar="K", help="responses per prompt (default: 8)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="use only the first N rows of each set")
    parser.add_argument(
        "--blank",
        action="store_true",
        help="evaluate a second time with blank images, to measure the language prior",
    )
    _add_sampling(parser)
    add_model_settings(parser, graders=tuple(GRADERS))
    _add_data_and_output(parser)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument(
        "--sampler", choices=("auto", "native", "vllm"), default="auto",
        help="what draws the samples: our decoder, vLLM, or (default) vLLM on a GPU where it is installed",
    )  # fmt: skip
    # Its name in older versions, which sweeps and scripts may use.
    sampling.add_argument(
        "--engine",
        dest="sampler",
        choices=("embedded", "vllm"),
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )
    sampling.add_argument(
        "--temperature", type=float, default=1.0, help="sampling temperature (default: 1.0)"
    )
    sampling.add_argument("--seed", type=int, default=0, help="seed of the samples (default: 0)")
    sampling.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")


def _add_data_and_output(parser: argparse.ArgumentParser) -> None:
    data = parser.add_argument_group("data and output")
    add_data_settings(data)
    data.add_argument("--split", metavar="NAME", help="split to evaluate on (default: a set's usual one)")
    data.add_argument(
        "--path",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="read this set from a local file or folder",
    )
    data.add_argument(
        "--papo-eval", action="store_true", help="read the benchmarks from the PAPO-Eval bundle"
    )
    data.add_argument(
        "--strict", action="store_true", help="stop if a benchmark does not have its expected number of rows"
    )
    data.add_argument(
        "--out", type=Path, metavar="DIR", help="output folder (default: RUN/eval for a run, else eval/MODEL)"
    )
    data.add_argument("--quiet", action="store_true", help="show no progress bar")
    add_plugins(data)


def check(args: argparse.Namespace) -> None:
    """Check names, paths and numbers before anything heavy is imported."""
    check_numbers(args)
    early.check_evaluation(args, args.model)
    if not args.benchmarks.strip(", ") and not args.data:
        raise UserError(NO_SET)
    for name in (*args.benchmarks.split(","), *args.data):
        early.check_data(name.strip(), None)


def run(args: argparse.Namespace) -> int:
    from pivot.cli import evaluating

    return evaluating.run(args)
