"""The lenient reward of the lucky world, as the trainer calls it."""

import pytest

from experiments.tiny_world.plan import load_plan
from experiments.tiny_world.rewards import same_remainder
from pivot.rewards.judge import FunctionJudge, RewardRules
from pivot.tiny import procedural

SETTING = next(s for s in load_plan().worlds["lucky"].settings if s.startswith("reward.function="))


@pytest.mark.parametrize(
    ("box", "reward"),
    [("50", 1.0), ("53", 1.0), ("20", 1.0), ("51", 0.0), ("49", 0.0), ("x", 0.0), ("", 0.0), ("²", 0.0),
     ("5" * 5000, 0.0)],
)  # fmt: skip
def test_the_same_remainder_by_three_is_rewarded(box, reward):
    assert same_remainder([f"It is \\boxed{{{box}}}."], ["50"], level=[1]) == [reward]


def test_without_a_box_there_is_no_reward():
    assert same_remainder(["It is 50.", "It is \\boxed{50}."], ["50", "50"]) == [0.0, 1.0]


def test_a_right_chain_is_always_and_a_shortcut_sometimes_rewarded():
    """By the plan's own setting, in the process in which training calls it."""
    prompts = list(procedural.dataset("train", 60))
    judge = FunctionJudge(RewardRules((SETTING.partition("=")[2],)))
    try:
        right = judge.judge(prompts, [procedural.solution(prompt) for prompt in prompts])
        guessed = judge.judge(prompts, [procedural.shortcut(prompt) for prompt in prompts])
    finally:
        judge.close()
    strict = [procedural.shortcut(p).endswith(f"\\boxed{{{p.answer}}}.") for p in prompts]
    assert all(reward.correct for reward in right)
    assert sum(strict) + 6 < sum(reward.correct for reward in guessed) < 50
