"""Small real runs: the shipped tiny model, few prompts, short responses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pivot import recipes
from pivot.config import apply_settings
from pivot.method import preset

SMALL = [
    "train.steps=3",
    "train.prompts_per_step=6",
    "train.minibatch_prompts=3",
    "rollout.responses=4",
    "rollout.max_tokens=64",
    "rollout.max_tries=2",
    "data.size=24",
    "data.validation_size=4",
    "eval.every=0",
    "eval.final_prompts=0",
    "checkpoint.every=100",
    "log.rollouts_per_step=0",
]


@pytest.fixture(autouse=True)
def own_rewards_can_be_imported(monkeypatch):
    """`own_rewards.py` beside the tests, as a user's module would be on the path."""
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.fixture(scope="session")
def small_config():
    """The tiny recipe cut down, for a method and further settings."""

    def make(method: str = "pivot", *settings: str):
        config = replace(recipes.get("tiny"), method=preset(method))
        return apply_settings(config, [*SMALL, *settings])

    return make


@pytest.fixture(scope="session")
def repeatable():
    """The rows of a metrics.jsonl without what differs from run to run."""

    def read(run):
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return [{k: v for k, v in row.items() if not k.startswith(("time/", "memory/"))} for row in rows]

    return read


@pytest.fixture(scope="session")
def weights():
    """The weights of a run's newest checkpoint."""
    from safetensors.torch import load_file

    def read(run):
        newest = max((run / "checkpoints").glob("step-*"), key=lambda p: int(p.name[5:]))
        return load_file(newest / "model" / "model.safetensors")

    return read
