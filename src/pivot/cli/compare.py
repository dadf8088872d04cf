"""`pivot compare RUN...`: curves and tables of several runs on one page."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, finished or not")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("comparison"),
        metavar="DIR",
        help="output folder (default: comparison)",
    )
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="method, label or folder to compare with (default: dapo, else grpo, else the first)",
    )


def run(args: argparse.Namespace) -> int:
    from pivot.report import write_comparison

    print(write_comparison(args.runs, args.out, args.baseline))
    return 0
