"""The command line: `pivot COMMAND`.

A command is a module with `add_arguments(parser)` and `run(args) -> int`; a `check(args)` comes first. Only the module
of the given command is imported, and torch is not needed for the options and the check of those that train, evaluate or
read data: a mistyped name is reported at once (`tests/cli/test_early.py`).
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import ModuleType

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
    "credit": "show which tokens of a response matter, by every method's measure",
    "push": "upload the model of a run, with its card, to the Hugging Face hub",
    "buffer": "show the experience buffer of a run",
    "grade": "grade responses against answers, from JSON lines on standard input",
    "data": "show the rows of a data set as they are used",
    "methods": "list the methods and their settings",
    "benchmarks": "list the benchmarks and training sets",
    "doctor": "check this machine, and whether a recipe fits it",
    "pretrain": "train the tiny starting checkpoint from scratch",
}
"""Command -> its line of help; the module is `pivot.cli.COMMAND`."""
INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: list[str] | None = None) -> int:
    """Run a command; a UserError becomes one sentence on standard error and exit code 2."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    protect_output()
    argv = sys.argv[1:] if argv is None else argv
    with _ending_on_interrupt(_command(argv)):
        args = _parse(argv)
    if args.command is None:
        return 0
    try:
        with _ending_on_interrupt(args.command):
            module = _prepared(args)
        code = module.run(args)
        sys.stdout.flush()
        return code
    except UserError as mistake:
        print(f"pivot {args.command}: {printable(str(mistake))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"pivot {args.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
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


@contextmanager
def _ending_on_interrupt(command: str | None) -> Iterator[None]:
    """While modules are imported, Ctrl-C ends the process with one sentence: there is nothing to save yet.

    An exception would pass through whatever library is being imported, which may report it as an error of its own.
    """

    def end(*_: object) -> None:
        with suppress(OSError):
            os.write(2, f"{'pivot' if command is None else f'pivot {command}'}: interrupted\n".encode())
        os._exit(INTERRUPTED)

    handled = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if handled:
        signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _parse(argv: list[str]) -> argparse.Namespace:
    """The options of the given command, whose module is imported; without a command, prints the help."""
    parser, commands = _parser(argv)
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        # argparse would show the usage of `pivot` itself.
        (commands.get(args.command) or parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if args.command is None:
        parser.print_help()
        return args
    return args


def _prepared(args: argparse.Namespace) -> ModuleType:
    """The module of a command, after its check of names and paths, its plugins and, last, its heavy imports."""
    module = importlib.import_module(f"pivot.cli.{args.command}")
    if hasattr(module, "check"):
        module.check(args)
    import_plugins(vars(args).get("plugins") or ())
    for heavy in getattr(module, "IMPORTS", ()):
        importlib.import_module(heavy)
    return module


def _command(argv: list[str]) -> str | None:
    return next((word for word in argv if word in COMMANDS), None)


def _discard_output() -> None:
    """Send what is still buffered nowhere; Python would fail on it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(argv: list[str]) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser, and those of the commands by name; only that of the given command has its options."""
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
    return parser, commands.choices
