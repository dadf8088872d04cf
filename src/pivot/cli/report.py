"""`pivot report RUN...`: a page and its figures for each run."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, finished or not")
    parser.add_argument("--no-figures", action="store_true", help="write only the page, no SVG and PDF files")


def run(args: argparse.Namespace) -> int:
    from pivot.report import write_report

    for folder in args.runs:
        print(write_report(folder, figures=not args.no_figures))
    return 0
