"""One cell from beginning to end: train or resume, measure, write its numbers.

`python -m experiments.tiny_world.run_cell PLAN WORK RESULTS CELL` runs one in a process of its own.
"""

from __future__ import annotations

import json
import platform
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.tiny_world.cells import cell_config, cell_name, identity, result_path
from experiments.tiny_world.measure import Measured, measure_model
from experiments.tiny_world.plan import BASE, OVERHEAD, Cell, Plan, load_plan
from experiments.tiny_world.starts import start_path
from pivot import __version__
from pivot.config import Config
from pivot.durable import write_bytes
from pivot.engines.local import LocalEngine, load_model
from pivot.errors import UserError
from pivot.evaluation.sampling import evaluation_request
from pivot.evaluation.scoring import add_scores, as_graded
from pivot.evaluation.scoring import summarise as summarise_entry
from pivot.evaluation.settings import recorded
from pivot.jsonl import read_rows
from pivot.models.loading import resolve_model
from pivot.models.policy import Policy
from pivot.runs import run as run_module
from pivot.runs.evaluation import settings_of
from pivot.runs.folder import has_progress
from pivot.runs.stopping import STOPPED
from pivot.training import build
from pivot.training.clock import PhaseClock
from pivot.training.prompts import training_prompts
from pivot.training.trainer import Trainer

BIN = 5
"""Steps per point of the stored training metrics."""
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
    """Run a cell in `work` and write its numbers into `results`; False when a signal stopped it before its end."""
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
    # The checkpoints of 420 cells would fill a disk; what `pivot compare` reads stays.
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
        request = evaluation_request(len(graded[0].responses), sampling, seed, blank)
        # Final sets are graded by the verifier, also where a world trains with a reward of its own.
        how = replace(settings_of(config, policy, request), grader=config.reward.grader)
        entry = summarise_entry(as_graded(graded), model=config.model.path, **labels)
        entries.append({**entry, "settings": recorded(how)})
    add_scores(run / "eval" / "scores.json", entries)


def _dynamics(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The validation curve with the processor seconds until each point, and training metrics in bins of steps."""
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
    """One line per part: small, and a diff of two versions is still readable."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(part)}" for key, part in value.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, f"{{\n{lines}\n}}\n".encode())


def time_methods(plan: Plan, cell: Cell, start: Path | None) -> dict[str, Any]:
    """Method -> median processor and wall seconds per step, its phases, and the buffer's size.

    One step of each method in turn, so that other load on the machine hits all alike. Replay begins after a fifth of
    the rounds at the latest; the second half of the rounds counts.
    """
    trainers = {arm: _trainer(plan, Cell(cell.world, arm, cell.seed), start) for arm in plan.timed}
    rows: dict[str, list[dict[str, float]]] = {arm: [] for arm in plan.timed}
    try:
        for turn in range(plan.timed_rounds):
            shift = turn % len(trainers)
            for arm in (*plan.timed[shift:], *plan.timed[:shift]):
                rows[arm].append(_timed_step(trainers[arm]))
    finally:
        for trainer in trainers.values():
            trainer.judge.close()
    return {arm: _summary(rows[arm][plan.timed_rounds // 2 :], trainers[arm]) for arm in plan.timed}


def _trainer(plan: Plan, cell: Cell, start: Path | None) -> Trainer:
    rounds = f"train.steps={plan.timed_rounds}"
    config = cell_config(plan, Cell(cell.world, cell.arm, cell.seed, (*cell.settings, rounds)), start)
    prompts = training_prompts(config)
    engine = LocalEngine.open(config)
    return build.build_trainer(config, engine, prompts.by_id, build.build_judge(config), PhaseClock())


def _timed_step(trainer: Trainer) -> dict[str, float]:
    trainer.clock.restart()
    wall, processor = time.perf_counter(), time.process_time()
    trainer.step()
    spent = {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}
    phases = trainer.clock.metrics()
    return spent | {key.removeprefix("time/"): value for key, value in phases.items() if "share" not in key}


def _summary(rows: list[dict[str, float]], trainer: Trainer) -> dict[str, float]:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    found = {key: round(float(np.median([row.get(key, 0.0) for row in rows])), 4) for key in keys}
    stats = trainer.sources.buffer.stats(trainer.finished_steps)
    return found | {"buffer_megabytes": round(stats.bytes / 1e6, 3)}


def main(argv: list[str]) -> int:
    plan_path, work, results, spec = argv
    given = json.loads(spec)
    cell = Cell(given["world"], given["arm"], given["seed"], tuple(given["settings"]))
    try:
        finished = run_cell(load_plan(Path(plan_path)), cell, Path(work), Path(results))
    except UserError as mistake:
        print(mistake, file=sys.stderr)
        return 2
    return 0 if finished else STOPPED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
