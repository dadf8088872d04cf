"""The command line: `pivot COMMAND`.

A command is a module with `add_arguments(parser)` and `run(args) -> int`. Only the module of the given command is
imported, so that `pivot --help` and `pivot grade` do not wait for torch.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from functools import partial

from pivot import __version__
from pivot.errors import UserError
from pivot.plugins import import_plugins
from pivot.terminal import printable, protect_output

COMMANDS = {
    "train": "train a model with PIVOT or one of the methods it is compared with",
    "eval": "measure accuracy@k of models on benchmarks",
    "report": "write an HTML page and figures for a run",
    "compare": "write one page with curves and tables of several runs",
    "sweep": "train and evaluate the runs of a plan: arms, seeds, one table",
    "attention": "plot the attention of responses to image tokens, layer by layer",
    "buffer": "show the experience buffer of a run",
    "grade": "grade responses against answers, from JSON lines on standard input",
    "data": "show the rows of a data set as they are used",
    "methods": "list the methods and their settings",
    "benchmarks": "list the benchmarks and training sets",
    "doctor": "check this machine, and whether a recipe fits it",
    "pretrain": "train the tiny starting checkpoint from scratch",
}
"""Command -> its line of help; the module is `pivot.cli.COMMAND`."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: list[str] | None = None) -> int:
    """Run a command; a UserError becomes one sentence on standard error and exit code 2."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    protect_output()
    argv = sys.argv[1:] if argv is None else argv
    parser = _parser(argv)
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    try:
        import_plugins(vars(args).get("plugins") or ())
        code = importlib.import_module(f"pivot.cli.{args.command}").run(args)
        sys.stdout.flush()
        return code
    except UserError as mistake:
        print(f"pivot {args.command}: {printable(str(mistake))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"pivot {args.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of a pipe has ended (`pivot ... | head`), which is not an error.
        _discard_output()
        return 0
    except OSError as refusal:
        if refusal.errno not in _FULL or refusal.filename is not None:
            raise
        _discard_output()
        print(
            f"pivot {args.command}: cannot write the output: {os.strerror(refusal.errno).lower()}",
            file=sys.stderr,
        )
        return 1


def _discard_output() -> None:
    """Send what is still buffered nowhere; Python would fail on it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(argv: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pivot",
        description="Visually grounded reinforcement learning for vision-language models.",
        epilog="`pivot COMMAND --help` lists the options of a command.",
        formatter_class=partial(argparse.HelpFormatter, max_help_position=18),
    )
    parser.add_argument("--version", action="version", version=f"pivot {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    asked = next((word for word in argv if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == asked:
            importlib.import_module(f"pivot.cli.{name}").add_arguments(command)
    return parser
