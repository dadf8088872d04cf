"""Eq. 2, 14, 15 and the format advantage."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from pivot.method import add_visual_advantage, group_advantage, modulate_advantage, protect_sign

examples = settings(derandomize=True, deadline=None, max_examples=25)
seeds = st.integers(0, 2**32 - 1)


def test_group_advantage_by_hand() -> None:
    # Rewards 1 0 0 0: mean 1/4, unbiased variance (9/16 + 3/16) / 3 = 1/4, so 0.75 / 0.5 and -0.25 / 0.5.
    advantage = group_advantage(torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64), epsilon=0.0)
    assert advantage.tolist() == [[1.5, -0.5, -0.5, -0.5]]


def test_group_advantage_without_std_by_hand() -> None:
    # Rewards 1 0 0 0: mean 1/4, and nothing is divided, however small the spread.
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.5, 0.25, 0.25, 0.0]])
    advantage = group_advantage(rewards, normalise_std=False)
    assert advantage.tolist() == [[0.75, -0.25, -0.25, -0.25], [0.25, 0.0, 0.0, -0.25]]


@pytest.mark.parametrize("normalise_std", [True, False])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1])
def test_equal_rewards_give_exactly_zero(reward: float, normalise_std: bool) -> None:
    advantage = group_advantage(torch.full((2, 7), reward), normalise_std=normalise_std)
    assert torch.equal(advantage, torch.zeros(2, 7))


def test_a_group_of_one_has_no_advantage() -> None:
    assert group_advantage(torch.ones(3, 1)).tolist() == [[0.0], [0.0], [0.0]]


@examples
@given(rewards=st.lists(st.lists(st.floats(-3, 3), min_size=4, max_size=4), min_size=1, max_size=5))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_group_advantage_against_the_statistics_module(
    rewards: list[list[float]], dtype: torch.dtype
) -> None:
    given = torch.tensor(rewards, dtype=dtype)
    expected = []
    for group in given.tolist():
        mean, deviation = statistics.mean(group), statistics.stdev(group)
        spread = max(group) > min(group)
        expected.append([(reward - mean) / (deviation + 1e-6) if spread else 0.0 for reward in group])
    # Rounding of the mean is divided by a deviation of at least epsilon = 1e-6.
    tolerance = 2e-1 if dtype == torch.float32 else 1e-8
    centred = [[reward - statistics.mean(group) for reward in group] for group in given.tolist()]
    assert_close(
        group_advantage(given, normalise_std=False), torch.tensor(centred, dtype=dtype), rtol=0, atol=1e-6
    )
    actual = group_advantage(given)
    well_spread = given.std(dim=1) > 1e-2
    assert_close(actual, torch.tensor(expected, dtype=dtype), rtol=1e-4, atol=tolerance)
    assert_close(actual[well_spread], torch.tensor(expected, dtype=dtype)[well_spread], rtol=1e-4, atol=1e-4)


@examples
@given(seed=seeds, beta=st.floats(0, 3))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_modulation_against_a_loop(ragged, seed: int, beta: float, dtype: torch.dtype) -> None:
    batch = ragged(seed, dtype, holes=True)
    actual = modulate_advantage(
        batch.advantage_B, batch.advantage_BT, batch.correct_B, batch.mask_BT, beta=beta
    )
    expected = torch.zeros_like(actual)
    for i in range(len(batch.mask_BT)):
        for t in batch.valid(i):
            a, u = float(batch.advantage_B[i]), float(batch.advantage_BT[i, t])
            modulated = a + beta * abs(a) * u
            expected[i, t] = max(modulated, 0.0) if batch.correct_B[i] else min(modulated, 0.0)
    assert_close(actual, expected)


def test_modulation_by_hand() -> None:
    advantage = torch.tensor([1.5, -0.5])
    utility = torch.tensor([[0.4, -3.0], [0.4, 3.0]])
    actual = modulate_advantage(advantage, utility, torch.tensor([1.0, 0.0]), torch.ones(2, 2), beta=0.5)
    # 1.5 + 0.5*1.5*0.4 = 1.8; 1.5 - 2.25 < 0 is protected; -0.5 + 0.1 = -0.4; -0.5 + 0.75 > 0 is protected.
    assert_close(actual, torch.tensor([[1.8, 0.0], [-0.4, 0.0]]))


@examples
@given(seed=seeds, beta=st.floats(0, 100))
def test_protection_never_flips_a_sign(ragged, seed: int, beta: float) -> None:
    batch = ragged(seed)
    sign = torch.where(batch.correct_B, 1.0, -1.0)
    advantage = batch.advantage_B.abs() * sign
    actual = modulate_advantage(advantage, batch.advantage_BT, batch.correct_B, batch.mask_BT, beta=beta)
    assert bool((actual * sign[:, None] >= 0).all())


def test_beta_zero_leaves_the_advantage() -> None:
    advantage = group_advantage(torch.tensor([[1.0, 0.0, 1.0]])).flatten()
    correct = torch.tensor([True, False, True])
    actual = modulate_advantage(advantage, torch.randn(3, 5), correct, torch.ones(3, 5), beta=0.0)
    assert torch.equal(actual, advantage[:, None].expand(3, 5))


def test_no_gradient_through_the_advantage() -> None:
    utility = torch.randn(2, 3, requires_grad=True)
    advantage = add_visual_advantage(torch.ones(2), utility, torch.ones(2, 3), beta=0.5)
    assert not advantage.requires_grad
    assert not protect_sign(utility, torch.ones(2)).requires_grad


def test_a_half_precision_reward_is_counted_in_float32() -> None:
    advantage = group_advantage(torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.bfloat16))
    assert advantage.dtype == torch.float32
    assert advantage[0, 0].item() == pytest.approx((2 / 3) / (math.sqrt(1 / 3) + 1e-6))
