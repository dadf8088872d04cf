"""Equivalences through the real loop: real model, real rollouts, real verifier."""

import json
import math

import numpy as np
import pytest
import torch

from pivot.config import validate
from pivot.runs.run import train

METHODS = ("grpo", "dapo", "papo", "vppo", "pepo", "pgpo", "calibrl", "calibrl-vaa", "calibrl-original",
           "off-pg-vaa", "off-sft-vaa", "ser", "vaa", "ser-vaa-local", "pivot", "pivot-grpo")  # fmt: skip


def same_weights(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def dapo_run(tmp_path_factory, small_config):
    run = tmp_path_factory.mktemp("step") / "dapo"
    train(small_config("dapo"), run, quiet=True)
    return run


@pytest.mark.parametrize(
    ("method", "setting"), [("vaa", "method.beta=0"), ("ser", "method.replay_share=0"), ("pivot", None)]
)
def test_a_module_that_is_off_leaves_exactly_dapo(
    tmp_path, small_config, repeatable, weights, method, setting, dapo_run
):
    off = [setting] if setting else ["method.beta=0", "method.replay_share=0"]
    train(small_config(method, *off), tmp_path / "off", quiet=True)
    assert same_weights(weights(dapo_run), weights(tmp_path / "off"))
    for plain, other in zip(repeatable(dapo_run), repeatable(tmp_path / "off"), strict=True):
        assert plain.items() <= other.items()


def test_a_module_that_is_on_is_not_dapo(tmp_path, small_config, weights, dapo_run):
    train(small_config("vaa"), tmp_path / "vaa", quiet=True)
    assert not same_weights(weights(dapo_run), weights(tmp_path / "vaa"))


@pytest.mark.parametrize(
    "method",
    [
        "pivot",
        "papo",
        "vppo",
        "pepo",
        "pgpo",
        "pivot-grpo",
        "off-sft-vaa",
        "off-pg-vaa",
        "gspo+pivot",
        "dr-grpo",
        "exgrpo",
    ],
)
def test_micro_batches_and_layout_change_nothing(small_config, method, make_trainer, prime):
    """One update, so that differences cannot grow: loss, terms and gradient norm to 1e-5."""
    found = []
    splits = (("tree", 16384), ("tree", 500), ("repeated", 150))
    if method == "pivot":
        splits += (("repeated", 16384), ("auto", 700))
    for layout, budget in splits:
        config = small_config(
            method, "train.minibatch_prompts=6", "method.warmup_share=0", "method.pepo_schedule=constant",
            "rollout.max_tries=1", f"train.layout={layout}", f"train.micro_batch_tokens={budget}",
        )  # fmt: skip
        trainer = make_trainer(config)
        prime(trainer)
        outcome = trainer.step()
        trainer.judge.close()
        assert outcome.update is not None
        found.append({"norm": outcome.update.grad_norms[0], **outcome.update.terms})
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        for name, value in found[0].items():
            assert other[name] == pytest.approx(value, rel=1e-5, abs=1e-5), name


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(tmp_path, small_config, repeatable, method, explained):
    config = small_config(method, "train.steps=2", "method.warmup_share=0", "log.rollouts_per_step=1")
    result = train(config, tmp_path / method, quiet=True)
    assert result.finished
    rows = repeatable(tmp_path / method)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["optim/updates"] > 0 and row["optim/grad_norm"] > 0 for row in rows)
    expected = {
        "calibration": config.method.settings()["anchor_use"] == "calibrate",
        "sft": config.method.trains_on_targets,
        "off_policy": config.method.trains_on_experience,
        "kl": config.method.needs_reference,
        "perception": config.method.settings()["perception_coef"] > 0,
    }
    for term, is_on in expected.items():
        assert (f"loss/{term}" in rows[-1]) == is_on, term
    assert set().union(*rows) <= explained
    record = json.loads((tmp_path / method / "rollouts.jsonl").read_text().splitlines()[0])
    lengths = {
        len(record["responses"][0][name]) for name in ("tokens", "logprobs", "entropy", "advantage_final")
    }
    assert len(lengths) == 1


def test_calibrl_as_its_own_script_runs_it(small_config, make_trainer):
    """One real step and update: unfiltered groups, centred rewards, and a guide past the demonstrations' ends."""
    trainer = make_trainer(
        small_config("calibrl-original", "train.minibatch_prompts=6", "method.warmup_share=0")
    )
    before = {name: p.detach().clone() for name, p in trainer.engine.policy.model.named_parameters()}
    outcome = trainer.step()
    trainer.judge.close()
    batch, guide, num_past_end = outcome.batch, 0.0, 0
    assert len(outcome.groups) == 6
    for g, group in enumerate(outcome.groups):
        total = [r.reward.accuracy + 0.1 * r.reward.format for r in group.responses]
        mean = {"accuracy": sum(group.accuracies) / 4, "total": sum(total) / 4}
        anchor = group.anchor.logprobs_T.tolist()
        for i, response in enumerate(group.responses):
            row = 4 * g + i
            weight = abs(group.accuracies[i] - mean["accuracy"])
            expected = torch.full((len(response),), total[i] - mean["total"])
            torch.testing.assert_close(batch.advantage_BT[row, : len(response)], expected)
            for t, logprob in enumerate(batch.clean_logprobs_BT[row, : len(response)].tolist()):
                num_past_end += t >= len(anchor)
                x = logprob - (anchor[t] if t < len(anchor) else 0.0)
                x = -x if group.accuracies[i] > 0.5 else x
                guide += weight * (x if x > 0 else 0.5 * x)
    assert num_past_end > 0
    # The first update's log-probs are those of the step's start, so the term is known before it.
    terms = outcome.update.terms
    assert terms["calibration"] == pytest.approx(guide / int(batch.mask_BT.sum()), rel=1e-4)
    assert terms["total"] == pytest.approx(terms["policy"] + 0.1 * terms["calibration"], rel=1e-5)
    assert not {"kl", "entropy"} & terms.keys()
    assert any(not torch.equal(p, before[name]) for name, p in trainer.engine.policy.model.named_parameters())


