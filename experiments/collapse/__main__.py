"""`python -m experiments.collapse`: when runs of the plan collapsed, beside when they were predicted to."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from experiments.collapse.collapse import collapse_step, push, table
from pivot.durable import write_bytes
from pivot.jsonl import read_rows
from pivot.report.tables import to_markdown
from pivot.sweep.plan import load_plan
from pivot.sweep.runs import SweepRun, plan_runs

HERE = Path(__file__).resolve().parent
PLAN = HERE / "plan.yaml"
RUNS = Path("runs") / "collapse"
RESULTS = HERE / "results.json"


def measured(run: SweepRun) -> dict[str, object]:
    """What is kept of a finished run."""
    accuracy = [row["reward/accuracy"] for row in read_rows(run.folder / "metrics.jsonl")]
    return {
        "arm": run.arm,
        "seed": run.seed,
        "push": push(run.config),
        "steps": len(accuracy),
        "collapse": collapse_step(accuracy),
        "accuracy": [round(value, 3) for value in accuracy[9::10]],
    }


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.collapse", description=__doc__)
    parser.add_argument("--runs", type=Path, default=RUNS, help="the sweep's folder (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="keeps what is known of finished runs")
    args = parser.parse_args(argv)
    plan = load_plan(PLAN)
    known = json.loads(args.results.read_bytes()) if args.results.exists() else {}
    known |= {run.label: measured(run) for run in plan_runs(plan, args.runs) if run.is_trained}
    lines = ",\n".join(f"{json.dumps(label)}: {json.dumps(one)}" for label, one in known.items())
    write_bytes(args.results, f"{{\n{lines}\n}}\n".encode())
    print(to_markdown(table(plan, known)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
