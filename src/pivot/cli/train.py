"""`pivot train`: from a recipe to a trained model, a table and a report."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from pivot.cli import cluster, early, options
from pivot.errors import UserError
from pivot.models.naming import resolve_model
from pivot.plugins import check_file
from pivot.runs.folder import has_progress, read_status, require_run

if TYPE_CHECKING:
    from pivot.config import Config
    from pivot.runs.run import RunResult

IMPORTS = ("pivot.cli.configuring", "pivot.runs.run")
"""What `run` needs, imported while Ctrl-C has nothing to save."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser)
    parser.add_argument(
        "--reward",
        action="append",
        metavar="FUNCTION",
        help="a reward function: accuracy, format, FILE.py:NAME or MODULE:NAME with TRL's calling convention; "
        "may be repeated (reward.functions; weights: reward.weights)",
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
    parser.add_argument(
        "--accept-lost-history", action="store_true",
        help="resume even if rows of the run's metrics or rollouts are lost, repeated or changed",
    )  # fmt: skip
    parser.add_argument(
        "--accept-changed-config", action="store_true", help="resume even if the run's config.json was edited"
    )
    cluster.add_arguments(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress display")
    parser.add_argument("--no-report", action="store_true", help="write no report.html at the end")
    parser.add_argument(
        "--help-config", action="store_true", help="print every setting with its meaning and exit"
    )


def check(args: argparse.Namespace) -> None:
    """Check names and paths before anything heavy is imported."""
    early.check_configuration(args)
    for function in args.reward or ():
        check_file(function, "reward function")
    if args.resume is not None:
        require_run(args.resume)
        return
    model = early.last_value(args.settings, "model.path") or args.model
    if model is not None:
        resolve_model(model)
    data = early.last_value(args.settings, "data.train") or args.data
    early.check_data(data, early.last_value(args.settings, "data.path"))


def run(args: argparse.Namespace) -> int:
    if args.help_config:
        from pivot.config import describe

        print(describe())
        return 0
    from pivot.cli import configuring
    from pivot.runs.extension import restored_on_mistake
    from pivot.runs.stopping import STOPPED

    if args.reward is not None:
        args.settings.insert(0, f"reward.functions={json.dumps(args.reward)}")
    config = None
    if args.resume is not None:
        if args.out or args.plugins:
            raise UserError(
                "--resume continues in the run's own folder with its own plugins; leave out --out and --plugin"
            )
        out = args.resume
    else:
        config = configuring.from_arguments(args, needs_data=True)
        out = args.out or Path("runs") / f"{config.recipe}-{config.method.name}-{config.train.seed}"
        if args.keep_going and has_progress(out):
            config = None
    with restored_on_mistake(out) if config is None else nullcontext():
        result = _go(args, out, config)
    if result is None:
        return 0
    if not result.finished:
        print(f"stopped after step {result.steps}; continue with: pivot train --resume {out}")
        return STOPPED
    _show_end(out, report=not args.no_report)
    return 0


def _go(args: argparse.Namespace, out: Path, config: Config | None) -> RunResult | None:
    """Train, or resume where there is no configuration to begin with; None if nothing was left to do."""
    from pivot.runs import run as run_module

    uses_verl = cluster.is_asked(args, out if config is None else None)
    if config is None:
        _agree(out, args)
        if read_status(out).get("status") == "finished":
            print(f"{out} is finished.")
            _show_end(out, report=not args.no_report)
            return None
    accept = run_module.Accept(args.accept_lost_history, args.accept_changed_config)
    if uses_verl:
        return cluster.run(args, out, config, accept)
    if config is None:
        return run_module.resume(out, quiet=args.quiet, accept=accept)
    return run_module.train(config, out, engine=args.engine, quiet=args.quiet)


def _agree(out: Path, args: argparse.Namespace) -> None:
    """Refuse options that contradict the run that is resumed; another number of steps or responses extends it."""
    from pivot.cli import configuring
    from pivot.runs import extension

    stored = extension.stored_config(out)
    asked = configuring.over_run(stored, args)
    extension.check_agrees(out, stored, asked)
    told = extension.extend(out, steps=asked.train.steps, max_responses=asked.train.max_responses)
    if told:
        print(f"{out}: {told}")


def _show_end(out: Path, *, report: bool) -> None:
    """The before/after table, the report, and where the model is."""
    from pivot.console import Console
    from pivot.durable import finished_checkpoints
    from pivot.runs.evaluation import before_after_table

    console = Console()
    table = before_after_table(out)
    if table is not None:
        console.print(table)
    checkpoints = finished_checkpoints(out)
    if checkpoints:
        print(f"model:  {checkpoints[0][1] / 'model'}")
    if report:
        from pivot.report import write_report

        print(f"report: {write_report(out, figures=False)}")
