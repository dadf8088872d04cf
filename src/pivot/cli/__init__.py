"""`pivot COMMAND`: what a person types.

A command is a module with `add_arguments(parser)` and `run(args) -> int`. Modules are imported only when
their command is asked for, so that `pivot --help` and `pivot grade` don't wait for torch.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from pivot import __version__
from pivot.errors import UserError

COMMANDS = {
    "train": "train a model with PIVOT or any method it is compared with",
    "eval": "accuracy@k of one or several models on benchmarks",
    "report": "one HTML page and figures from a run's folder",
    "compare": "curves and tables of several runs",
    "sweep": "many runs from one plan: arms x seeds, tables with intervals and verdicts",
    "attention": "attention of responses to image tokens, layer by layer",
    "buffer": "what is in a run's experience buffer",
    "grade": "grade JSON lines of responses and answers from standard input",
    "data": "the rows of a data set as they will be used",
    "methods": "what each method turns on",
    "benchmarks": "the benchmarks and training sets that are known",
    "doctor": "what this machine has, and whether a recipe fits it",
    "pretrain": "make the tiny starting checkpoint from nothing",
}
"""Command -> one line of help; the module is `pivot.cli.COMMAND`."""


def main(argv: list[str] | None = None) -> int:
    """Parse, run, and turn a user's mistake into one sentence on standard error and exit code 2."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    argv = sys.argv[1:] if argv is None else argv
    parser = _parser(argv)
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    try:
        return importlib.import_module(f"pivot.cli.{args.command}").run(args)
    except UserError as mistake:
        print(f"pivot {args.command}: {mistake}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"pivot {args.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of a pipe went away (`pivot ... | head`): that is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser(argv: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pivot", description="Visually grounded RLVR for VLMs.")
    parser.add_argument("--version", action="version", version=f"pivot {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    asked = next((word for word in argv if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == asked:
            importlib.import_module(f"pivot.cli.{name}").add_arguments(command)
    return parser