@pytest.mark.parametrize(
    ("method", "settings", "probability"),
    [
        ("vppo", (), 0.5),
        ("pivot", (), 0.6),
        ("papo", (), 0.6),
        ("vppo", ("corruption.probability=0.6",), 0.6),
        ("pivot", ("corruption.probability=0",), 0.0),
        ("pivot", ("method.corrupt_probability=0.3",), 0.3),
    ],
)
def test_how_much_of_the_image_is_hidden_is_the_methods_unless_said(
    small_config, make_trainer, method, settings, probability
):
    """The masks of a real step's prompts, of which that share is black."""
    config = small_config(method, *settings)
    validate(config)
    trainer = make_trainer(config)
    trainer.judge.close()
    corruptor = trainer.engine.corruptor
    hidden = []
    for prompt in list(trainer.sources.prompts.values())[:8]:
        encoded = trainer.engine.prepare(prompt)
        for step in range(40):
            for before, after in zip(encoded.images, corruptor.corrupt(encoded, step).images, strict=True):
                hidden += (before.pixels != after.pixels).any(dim=1).tolist()
    assert np.mean(hidden) == pytest.approx(probability, abs=0.02)


def test_recomputed_old_logprobs_are_those_of_decoding(small_config, make_trainer):
    batches = []
    for recompute in ("false", "true"):
        trainer = make_trainer(small_config("vaa", f"rollout.recompute_logprobs={recompute}"))
        batches.append(trainer.step().batch)
        trainer.judge.close()
    torch.testing.assert_close(batches[0].old_logprobs_BT, batches[1].old_logprobs_BT, atol=3e-5, rtol=0)
    torch.testing.assert_close(batches[0].entropy_BT, batches[1].entropy_BT, atol=3e-5, rtol=0)


def test_prompts_without_an_image_have_no_support(tmp_path, small_config, make_trainer):
    rows = [
        {"id": str(i), "problem": f"What is {i} + 1?", "answer": str(i + 1), "images": []} for i in range(8)
    ]
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    trainer = make_trainer(small_config("vaa", f"data.train={path}", "data.size=null"))
    selection = trainer._open(1)
    groups = trainer._sample(selection.draw(), selection)
    trainer._reward(groups)
    batch = trainer._score(*trainer._batch(groups, 1), 1)
    assert torch.equal(batch.corrupted_logprobs_BT, batch.clean_logprobs_BT)
    trainer.judge.close()


def test_training_scores_of_a_replayed_group_never_include_its_anchor(small_config, make_trainer, prime):
    """The group's advantages are those of its own G rewards."""
    trainer = make_trainer(small_config("ser", "method.warmup_share=0"))
    prime(trainer)
    outcome = trainer.step()
    trainer.judge.close()
    replayed = [g for g in outcome.groups if g.replayed]
    assert replayed
    assert all(len(g.responses) == 4 for g in outcome.groups)
    for g, group in enumerate(outcome.groups):
        rewards = torch.tensor(group.accuracies)
        expected = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        torch.testing.assert_close(outcome.batch.group_advantage_B[4 * g : 4 * g + 4], expected)
        assert (group.anchor is not None) == group.replayed


def test_every_metric_is_explained(tmp_path, small_config, explained):
    """Those that every run has; the methods' own are looked up where each of them trains."""
    config = small_config("pivot-adaptive", "train.steps=2", "method.warmup_share=0", "eval.every=1")
    train(config, tmp_path / "run", quiet=True)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert set().union(*rows) <= explained


@pytest.mark.parametrize(
    "setting",
    [
        "corruption.kind=grey",
        "corruption.kind=gaussian",
        "corruption.raw=true",
        "method.corrupt_probability=0.5",
        "method.normalise_std=false",
        "method.calibration=position",
        "method.calibration=position_zero",
        "method.calibration=seq_mean",
        "method.calibration=seq_sum",
        "method.calibration_tokens=all",
        "method.support_floor=null",
        "method.utility_bound=0.2",
        "method.soften_wrong=false",
        "method.adapt_beta=true",
        "method.format_position=before",
        "method.entropy_form=exact",
    ],
)
def test_every_switch_changes_the_step_and_stays_finite(one_step, one_plain_step, setting):
    """Through the real step, with replay and anchors; a switch that changes nothing would not be wired."""
    total, norms = one_step(setting)
    assert math.isfinite(total)
    assert all(map(math.isfinite, norms))
    assert (total, norms) != one_plain_step


@pytest.fixture(scope="module")
def one_step(small_config, make_trainer, prime):
    """Loss and gradient norms of a step of PIVOT with replay, with these settings."""

    def take(*settings):
        trainer = make_trainer(
            small_config("pivot", "method.warmup_share=0", "train.minibatch_prompts=6", *settings)
        )
        prime(trainer)
        outcome = trainer.step()
        trainer.judge.close()
        assert outcome.update is not None
        return outcome.update.terms["total"], outcome.update.grad_norms

    return take


@pytest.fixture(scope="module")
def one_plain_step(one_step):
    """A step without a switch repeats exactly, so that a difference is the switch's."""
    found = one_step()
    assert found == one_step()
    return found
