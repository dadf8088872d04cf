"""`python -m experiments.archive PLAN collect`: a plan's finished runs as small files; `restore` turns them back.

A file has what `pivot sweep` reads of a run, without checkpoints and samples. From restored runs tables come out the
same, and a sweep does not repeat them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pivot.config import to_dict
from pivot.durable import write_bytes, write_json
from pivot.errors import UserError
from pivot.jsonl import read_rows
from pivot.runs.folder import read_status
from pivot.sweep.plan import Plan, load_plan
from pivot.sweep.runs import SweepRun, plan_runs
from pivot.sweep.schedule import best_variant
from pivot.sweep.scores import unmeasured

POINTS = 15
"""Rows of metrics that are kept of a run, besides those with a validation."""
SUMS = (
    "rollout/groups",
    "rollout/groups_kept",
    "rollout/groups_wanted",
    "rollout/tokens",
    "optim/updates",
    "time/step",
    "time/processor",
)
MEANS = (
    "reward/accuracy",
    "reward/fresh_accuracy",
    "reward/replay_accuracy",
    "reward/format",
    "reward/unsolved_prompts",
    "reward/solved_prompts",
    "rollout/entropy",
    "rollout/length_mean",
    "rollout/tries",
    "buffer/replay_share",
    "buffer/informative_fresh",
    "buffer/informative_replayed",
    "buffer/replay_gain",
    "optim/grad_norm",
)
LAST = (
    "step",
    "rollout/total_responses",
    "rollout/total_tokens",
    "buffer/size",
    "buffer/eligible",
    "buffer/replay_active",
    "eval/accuracy",
    "eval/format",
)
ENVIRONMENT = ("pivot", "torch", "python", "platform", "saved_step", "data")


def collect(plan: Plan, runs: Sequence[SweepRun], results: Path, *, prune: bool = False) -> list[Path]:
    """A file per finished run; `prune` then removes its checkpoints, which nothing needs any more."""
    written = []
    for run in runs:
        if not run.is_trained or not (_is_measured(run) or _is_screened_out(plan, runs, run)):
            continue
        path = file_of(run, results)
        known = json.loads(path.read_bytes()) if path.exists() else {}
        if known.get("scores") != _scores(run):  # a restored run has its metrics from the file
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, as_lines(summary(run)))
            written.append(path)
        if prune and run.seed is not None:
            shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)
    return written


def _is_measured(run: SweepRun) -> bool:
    return (run.folder / "eval" / "scores.json").exists() and not unmeasured(run)


def _is_screened_out(plan: Plan, runs: Sequence[SweepRun], run: SweepRun) -> bool:
    """Whether screening chose another value, so that the run is never evaluated."""
    if not plan.screen:
        return False
    best = best_variant(plan, runs, plan.arms[run.arm].family)
    return best is not None and best != run.arm


def file_of(run: SweepRun, results: Path) -> Path:
    """Named without the digest at the end of the folder's name, which changes when a setting is added to the project.

    The settings in the file say whether it is this run's.
    """
    return results / f"{run.folder.name.rpartition('-')[0]}.json"


def summary(run: SweepRun) -> dict[str, Any]:
    """Everything that is kept of a run."""
    status = read_status(run.folder)
    return {
        "run": {"arm": run.arm, "seed": run.seed},
        "settings": list(run.settings),
        "environment": {name: status[name] for name in ENVIRONMENT if name in status},
        "scores": _scores(run),
        **({} if run.seed is None else {"metrics": thinned(read_rows(run.folder / "metrics.jsonl"))}),
    }


def _scores(run: SweepRun) -> list[dict[str, Any]]:
    path = run.folder / "eval" / "scores.json"
    return json.loads(path.read_bytes())["evaluations"] if path.exists() else []


def thinned(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows that each stand for the steps since the one before: sums, means, and last values."""
    regular = {len(rows) * (i + 1) // POINTS for i in range(POINTS)}
    ends = [i + 1 for i, row in enumerate(rows) if i + 1 in regular or row.get("eval/accuracy") is not None]
    found = []
    for start, end in zip([0, *ends], ends, strict=False):
        part = rows[start:end]
        row = {name: part[-1][name] for name in LAST if name in part[-1]}
        for names, reduce in ((SUMS, np.sum), (MEANS, np.mean)):
            for name in names:
                values = [one[name] for one in part if one.get(name) is not None]
                row |= {name: round(float(reduce(values)), 4)} if values else {}
        found.append(row)
    return found


def restore(runs: Sequence[SweepRun], results: Path) -> int:
    """Folders of the runs that have a file and no folder yet; returns how many were written."""
    count = 0
    for run in runs:
        path = file_of(run, results)
        if not path.exists() or (run.folder / "eval" / "scores.json").exists():
            continue
        saved = json.loads(path.read_bytes())
        if saved["settings"] != list(run.settings):
            raise UserError(f"{path} has other settings than the plan's run {run.label}: remove one of them.")
        (run.folder / "eval").mkdir(parents=True, exist_ok=True)
        write_json(run.folder / "eval" / "scores.json", {"version": 1, "evaluations": saved["scores"]})
        if run.seed is not None:
            write_json(run.folder / "config.json", to_dict(run.config))
            lines = "".join(json.dumps(row) + "\n" for row in saved["metrics"])
            write_bytes(run.folder / "metrics.jsonl", lines.encode())
            write_json(run.folder / "run.json", {**saved["environment"], "status": "finished"})
        count += 1
    return count


def as_lines(value: Mapping[str, Any]) -> bytes:
    """JSON with one line per entry, and per row of a list of rows: a diff of two versions is readable."""
    lines = ",\n".join(f"{json.dumps(key)}: {_part(part)}" for key, part in value.items())
    return f"{{\n{lines}\n}}\n".encode()


def _part(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return "[\n" + ",\n".join(json.dumps(row) for row in value) + "\n]"
    return json.dumps(value)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.archive", description=__doc__)
    parser.add_argument("plan", type=Path, metavar="PLAN", help="a plan of `pivot sweep`")
    parser.add_argument("--runs", type=Path, help="the sweep's folder (default: runs/STUDY/runs)")
    parser.add_argument("--results", type=Path, help="the small files (default: `results` beside the plan)")
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("collect", help="write a file for every finished run")
    write.add_argument("--prune", action="store_true", help="and remove the checkpoints of these runs")
    commands.add_parser("restore", help="write the folders of runs that are there as files alone")
    args = parser.parse_args(argv)
    study = args.plan.resolve().parent
    results = args.results or study / "results"
    try:
        plan = load_plan(args.plan)
        runs = plan_runs(plan, args.runs or Path("runs") / study.name / "runs")
        if args.command == "restore":
            print(f"{restore(runs, results)} runs restored")
            return 0
        written = collect(plan, runs, results, prune=args.prune)
    except UserError as mistake:
        print(mistake, file=sys.stderr)
        return 2
    there = sum(file_of(run, results).exists() for run in runs)
    print(f"{len(written)} files written; {there} of {len(runs)} runs are there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
