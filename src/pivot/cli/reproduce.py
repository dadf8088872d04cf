"""`pivot reproduce`: the paper's comparison on the tiny world, cell by cell, and the page of its results."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pivot.errors import UserError

STOPPED = 3
"""Exit code when a signal stopped it; the same command goes on."""
FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", action="append", default=[], metavar="GROUP",
        help="only the cells of this group of the plan; may be repeated (--list names them)",
    )  # fmt: skip
    parser.add_argument(
        "--match", action="append", default=[], metavar="WORDS",
        help="only cells whose name has all of these words, as in 'prior pivot' or lr=5e-5; may be repeated",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cells at a time (default: 1)")
    parser.add_argument(
        "--quick", action="store_true", help="a plan of minutes that shows that everything runs"
    )
    parser.add_argument(
        "--list", action="store_true", help="the groups and cells, and what is done; run nothing"
    )
    parser.add_argument(
        "--report", action="store_true", help="only write the page and its figures from the results"
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="DIR",
        help="only write `pivot compare`'s page of the runs in --work into DIR",
    )
    parser.add_argument("--plan", type=Path, metavar="FILE", help="another plan than the package's")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="raw numbers of the cells (default: results)"
    )
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="runs and checkpoints (default: runs/reproduce)"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="the page (default: docs/results.md)")


def run(args: argparse.Namespace) -> int:
    from pivot.reproduce.plan import PLAN, QUICK_PLAN, load_plan
    from pivot.reproduce.schedule import Places

    if args.jobs < 1:
        raise UserError(f"--jobs is {args.jobs}; it must be at least 1.")
    if args.quick and args.plan:
        raise UserError("--quick is a plan of its own; leave out --plan.")
    work = args.work or Path("runs/reproduce-quick" if args.quick else "runs/reproduce")
    # What --quick measures means nothing, so it never goes where the real results are.
    results = args.results or (work / "results" if args.quick else Path("results"))
    page = args.page or (work / "results.md" if args.quick else Path("docs/results.md"))
    path = args.plan or (QUICK_PLAN if args.quick else PLAN)
    plan = load_plan(path)
    places = Places(path, results, work)
    if args.list:
        return _list(plan, args.only, args.match, results)
    if args.compare is not None:
        return _compare(plan, plan.cells(args.only, args.match), places, args.compare)
    code = 0 if args.report else _run_cells(plan, args, places)
    from pivot.reproduce.page import write_page

    print(f"page: {write_page(plan, results, page)}")
    return code


def _run_cells(plan, args: argparse.Namespace, places) -> int:
    """What is due, in rounds: in a screened group the last seeds become due when the first ones are finished."""
    from pivot.reproduce.forecast import Forecast
    from pivot.reproduce.results import Results
    from pivot.reproduce.schedule import pending_cells, run_plan
    from pivot.reproduce.screening import due_cells

    chosen = plan.cells(args.only, args.match)
    while True:
        results = Results.load(plan, places.results)
        cells = due_cells(results, chosen)
        waiting = pending_cells(plan, cells, places.results)
        if not waiting:
            print(f"all of {len(cells)} cells are finished{_kept_out(len(chosen) - len(cells))}")
            return 0
        forecast = Forecast(len(cells), len(cells) - len(waiting), args.jobs, results.durations())
        print(
            f"{len(cells)} cells, {len(waiting)} to run, {args.jobs} at a time; numbers go to {places.results}"
        )
        outcome = run_plan(plan, cells, places, args.jobs, forecast)
        for cell, log in outcome.failed:
            print(f"failed: {cell.label}: {_last_line(log)} ({log})", file=sys.stderr)
        if outcome.stopped:
            print("stopped; the same command goes on where it was")
            return STOPPED
        if outcome.failed:
            return FAILED


def _kept_out(count: int) -> str:
    return f"; {count} more are of values that their screening has not chosen" if count else ""


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it wrote nothing"


def _list(plan, only: list[str], match: list[str], results: Path) -> int:
    """The groups with their counts; and, where words pick some, each cell."""
    from pivot.reproduce.results import Results
    from pivot.reproduce.schedule import pending_cells
    from pivot.reproduce.screening import due_cells

    chosen = due_cells(Results.load(plan, results), plan.cells(only, match))
    missing = set(pending_cells(plan, chosen, results))
    seen: set = set()
    print(f"{'group':18}{'cells':>6}{'shared':>8}{'done':>6}  what it is")
    for name in only or plan.groups:
        cells = set(plan.group_cells(name)).intersection(chosen)
        if cells:
            done = len(cells - missing)
            print(f"{name:18}{len(cells):6}{len(seen & cells):8}{done:6}  {plan.groups[name].about}")
            seen |= cells
    print(f"{'all':18}{len(chosen):6}{'':8}{len(chosen) - len(missing):6}")
    for cell in chosen if match else ():
        print(f"  {'to do' if cell in missing else 'done':7}{cell.label}")
    return 0


def _compare(plan, cells, places, out: Path) -> int:
    from pivot.report import write_comparison
    from pivot.reproduce.cells import cell_name

    runs = [places.work / cell_name(plan, cell) / "run" for cell in cells]
    there = [run for run in runs if (run / "config.json").is_file()]
    if not there:
        raise UserError(f"{places.work} holds no run of these cells yet; run `pivot reproduce` first.")
    print(write_comparison(there, out))
    return 0
