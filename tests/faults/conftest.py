"""Small real runs for fault tests, and the modules beside them on the path."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

SMALL = [
    "train.steps=3",
    "train.prompts_per_step=3",
    "train.minibatch_prompts=2",
    "rollout.responses=4",
    "rollout.max_tokens=48",
    "rollout.max_tries=1",
    "data.size=12",
    "data.validation_size=4",
    "method.warmup_share=0",
    "eval.every=0",
    "eval.final_prompts=0",
    "checkpoint.every=1",
    "log.rollouts_per_step=0",
]


@pytest.fixture(scope="session")
def small_config():
    """The tiny recipe cut down to steps of a fraction of a second, for a method and further settings."""
    from pivot import recipes
    from pivot.config import apply_settings
    from pivot.config.methods import settings_for
    from pivot.method import preset

    def make(method: str = "pivot", *settings: str):
        config = replace(recipes.get("tiny"), method=preset(method))
        return apply_settings(config, [*settings_for(config.method, SMALL), *settings])

    return make


def pytest_terminal_summary(terminalreporter):
    """`make soak` ends with its table."""
    from soak_table import table

    if any("soak_" in str(path) for path in terminalreporter.config.args):
        terminalreporter.write_line("")
        terminalreporter.write_line(table())
