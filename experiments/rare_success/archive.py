"""Finished runs as small files: what `pivot sweep` reads of a run, without its checkpoints and samples.

`collect` writes a file per finished run; `restore` writes run folders from them, so that tables come out the same and a
sweep does not repeat what it finds.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pivot.config import to_dict
from pivot.durable import write_bytes, write_json
from pivot.errors import UserError
from pivot.jsonl import read_rows
from pivot.runs.folder import read_status
from pivot.sweep.runs import SweepRun
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


def collect(runs: Sequence[SweepRun], results: Path, *, prune: bool = False) -> list[Path]:
    """A file per finished run; `prune` then removes its checkpoints, which nothing needs any more."""
    written = []
    for run in runs:
        if not run.is_trained or unmeasured(run) or not (run.folder / "eval" / "scores.json").exists():
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
    return json.loads((run.folder / "eval" / "scores.json").read_bytes())["evaluations"]


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
