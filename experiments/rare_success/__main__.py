"""`python -m experiments.rare_success`: makes the training sets, and keeps finished runs as small files."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from pivot.durable import write_bytes
from pivot.errors import UserError

HERE = Path(__file__).resolve().parent
PLAN = HERE / "plan.yaml"
RESULTS = HERE / "results"
WORK = Path("runs") / "rare_success"
"""The plan names the sets in this folder, relative to where the sweep runs."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.rare_success", description=__doc__)
    parser.add_argument("--work", type=Path, default=WORK, help=f"sets and runs (default: {WORK})")
    parser.add_argument("--plan", type=Path, default=PLAN)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of small files")
    commands = parser.add_subparsers(dest="command", required=True)
    sets = commands.add_parser("sets", help="write the training sets and the new prompts of their kind")
    sets.add_argument("--start", default="tiny-hard", help="the checkpoint that success rates are of")
    sets.add_argument("--rates", help="in per cent, such as 20,10 (default: all, from the most frequent on)")
    collect = commands.add_parser("collect", help="write a file for every finished run")
    collect.add_argument("--prune", action="store_true", help="and remove the checkpoints of these runs")
    commands.add_parser("restore", help="write the folders of runs that are there as files alone")
    commands.add_parser("check", help="are the sets those that the results are about?")
    commands.add_parser("tables", help="print the study's tables as Markdown, from the runs that are there")
    args = parser.parse_args(argv)
    try:
        return make(args) if args.command == "sets" else keep(args)
    except UserError as mistake:
        print(mistake, file=sys.stderr)
        return 2


def make(args: argparse.Namespace) -> int:
    """Write the sets one by one; what is recorded of each is in sets/START.json."""
    from experiments.archive import as_lines
    from experiments.rare_success.sets import SetPlan, make_sets, sampler_of

    plan = SetPlan(start=args.start)
    if args.rates is not None:
        wanted = {int(rate) for rate in args.rates.split(",")}
        plan = replace(plan, candidates={rate: n for rate, n in plan.candidates.items() if rate in wanted})
    folder = args.work / "sets"
    record = folder / f"{args.start}.json"
    kept = args.results / f"sets-{args.start}.json"
    recorded = json.loads(kept.read_bytes()) if kept.exists() else {}
    for name, found in make_sets(plan, folder, sampler_of(plan), recorded):
        known = json.loads(record.read_bytes()) if record.exists() else {}
        write_bytes(record, as_lines({**known, name: found}))
        print(f"{name}: {found['prompts']} prompts, {100 * found['success_rate']:.1f}% right", flush=True)
    return 0


def keep(args: argparse.Namespace) -> int:
    """`collect`, `restore`, `check` and `tables`."""
    from experiments.archive import collect, file_of, restore
    from experiments.rare_success.sets import check_sets
    from experiments.rare_success.summary import summary
    from pivot.report.tables import to_markdown
    from pivot.sweep.plan import load_plan
    from pivot.sweep.runs import plan_runs

    records = {path.stem: path for path in (args.work / "sets").glob("*.json")}
    if args.command == "check":
        for path in sorted(args.results.glob("sets-*.json")):
            check_sets(args.work / "sets", json.loads(path.read_bytes()))
        return 0
    plan = load_plan(args.plan)
    runs = plan_runs(plan, args.work / "runs")
    if args.command == "tables":
        (recorded,) = (json.loads(path.read_bytes()) for path in args.results.glob("sets-*.json"))
        print("\n".join(map(to_markdown, summary(plan, runs, recorded))))
        return 0
    if args.command == "restore":
        print(f"{restore(runs, args.results)} runs restored in {args.work / 'runs'}")
        return 0
    written = collect(plan, runs, args.results, prune=args.prune)
    for start, path in records.items():
        write_bytes(args.results / f"sets-{start}.json", path.read_bytes())
    there = sum(file_of(run, args.results).exists() for run in runs)
    print(f"{len(written)} files written; {there} of {len(runs)} runs are there")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(main(sys.argv[1:]))
