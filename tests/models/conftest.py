"""Random models of every family as Hugging Face folders, a trainer for them, and prompts."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from pivot import recipes
from pivot.config import apply_settings
from pivot.engines.local import LocalEngine
from pivot.method import preset
from pivot.models.loading import load_policy
from pivot.training import build
from pivot.training.clock import PhaseClock
from pivot.training.prompts import training_prompts
from pivot.training.selection import Quotas, Selection
from pivot.types import Prompt

sys.path.insert(0, str(Path(__file__).parent))
from families import build_folder


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory):
    """Family -> its folder, built once; `qwen2_5_vl-real` has the real tokenizer and its 151,936 rows."""
    built = {}

    def make(name, shared=None):
        if name not in built:
            family, _, real = name.partition("-")
            other = (
                (AutoTokenizer.from_pretrained(shared / "qwen2_5_tokenizer"), 151_936)
                if real
                else (None, None)
            )
            built[name] = build_folder(tmp_path_factory.mktemp(name), family, *other)
        return built[name]

    return make


REWARD = "def odd(completions, **columns):\n    return [float(len(text) % 2) for text in completions]\n"


@pytest.fixture
def make_trainer(tmp_path, monkeypatch):
    """PIVOT on a random model, with a reward that half of its responses get, so that groups carry a signal."""

    def make(folder, *settings):
        (tmp_path / "odd_reward.py").write_text(REWARD)
        monkeypatch.syspath_prepend(tmp_path)
        config = apply_settings(
            replace(recipes.get("tiny"), method=preset("pivot")),
            [f"model.path={folder}", "reward.function=odd_reward:odd", "train.prompts_per_step=4",
             "train.minibatch_prompts=2", "rollout.responses=4", "rollout.max_tokens=8", "rollout.max_tries=2",
             "data.size=8", "method.warmup_share=0", "train.lr=1e-3", "train.weight_decay=0", *settings],
        )  # fmt: skip
        engine, judge = LocalEngine.open(config), build.build_judge(config)
        return build.build_trainer(config, engine, training_prompts(config).by_id, judge, PhaseClock())

    return make


@pytest.fixture(scope="session")
def remember_responses():
    """Fill a trainer's buffer. A random model hardly ever ends its turn, so the turns are ended here."""

    def remember(trainer):
        selection = Selection(trainer.sources, 0, Quotas(4, 0))
        groups = trainer._sample(selection.draw(), selection)
        for response in (r for group in groups for r in group.responses):
            response.token_ids_T[-1] = trainer.engine.policy.end_ids[0]
            response.truncated = False
        trainer._reward(groups)
        trainer._record(groups, 0)
        trainer.engine.policy.forget_features()

    return remember


@pytest.fixture
def model(folder):
    """The model in the folder that a test module's own fixture builds."""
    return load_policy(str(folder))


@pytest.fixture
def prompts(picture):
    """Prompts with two images, none and one."""
    return [
        Prompt("two", "<image>Compare <image>.", "1", (picture(60, 130), picture(170, 90, "blue"))),
        Prompt("none", "How much is 2 + 2?", "4"),
        Prompt("one", "Read <image> it.", "1", (picture(100, 100, "green"),)),
    ]
