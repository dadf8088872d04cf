"""Training with vLLM in the same process; runs in an environment with vLLM (`make test-vllm`), skips elsewhere."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import torch

from pivot.engines import local
from pivot.engines.local import LocalEngine
from pivot.runs.metrics import step_metrics
from pivot.runs.run import resume, train
from pivot.training import build
from pivot.training.clock import PhaseClock
from pivot.training.prompts import training_prompts

pytest.importorskip("vllm")

KL, RATIO = "rollout/mismatch_kl", "rollout/mismatch_max_ratio"
LIMIT = 1e-4
SETTINGS = (
    "train.prompts_per_step=8",
    "train.minibatch_prompts=4",
    "rollout.max_tries=1",
    "method.warmup_share=0.25",
)
LEARNING = (
    *SETTINGS,
    "train.steps=12",
    "data.size=64",
    "train.lr=4e-4",
    "eval.every=6",
    "eval.samples=2",
    "eval.final_prompts=4",
    "eval.final_samples=2",
    "eval.blank=false",
)


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def accuracy(found):
    return [sum(row["reward/accuracy"] for row in part) / 4 for part in (found[:4], found[-4:])]


@pytest.mark.parametrize("method", ["pivot", "dapo"])
def test_accuracy_rises_as_with_the_native_sampler_and_no_update_leaves_a_mismatch(
    tmp_path, small_config, monkeypatch, capsys, method
):
    loaded, real = [], local.load_policy
    monkeypatch.setattr(local, "load_policy", lambda *args: loaded.append(args) or real(*args))
    found = {}
    for sampler in ("vllm", "native"):
        loaded.clear()
        config = small_config(method, *LEARNING, f"sampling.engine={sampler}")
        train(config, tmp_path / sampler)
        assert len(loaded) == 1, "training and evaluation share one model"
        found[sampler] = rows(tmp_path / sampler)
        scores = json.loads((tmp_path / sampler / "eval" / "scores.json").read_text())["evaluations"]
        assert {entry["settings"]["engine"] for entry in scores} == {sampler}
        assert {entry["when"] for entry in scores} == {"before", "after"}
    assert len(found["vllm"]) == 12
    assert all(row[KL] < LIMIT and row[RATIO] < 1 + LIMIT for row in found["vllm"])
    assert all(row["rollout/entropy"] > 0 for row in found["vllm"])
    assert not any(KL in row for row in found["native"]), "it is the trainer"
    (before, after), (native_before, native_after) = accuracy(found["vllm"]), accuracy(found["native"])
    assert after > before + 0.1
    assert native_after > native_before + 0.1
    assert after == pytest.approx(native_after, abs=0.15)
    assert "eval/accuracy" in found["vllm"][5]
    assert "differ from the trainer's" not in capsys.readouterr().out


@pytest.mark.parametrize("forms", [(), ("model.lora_rank=4", "train.lr=1e-2")], ids=["all weights", "lora"])
def test_stop_and_resume_equals_never_having_stopped(tmp_path, small_config, repeatable, weights, forms):
    settings = (
        *SETTINGS,
        "train.steps=4",
        "checkpoint.every=2",
        "eval.every=2",
        "sampling.engine=vllm",
        *forms,
    )
    train(small_config("pivot", *settings), tmp_path / "whole", quiet=True)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "checkpoints" / "step-4")
    resume(tmp_path / "cut", quiet=True)
    assert repeatable(tmp_path / "cut") == repeatable(tmp_path / "whole")
    a, b = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(a[name], b[name]) for name in a)
    found = rows(tmp_path / "whole")
    assert all(row[KL] < LIMIT and row[RATIO] < 1 + LIMIT for row in found)
    assert sum(row["optim/updates"] for row in found) >= 4, "so that the merged adapters have moved"


def test_noisy_rollouts_are_compared_with_the_trainer_on_their_clean_half_alone(tmp_path, small_config):
    config = small_config("noisy-rollout", *SETTINGS, "train.steps=2", "sampling.engine=vllm")
    train(config, tmp_path / "run", quiet=True)
    first, second = rows(tmp_path / "run")
    assert (first["rollout/noise_level"], second["rollout/noise_level"]) == (496, 0)
    assert all(row[KL] < LIMIT and row[RATIO] < 1 + LIMIT for row in (first, second))
    assert first["optim/updates"] > 0


@pytest.fixture(scope="module")
def make_trainer(small_config):
    """Trainers whose every step samples the same prompts; closed at the end."""
    made = []

    def make(*settings):
        config = small_config(
            "dapo", *SETTINGS, "data.size=8", "train.lr=1e-3", "sampling.engine=vllm", *settings
        )
        engine, judge = LocalEngine.open(config), build.build_judge(config)
        prompts = training_prompts(config).by_id
        made.append(build.build_trainer(config, engine, prompts, judge, PhaseClock()))
        return made[-1]

    yield make
    for trainer in made:
        trainer.engine.close()
        trainer.judge.close()


def mismatch(trainer):
    """Of a step that trains."""
    for _ in range(5):
        outcome = trainer.step()
        row = step_metrics(outcome, trainer.method, trainer.sources.buffer)
        if row["optim/updates"]:
            return row[KL], row[RATIO], outcome.batch
    raise AssertionError("no step has updated the weights")


@pytest.fixture(scope="module")
def trainer(make_trainer):
    return make_trainer()


@pytest.mark.parametrize("broken", ["update", "cache"])
def test_a_skipped_update_or_a_stale_cache_is_caught(trainer, monkeypatch, broken):
    sampler = trainer.engine.sampler
    kl, ratio, batch = mismatch(trainer)
    assert kl < LIMIT
    assert ratio < 1 + LIMIT
    assert batch.importance_weight_BT is None
    cap = 1.05
    with monkeypatch.context() as patch:
        if broken == "update":
            patch.setattr(sampler, "_load", lambda: None)
        else:
            patch.setattr(sampler._llm, "reset_prefix_cache", lambda: True)
        patch.setattr(trainer, "plan", replace(trainer.plan, importance_cap=cap))
        kl, ratio, batch = mismatch(trainer)
    assert kl > LIMIT
    assert ratio > 1.1
    weights_N = batch.importance_weight_BT[batch.mask_BT]
    assert float(weights_N.max()) == pytest.approx(cap)
    assert float(weights_N.min()) < 1
    sampler.weights_changed()
    kl, ratio, _ = mismatch(trainer)
    assert kl < LIMIT, "and it recovers"


def test_vllm_itself_refuses_a_stale_encoder_cache(make_trainer, monkeypatch):
    trainer = make_trainer()
    mismatch(trainer)
    monkeypatch.setattr(trainer.engine.sampler._llm.llm_engine, "reset_encoder_cache", lambda: None)
    with pytest.raises(RuntimeError, match="Encoder cache miss"):
        trainer.step()


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        (("rollout.top_p=0.8",), 1 + LIMIT),
        # vLLM's log-probs at another temperature leave out the tokens that cannot be drawn: a little for banned ones,
        # and up to the share that top-p cuts off.
        (("rollout.temperature=0.7",), 1.01),
        (("rollout.temperature=0.7", "rollout.top_p=0.8"), 1.01 / 0.8),
    ],
)
def test_the_sampler_and_the_trainer_speak_of_the_same_distribution(make_trainer, settings, most):
    _, ratio, _ = mismatch(make_trainer(*settings))
    assert ratio < most
    if most > 1.1:
        assert ratio > 1.01
    assert math.isfinite(ratio)


def test_torch_keeps_its_threads(trainer):
    """vLLM on CPUs replaces torch.set_num_threads in its process, which is this one."""
    assert trainer.engine.sampler.name == "vllm"
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)
