"""`python -m experiments.tiny_world`: lists the study's cells, runs those that are missing, and writes its page."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from experiments.tiny_world.cells import cell_name, result_path
from experiments.tiny_world.page import write_page
from experiments.tiny_world.plan import PLAN, Cell, Plan, load_plan
from experiments.tiny_world.results import Results, due_cells
from pivot.errors import UserError
from pivot.runs.stopping import STOPPED
from pivot.sweep.pool import Command, Outcome, Pool, last_line

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Study:
    """A plan and its places."""

    path: Path
    plan: Plan
    work: Path
    """Runs and checkpoints."""
    results: Path
    page: Path


@dataclass(frozen=True)
class CellTask:
    """A cell to run; its result says that it is finished."""

    study: Study
    cell: Cell

    @property
    def label(self) -> str:
        return self.cell.label

    @property
    def log(self) -> Path:
        return self.study.work / cell_name(self.study.plan, self.cell) / "cell.log"

    def next_command(self) -> Command | None:
        if result_path(self.study.plan, self.cell, self.study.results).exists():
            return None
        places = [str(p.resolve()) for p in (self.study.path, self.study.work, self.study.results)]
        return Command([*places, json.dumps(asdict(self.cell))], "running")


def main(argv: list[str] | None = None) -> int:
    args = _arguments(argv)
    try:
        study = open_study(args.plan, args.work)
        if args.list:
            print(list_groups(study, args.only))
            return 0
        code = 0 if args.report else run_cells(study, args.only, args.jobs)
        print(f"page: {write_page(study.plan, study.results, study.page)}")
        return code
    except UserError as mistake:
        print(f"tiny_world: {mistake}", file=sys.stderr)
        return 2


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.tiny_world", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], metavar="GROUP",
        help="only the cells of this group; may be repeated (--list names them)",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cells at a time (default: 1)")
    parser.add_argument("--list", action="store_true", help="the groups and how many cells are finished")
    parser.add_argument("--report", action="store_true", help="only write the page from the results")
    parser.add_argument(
        "--plan", type=Path, default=PLAN, metavar="FILE",
        help="another plan, such as quick.yaml (minutes); its results and page go to the --work folder",
    )  # fmt: skip
    parser.add_argument(
        "--work", type=Path, default=Path("runs/tiny_world"), metavar="DIR",
        help="runs and checkpoints (default: runs/tiny_world)",
    )  # fmt: skip
    return parser.parse_args(argv)


def open_study(path: Path, work: Path) -> Study:
    """The committed plan has its results and page here; any other has them in `work`."""
    home = HERE if path.resolve() == PLAN else work
    return Study(path, load_plan(path), work, home / "results", home / "README.md")


def run_cells(study: Study, only: list[str], jobs: int) -> int:
    """Run the due cells in rounds: in a screened group the last seeds become due once the first are finished."""
    if jobs < 1:
        raise UserError(f"--jobs is {jobs}; it must be at least 1.")
    chosen = study.plan.cells(only)
    pool = Pool([_environment()] * jobs, "experiments.tiny_world.run_cell")
    while True:
        cells = due_cells(Results.load(study.plan, study.results), chosen)
        tasks = [task for task in (CellTask(study, cell) for cell in cells) if task.next_command()]
        if not tasks:
            more = len(chosen) - len(cells)
            print(
                f"all {len(cells)} cells are finished"
                + (f"; screening leaves out {more} more" if more else "")
            )
            return 0
        outcome = pool.run(tasks, lambda text: print(text, flush=True))
        if outcome.stopped or outcome.failed:
            return _explain(outcome)


def _environment() -> dict[str, str]:
    """One thread: cells side by side give the numbers of one alone. The path: this folder is not installed."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    paths = [str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return threads | {
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(paths),
    }


def _explain(outcome: Outcome) -> int:
    for label, log in outcome.failed:
        print(f"failed: {label}: {last_line(log)} ({log})", file=sys.stderr)
    if outcome.stopped:
        print("stopped; the same command continues", file=sys.stderr)
        return STOPPED
    return 1


def list_groups(study: Study, only: list[str]) -> str:
    """The groups with their number of cells, those shared with groups above, and the finished ones."""
    plan, results = study.plan, Results.load(study.plan, study.results)
    chosen = due_cells(results, plan.cells(only))
    seen: set[Cell] = set()
    rows = [f"{'group':18}{'cells':>6}{'shared':>8}{'done':>6}  what it is"]
    for name in only or plan.groups:
        cells = set(plan.group_cells(name)).intersection(chosen)
        done = len(results.get(list(cells)))
        rows.append(f"{name:18}{len(cells):6}{len(seen & cells):8}{done:6}  {plan.groups[name].about}")
        seen |= cells
    rows.append(f"{'all':18}{len(chosen):6}{'':8}{len(results.get(chosen)):6}")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
