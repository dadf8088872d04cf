"""`pivot pretrain`, shortened: from nothing to both checkpoints and their figures, the same for a seed."""

import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForImageTextToText

from pivot import tiny
from pivot.cli import main
from pivot.tiny.pretrain import Plan, pretrain
from pivot.tiny.tokenizer import build_tokenizer

SHORT = ["pretrain", "--steps", "4", "--batch-size", "4", "--prompts", "5", "--samples", "1"]


def weights(folder):
    return AutoModelForImageTextToText.from_pretrained(folder).state_dict()


@pytest.fixture(scope="module")
def both_starts(tmp_path_factory):
    out = tmp_path_factory.mktemp("both")
    assert main([*SHORT, "--out", str(out)]) == 0
    return out


def test_a_short_run_records_figures_of_both_starts(both_starts):
    recorded = json.loads((both_starts / "figures.json").read_text())
    assert set(recorded) == set(tiny.STARTS)
    for start in tiny.STARTS:
        assert set(recorded[start]["conditions"]) == {"train", "test", "ood", "blank", "masked"}


@pytest.mark.parametrize("start", tiny.STARTS)
def test_a_start_made_again_and_alone_is_the_same(both_starts, start, tmp_path, capsys):
    assert main([*SHORT, "--start", start, "--out", str(tmp_path)]) == 0
    assert "| **all** |" in capsys.readouterr().out
    assert [folder.name for folder in tmp_path.iterdir() if folder.is_dir()] == [start]
    first, again = weights(both_starts / start), weights(tmp_path / start)
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_another_seed_is_another_model():
    plan = Plan(skill_steps=2, batch_size=2)
    tokenizer = build_tokenizer()
    losses = {seed: [] for seed in (0, 1)}
    for seed, found in losses.items():
        for _ in pretrain(
            tokenizer, ["hard"], replace(plan, seed=seed), lambda _, loss, f=found: f.append(loss)
        ):
            pass
    assert len(losses[0]) == len(losses[1]) == plan.num_steps(["hard"])
    assert losses[0] != losses[1]


def test_the_learning_rate_rises_holds_and_falls():
    plan = Plan(skill_steps=1000, warmup_steps=100, skill_lr=1.0, decay_from=0.5)
    assert plan.skill_rate(0) == pytest.approx(0.01)
    assert plan.skill_rate(300) == 1.0
    assert plan.skill_rate(750) == pytest.approx(0.5)
    assert plan.skill_rate(999) == pytest.approx(0.02)


def test_impossible_sizes_are_the_users_mistake(capsys):
    assert main(["pretrain", "--steps", "0"]) == 2
    assert "--steps is 0" in capsys.readouterr().err
