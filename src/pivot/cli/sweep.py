"""`pivot sweep PLAN.yaml`: trains and evaluates every arm and seed of a plan, judges its claims, renders its tables."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pivot.cli import early
from pivot.cli.options import add_plugins
from pivot.errors import UserError
from pivot.runs.stopping import STOPPED
from pivot.setting_names import check_recipe, load_file, recipe_names, split_setting

if TYPE_CHECKING:
    from pivot.sweep.plan import Engine, Plan
    from pivot.sweep.runs import SweepRun

FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, metavar="PLAN", help="a plan file, as in experiments/paper/")
    parser.add_argument(
        "--out", type=Path, metavar="DIR",
        help="runs and results (default: runs/sweeps/PLAN); plans with one folder share equal runs",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true",
        help="print every run, its settings, commands and estimated GPU hours; start nothing",
    )  # fmt: skip
    parser.add_argument(
        "--table", action="store_true", help="only render tables, figures and the page from what is there"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N",
        help="runs at a time, each on GPUs of its own where there are any (default: 1)",
    )  # fmt: skip
    add_plugins(parser)
    group = parser.add_argument_group("instead of what the plan says")
    group.add_argument("--only", action="append", default=[], metavar="ARM", help="this arm; may be repeated")
    group.add_argument("--seeds", type=int, metavar="N", help="runs per arm")
    group.add_argument("--recipe", metavar="NAME", help=f"start from: {', '.join(recipe_names())}")
    group.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", dest="settings",
        help="any setting, in all runs; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--benchmarks", metavar="A,B", help="names and groups of `pivot benchmarks`, tiny-test"
    )
    group.add_argument("--samples", type=int, metavar="K", help="responses per prompt (accuracy@K)")
    group.add_argument("--limit", type=int, metavar="N", help="the first N rows of each benchmark")
    group.add_argument("--sampler", choices=("native", "vllm"), help="what samples for evaluations")
    group.add_argument(
        "--path", action="append", default=[], metavar="NAME=FILE", help="a local copy of a benchmark"
    )
    group.add_argument("--papo-eval", action="store_true", help="benchmarks from the PAPO-Eval bundle")
    group.add_argument(
        "--engine", metavar="NAME", help="training engine: local, verl (docs/cluster.md), or yours"
    )
    group.add_argument("--nodes", type=int, metavar="N", help="nodes of the cluster")
    group.add_argument("--gpus", type=int, metavar="M", help="GPUs per node")
    group.add_argument("--address", metavar="HOST:PORT", help="a running Ray cluster, or `auto`")


def check(args: argparse.Namespace) -> None:
    """Check names and paths before anything heavy is imported."""
    load_file(args.plan)
    if args.recipe is not None:
        check_recipe(args.recipe)
    # The arms may have methods from outside, with settings of their own.
    early.check_settings((split_setting(one)[0] for one in args.settings), outside=True)


def run(args: argparse.Namespace) -> int:
    plan, runs = planned(args)
    if args.dry_run:
        from pivot.sweep.listing import describe

        print(describe(plan, runs))
        return 0
    code = 0 if args.table else complete(plan, runs, args.jobs)
    from pivot.sweep.render import render

    text, page = render(plan, runs)
    print(f"{text}\nresults: {page}")
    return code


def planned(args: argparse.Namespace) -> tuple[Plan, list[SweepRun]]:
    """The plan as the options change it, and its runs."""
    from pivot.plugins import absolute
    from pivot.sweep.plan import load_plan
    from pivot.sweep.runs import Overrides, plan_runs

    plugins = tuple(map(absolute, args.plugins or ()))
    plan = adjust(load_plan(args.plan), args)
    out = args.out or Path("runs") / "sweeps" / plan.name
    return plan, plan_runs(
        plan, out, Overrides(tuple(args.settings), tuple(args.path), args.papo_eval, plugins)
    )


def complete(plan: Plan, runs: list[SweepRun], jobs: int) -> int:
    """Complete the runs and say what failed; the exit code."""
    from pivot.sweep import pool, schedule

    engine = plan.engine
    if jobs > 1 and (engine.nodes > 1 or engine.address):
        raise UserError(f"--jobs {jobs}: the runs of this plan share one Ray cluster, one at a time.")
    for data in dict.fromkeys(run.config.data for run in runs if not (run.missing or run.is_trained)):
        early.check_data(",".join(data.sets), data.path)
        early.check_data(data.validation, None)
    slots = pool.job_slots(jobs, engine.gpus if engine.name == "verl" else 1)
    outcome = schedule.run_sweep(plan, runs, pool.Pool(slots), _say)
    for run in outcome.left_out:
        needed = ", ".join(run.missing)
        print(f"left out: {run.label} needs {needed}; give --set {run.missing[0]}=FILE", file=sys.stderr)
    for label, log in outcome.failed:
        print(f"failed: {label}: {pool.last_line(log)} ({log})", file=sys.stderr)
    if outcome.stopped:
        print("stopped; the same command continues", file=sys.stderr)
        return STOPPED
    return FAILED if outcome.failed else 0


def adjust(plan: Plan, args: argparse.Namespace) -> Plan:
    """The plan as the options change it."""
    from pivot.evaluation.sets import expand
    from pivot.sweep.plan import MEASURES, choose_arms

    for name in ("seeds", "samples", "limit"):
        if vars(args)[name] is not None and vars(args)[name] < 1:
            raise UserError(f"--{name} is {vars(args)[name]}; it must be at least 1.")
    given = {name: vars(args)[name] for name in ("seeds", "recipe", "samples", "limit", "sampler")}
    changes = {name: value for name, value in given.items() if value is not None}
    if args.benchmarks is not None:
        changes["benchmarks"] = _names(args.benchmarks)
    if args.recipe is not None or args.benchmarks is not None:
        # Another model, data set or column: the paper's numbers do not belong beside it.
        changes["arms"] = {name: replace(arm, paper=()) for name, arm in plan.arms.items()}
    if args.benchmarks is not None:
        columns = {"", *MEASURES, *expand(changes["benchmarks"])}
        changes["claims"] = tuple(claim for claim in plan.claims if claim.measure in columns)
    if args.recipe not in (None, plan.recipe):
        changes |= {"title": f"The arms of {plan.name}, not at its scale", "source": ""}
    return choose_arms(replace(plan, engine=_engine(plan.engine, args), **changes), args.only)


def _names(text: str) -> tuple[str, ...]:
    from pivot.evaluation.sets import check_name
    from pivot.sweep.plan import TRAIN

    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name != TRAIN:
            check_name(name)
    return names


def _engine(planned: Engine, args: argparse.Namespace) -> Engine:
    from pivot.sweep.plan import Engine

    engine = Engine(args.engine) if args.engine not in (None, planned.name) else planned
    if engine.name not in ("local", "verl"):  # what is always there needs no import of a model's code
        from pivot.runs.run import find_engine

        find_engine(engine.name)
    given = {name: vars(args)[name] for name in ("nodes", "gpus", "address") if vars(args)[name] is not None}
    for name, value in given.items():
        if engine.name != "verl":
            raise UserError(f"--{name} belongs to --engine verl; the {engine.name} engine is one process")
        if isinstance(value, int) and value < 1:
            raise UserError(f"--{name} is {value}; it must be at least 1.")
    return replace(engine, **given)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")  # one write: several threads report
    sys.stdout.flush()
