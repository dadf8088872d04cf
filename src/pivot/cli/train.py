"""`pivot train`: from a recipe to a trained model, a table and a report."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pivot.cli import cluster, options
from pivot.config import describe
from pivot.errors import UserError

IMPORTS = ("pivot.runs.run",)
"""What `run` needs, imported while Ctrl-C has nothing to save."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser)
    parser.add_argument(
        "--reward",
        metavar="MODULE:FUNCTION",
        help="a reward function with TRL's calling convention (reward.function)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the run's folder (default: runs/RECIPE-METHOD-SEED)"
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="continue exactly where a run stopped; --steps N extends it",
    )
    parser.add_argument(
        "--continue", dest="keep_going", action="store_true",
        help="if --out already holds a run: resume it, or show it if it is finished",
    )  # fmt: skip
    cluster.add_arguments(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress display")
    parser.add_argument("--no-report", action="store_true", help="write no report.html at the end")
    parser.add_argument(
        "--help-config", action="store_true", help="print every setting with its meaning and exit"
    )


def run(args: argparse.Namespace) -> int:
    if args.help_config:
        print(describe())
        return 0
    from pivot.runs import run as run_module
    from pivot.runs.folder import has_progress
    from pivot.runs.stopping import STOPPED

    if args.reward is not None:
        args.settings.insert(0, f"reward.function={args.reward}")
    if args.resume is not None:
        if args.out:
            raise UserError("--resume continues in the run's own folder; leave out --out")
        out, resuming = args.resume, True
    else:
        config = options.from_arguments(args, default_recipe="tiny")
        out = args.out or Path("runs") / f"{config.recipe}-{config.method.name}-{config.train.seed}"
        resuming = args.keep_going and has_progress(out)
    uses_verl = cluster.is_asked(args, out if resuming else None)
    if resuming:
        _agree(out, args)
    if resuming and _status(out) == "finished":
        print(f"{out} is finished.")
        _show_end(out, report=not args.no_report)
        return 0
    if uses_verl:
        result = cluster.run(args, out, None if resuming else config)
        if result is None:
            return 0
    elif resuming:
        result = run_module.resume(out, quiet=args.quiet)
    else:
        result = run_module.train(config, out, quiet=args.quiet)
    if not result.finished:
        print(f"stopped after step {result.steps}; continue with: pivot train --resume {out}")
        return STOPPED
    _show_end(out, report=not args.no_report)
    return 0


def _agree(out: Path, args: argparse.Namespace) -> None:
    """Refuse options that contradict the run that is resumed; another number of steps extends it."""
    from pivot.runs import extension

    stored = extension.stored_config(out)
    asked = options.over_run(stored, args)
    extension.check_agrees(out, stored, asked)
    if asked.train.steps != stored.train.steps:
        extension.extend(out, asked.train.steps)
        print(f"{out}: {asked.train.steps} steps instead of {stored.train.steps}")


def _status(out: Path) -> str | None:
    path = out / "run.json"
    return json.loads(path.read_bytes()).get("status") if path.exists() else None


def _show_end(out: Path, *, report: bool) -> None:
    """The before/after table, the report, and where the model is."""
    from rich.console import Console

    from pivot.durable import finished_checkpoints
    from pivot.runs.evaluation import before_after_table

    console = Console(file=sys.stdout)
    table = before_after_table(out)
    if table is not None:
        console.print(table)
    checkpoints = finished_checkpoints(out)
    if checkpoints:
        print(f"model:  {checkpoints[0][1] / 'model'}")
    if report:
        from pivot.report import write_report

        print(f"report: {write_report(out, figures=False)}")
