"""Synthetic results of a plan, as cells would have written them, with effects that are known."""

import json

import numpy as np
import pytest

from experiments.tiny_world.cells import identity, result_path
from experiments.tiny_world.plan import OVERHEAD
from pivot.seeding import stable_seed

TASKS = ["angle", "count", "bars", "segments", "clock"]


def synthetic(plan, cell, accuracy: float) -> dict:
    """A cell's file whose accuracy is about `accuracy`; the prompts' difficulties are the same in all cells."""
    rng = np.random.default_rng(stable_seed(cell.world, cell.arm, cell.seed, *cell.settings))
    difficulty = np.random.default_rng(0).normal(0, 0.15, size=100)
    about = {
        "cell": {
            "world": cell.world,
            "arm": cell.arm,
            "seed": cell.seed,
            "settings": list(cell.settings),
        },
        "plan": plan.digest,
        "identity": identity(plan, cell),
        "machine": {"pivot": "0", "torch": "2", "python": "3.11", "processor": "a processor"},
    }
    if cell.arm == OVERHEAD:
        timed = {
            arm: {"processor": 1.0 + i / 10, "buffer_megabytes": 0.1} for i, arm in enumerate(plan.timed)
        }
        return {**about, "overhead": timed, "seconds": {"cell": 5.0}}

    def correct(shift: float) -> list[int]:
        return rng.binomial(8, np.clip(accuracy + shift + difficulty, 0, 1)).tolist()

    shifts = {"test": 0.0, "ood": -0.2, "validation": 0.0, "blank": -0.3}
    sets = {
        name: {"samples": 8, "tasks": TASKS, "correct": correct(shift), "format": 1.0, "length": 40.0}
        for name, shift in shifts.items()
    }
    kinds = {
        "right": {"right percept": [20, 0.6, 2.0], "words": [100, 0.02, 9.0]},
        "wrong": {
            "right percept": [10, 0.5, 1.0],
            "wrong percept": [10, -0.4, 6.0],
            "words": [100, 0.02, 12.0],
        },
    }
    looks = {
        "dependency": rng.uniform(0.2, 0.3, 20).round(4).tolist(),
        "attention": rng.uniform(0.1, 0.2, 20).round(4).tolist(),
        "attention_layers": [0.1, 0.2, 0.1],
        "kinds": kinds,
        "origins": {"looked right": [30, 2], "looked wrong": [3, 20], "guessed": [5, 20]},
    }
    found = {**about, "sets": sets, "looks": looks, "seconds": {"step": 1.0, "cell": 10.0}}
    if cell.is_single:
        return found
    points = np.arange(10, 210, 10)
    curve = {
        "steps": points.tolist(),
        "accuracy": (accuracy * (1 - np.exp(-points / 60)) + rng.normal(0, 0.01, 20)).tolist(),
        "seconds": (points * 1.0).tolist(),
    }
    dynamics = {"steps": [5, 10], "reward/accuracy": [0.3, 0.4]}
    return {**found, "curve": curve, "dynamics": dynamics}


@pytest.fixture(scope="session")
def write_results():
    """Write all cells of a plan but those that `skip` names, with an accuracy for each."""

    def write(plan, folder, accuracy, skip=lambda cell: False):
        folder.mkdir(parents=True, exist_ok=True)
        for cell in plan.cells():
            if not skip(cell):
                found = synthetic(plan, cell, accuracy(cell))
                result_path(plan, cell, folder).write_text(json.dumps(found))
        return folder

    return write
