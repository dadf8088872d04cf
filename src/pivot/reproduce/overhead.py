"""What a step of each method costs: one step of each in turn, in one process, so that a busy machine hits all alike."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from pivot.engines.local import LocalEngine
from pivot.reproduce.cells import cell_config
from pivot.reproduce.plan import Cell, Plan
from pivot.training import build
from pivot.training.clock import PhaseClock
from pivot.training.prompts import training_prompts
from pivot.training.trainer import Trainer


def time_methods(plan: Plan, cell: Cell, start: Path | None) -> dict[str, Any]:
    """Method -> median processor and wall seconds of a step, its phases, and the buffer's size.

    Replay begins after a fifth of the rounds at the latest; the second half of the rounds counts.
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
