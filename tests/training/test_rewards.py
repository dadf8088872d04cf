"""Rewards through the real step: the threshold, the format advantage, the overlong penalty, masked responses."""

from statistics import mean, stdev

import pytest
import torch

from pivot.engines.local import LocalEngine
from pivot.training import build
from pivot.training.clock import PhaseClock
from pivot.training.prompts import training_prompts


def by_length(completions):
    return [len(text) % 4 / 4 for text in completions]


@pytest.fixture
def step():
    """One step of a trainer, whose reward may be a function of this process."""

    def take(config, reward=None):
        prompts, engine = training_prompts(config), LocalEngine.open(config)
        judge = build.build_judge(config, reward)
        trainer = build.build_trainer(config, engine, prompts.by_id, judge, PhaseClock())
        outcome = trainer.step()
        judge.close()
        return trainer, outcome

    return take


def test_a_graded_reward_has_one_threshold_everywhere(small_config, step):
    config = small_config(
        "vaa", "reward.functions=[memory:by_length]", "reward.threshold=0.3", "method.replay=true", "method.beta=3"
    )  # fmt: skip
    trainer, outcome = step(config, by_length)
    assert trainer.method.advantage.format_coef == 0
    batch, row = outcome.batch, 0
    for group in outcome.groups:
        values = by_length([r.text for r in group.responses])
        assert 0 < sum(value > 0.3 for value in values) < 4, "the filter: 0 < k < G"
        centre, spread = mean(values), stdev(values)
        for value in values:
            expected = (value - centre) / (spread + 1e-6)
            assert float(batch.group_advantage_B[row]) == pytest.approx(expected, abs=1e-5), "R itself"
            assert bool(batch.correct_B[row]) == (value > 0.3)
            tokens = batch.advantage_BT[row][batch.mask_BT[row]]
            assert bool((tokens >= 0).all() if value > 0.3 else (tokens <= 0).all()), "Eq. 15"
            row += 1
    recorded = {r.prompt_id: r.num_correct for r in trainer.sources.buffer.rows()}
    for group in outcome.selection.sampled:
        k = sum(value > 0.3 for value in by_length([r.text for r in group.responses]))
        assert recorded.get(group.prompt.id, 0) == k
    assert any(0.3 < v <= 0.5 for g in outcome.groups for v in by_length([r.text for r in g.responses]))


@pytest.mark.parametrize(
    ("settings", "coef"),
    [
        ([], 0.1),
        (["reward.functions=[accuracy]"], 0.1),
        (["reward.format=false"], 0.0),
        (["reward.functions=[accuracy, format]"], 0.0),
        (["reward.functions=[memory:by_length]"], 0.0),
        (["reward.functions=[memory:by_length]", "reward.format=true"], 0.1),
    ],
)
def test_an_own_reward_has_no_format_advantage_unless_asked(small_config, settings, coef):
    config = small_config("dapo", *settings)
    engine, prompts = LocalEngine.open(config), training_prompts(config)
    judge = build.build_judge(config, by_length if "memory" in str(settings) else None)
    trainer = build.build_trainer(config, engine, prompts.by_id, judge, PhaseClock())
    judge.close()
    assert trainer.method.advantage.format_coef == coef


def test_the_overlong_penalty_lowers_the_reward_and_not_the_success(small_config, step):
    _, outcome = step(small_config("grpo", "reward.overlong_cache=24"))
    rewards = [(r.reward, len(r)) for g in outcome.groups for r in g.responses]
    for reward, length in rewards:
        penalty = max(-1.0, min(0.0, (64 - 24 - length) / 24))
        right = float(reward.reason == "correct")
        assert reward.accuracy == pytest.approx(right + penalty)
        assert reward.correct == bool(right)
    assert len({reward.parts["overlong"] for reward, _ in rewards}) > 2
    assert outcome.batch.rewards_B.tolist() == pytest.approx([reward.accuracy for reward, _ in rewards])


def test_truncated_responses_are_left_out_of_loss_and_normaliser(small_config, step):
    settings = ["rollout.max_tokens=44", "train.minibatch_prompts=6", "method.reference_kl_coef=0"]
    config = small_config("dapo", *settings, "reward.mask_truncated=true", "method.entropy_coef=0")
    _, outcome = step(config)
    batch, responses = outcome.batch, [r for g in outcome.groups for r in g.responses]
    truncated = torch.tensor([r.truncated for r in responses])
    assert 0 < int(truncated.sum()) < len(truncated)
    assert torch.equal(batch.mask_BT.any(1), ~truncated)
    longest = max(len(r) for r in responses if not r.truncated)
    assert longest < batch.mask_BT.shape[1], "the widest rows are masked"
    # On-policy every ratio is 1, so that the loss is the mean of -A over the tokens that count.
    total = num_tokens = 0.0
    for group in outcome.groups:
        rewards = group.accuracies
        advantages = [(r - mean(rewards)) / (stdev(rewards) + 1e-6) for r in rewards]
        forms = [r.reward.format for r in group.responses]
        shares = [0.1 * (f - mean(forms)) / (stdev(forms) + 1e-6) for f in forms]
        for response, advantage, share in zip(group.responses, advantages, shares, strict=True):
            if not response.truncated:
                total -= (advantage + share) * len(response)
                num_tokens += len(response)
    assert outcome.update.terms["policy"] == pytest.approx(total / num_tokens, abs=1e-5)
    assert outcome.update.terms["ratio_tokens"] == num_tokens


def test_a_step_of_truncated_responses_alone_has_no_gradient(small_config, step):
    _, outcome = step(small_config("grpo", "rollout.max_tokens=2", "reward.mask_truncated=true"))
    assert outcome.update.terms["policy"] == 0
    assert outcome.update.grad_norms == [0.0, 0.0]
