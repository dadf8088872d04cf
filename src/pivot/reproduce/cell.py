"""One cell from beginning to end: train, or go on training; measure; write its numbers down."""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pivot import __version__
from pivot.config import Config
from pivot.durable import write_bytes
from pivot.engines.local import load_model
from pivot.evaluate.sampling import Draws
from pivot.evaluate.settings import recorded
from pivot.evaluate.summary import add_scores
from pivot.evaluate.summary import summarise as summarise_entry
from pivot.jsonl import read_rows
from pivot.models.loading import resolve_model
from pivot.models.policy import Policy
from pivot.reproduce.cells import cell_config, cell_name, identity, result_path
from pivot.reproduce.measure import Measured, measure_model
from pivot.reproduce.overhead import time_methods
from pivot.reproduce.plan import BASE, OVERHEAD, Cell, Plan
from pivot.reproduce.starts import start_path
from pivot.runs import run as run_module
from pivot.runs.evaluation import settings_of
from pivot.runs.folder import has_progress
from pivot.training import build

BIN = 5
"""Steps whose metrics are averaged into one point of the stored dynamics."""
DYNAMICS = (
    "reward/accuracy",
    "rollout/length_mean",
    "rollout/entropy",
    "rollout/groups",
    "rollout/groups_wanted",
    "rollout/groups_kept",
    "buffer/replay_share",
    "visual/support_correct",
    "visual/support_wrong",
    "visual/protected_share",
    "visual/unlikely_weight",
    "visual/beta",
)
PHASES = ("step", "rollout", "verify", "anchors", "score", "update")


def run_cell(plan: Plan, cell: Cell, work: Path, results: Path, *, quiet: bool = False) -> bool:
    """Run a cell into `work` and its numbers into `results`; False when a signal stopped it before its end."""
    torch.set_num_threads(1)
    world = plan.worlds[cell.world]
    began = time.monotonic()
    start = start_path(world.start, work / "starts") if world.start.origin else None
    config = cell_config(plan, cell, start)
    folder = work / cell_name(plan, cell)
    found: dict[str, Any]
    if cell.arm == OVERHEAD:
        found = {"overhead": time_methods(plan, cell, start)}
    elif cell.arm == BASE:
        measured = measure_model(load_model(config), config, world, plan.measure)
        found = {"sets": measured.sets, "looks": measured.looks}
    else:
        run = folder / "run"
        result = (
            run_module.resume(run, quiet=quiet)
            if has_progress(run)
            else run_module.train(config, run, quiet=quiet)
        )
        if not result.finished:
            return False
        policy = load_model(config, resolve_model(str(run)))
        measured = measure_model(policy, config, world, plan.measure)
        _note_scores(run, config, measured, policy)
        found = {
            "sets": measured.sets,
            "looks": measured.looks,
            **_dynamics(read_rows(run / "metrics.jsonl")),
        }
    found["seconds"] = {**found.get("seconds", {}), "cell": round(time.monotonic() - began, 1)}
    _write(result_path(plan, cell, results), {**_about(plan, cell), **found})
    # What is left is what `pivot compare` reads; 300 cells of checkpoints would fill a disk.
    shutil.rmtree(folder / "run" / "checkpoints", ignore_errors=True)
    return True


def _about(plan: Plan, cell: Cell) -> dict[str, Any]:
    return {
        "cell": {**asdict(cell), "settings": list(cell.settings)},
        "plan": plan.digest,
        "identity": identity(plan, cell),
        "machine": {
            "pivot": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "processor": _processor(),
        },
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _note_scores(run: Path, config: Config, measured: Measured, policy: Policy) -> None:
    """Entries of the run's scores.json, for `pivot report` and `pivot compare`."""
    entries = []
    seed, sampling = config.train.seed, build.evaluation_sampling(config)
    for name, graded in measured.graded.items():
        blank = name == "blank"
        labels = {"name": f"tiny-{'test' if blank else name}", "when": "after", "blank": blank}
        draws = Draws(len(graded[0].responses), sampling, seed, blank)
        # Final sets are graded by the verifier, also where a world trains with a reward of its own.
        how = replace(settings_of(config, policy, draws), grader=config.reward.grader)
        entry = summarise_entry(graded, model=config.model.path, **labels)
        entries.append({**entry, "settings": recorded(how)})
    add_scores(run / "eval" / "scores.json", entries)


def _dynamics(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The validation curve with the seconds spent until each point, and the training metrics in bins of steps.

    Seconds of the processor: two cells and whatever else share the machine, which disturbs them less than the wall.
    """
    seconds = np.cumsum([row["time/processor"] for row in rows])
    evaluated = [i for i, row in enumerate(rows) if "eval/accuracy" in row]
    bins = [rows[start : start + BIN] for start in range(0, len(rows), BIN)]
    metrics = {}
    for key in DYNAMICS:
        values = [[row[key] for row in part if row.get(key) is not None] for part in bins]
        if any(values):
            metrics[key] = [round(float(np.mean(v)), 4) if v else None for v in values]
    return {
        "curve": {
            "steps": [rows[i]["step"] for i in evaluated],
            "accuracy": [round(rows[i]["eval/accuracy"], 5) for i in evaluated],
            "seconds": [round(float(seconds[i]), 2) for i in evaluated],
        },
        "dynamics": {"steps": [part[-1]["step"] for part in bins], **metrics},
        "seconds": {
            phase: round(float(np.median([row.get(f"time/{phase}", 0.0) for row in rows])), 4)
            for phase in PHASES
        },
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    """One line a part: small, and a difference between two versions can still be read."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(part)}" for key, part in value.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, f"{{\n{lines}\n}}\n".encode())
