"""Small real runs: the shipped tiny model, few prompts, short responses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pivot import recipes
from pivot.config import apply_settings
from pivot.method import preset
from pivot.train import assembly
from pivot.train.clock import PhaseClock
from pivot.train.data import training_prompts
from pivot.train.selection import Quotas, Selection

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


@pytest.fixture(scope="session")
def make_trainer():
    """A trainer with all its parts; close its judge after use."""

    def make(config):
        prompts = training_prompts(config)
        policy = assembly.load_model(config)
        judge = assembly.build_judge(config)
        return assembly.build_trainer(config, policy, prompts.by_id, judge, PhaseClock())

    return make


@pytest.fixture(scope="session")
def prime():
    """Fill a trainer's buffer by two rollouts without an update, so that its next step replays with anchors."""

    def fill(trainer):
        for _ in range(2):
            selection = Selection(trainer.sources, 0, Quotas(6, 0))
            groups = trainer._roll_out(selection.next_visits(), selection)
            trainer._verify(groups)
            trainer._record(groups, 0)
        trainer.policy.forget_features()

    return fill
