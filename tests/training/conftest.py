"""A trainer with all its parts, and a primed buffer."""

import re
from pathlib import Path

import pytest

from pivot.engines.local import LocalEngine
from pivot.training import build
from pivot.training.clock import PhaseClock
from pivot.training.prompts import training_prompts
from pivot.training.selection import Quotas, Selection


@pytest.fixture(scope="session")
def make_trainer():
    """A trainer with all its parts; close its judge after use."""

    def make(config):
        prompts = training_prompts(config)
        engine, judge = LocalEngine.open(config), build.build_judge(config)
        return build.build_trainer(config, engine, prompts.by_id, judge, PhaseClock())

    return make


@pytest.fixture(scope="session")
def prime():
    """Fill a trainer's buffer by two rollouts without an update, so that its next step replays with anchors.

    They are sampled once for all trainers that sample alike: the weights are those of the tiny model.
    """
    sampled = {}

    def rollout(trainer):
        selection = Selection(trainer.sources, 0, Quotas(6, 0))
        drawn = selection.draw()
        key = (
            trainer.plan.sampling,
            trainer.plan.responses,
            trainer.plan.seed,
            *(g.prompt.id for g in drawn),
        )
        if key not in sampled:
            sampled[key] = trainer._sample(drawn, selection)
            trainer._reward(sampled[key])
        return sampled[key]

    def fill(trainer):
        for _ in range(2):
            trainer._record(rollout(trainer), 0)
        trainer.engine.policy.forget_features()

    return fill


@pytest.fixture(scope="session")
def explained():
    """The metrics that docs/metrics.md explains."""
    page = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
    return set(re.findall(r"`([a-z_]+(?:/[a-z0-9_]+)?)`", page.read_text()))
