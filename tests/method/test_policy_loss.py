"""Eq. 3 with its clips, the two means, k3 and GRPO's KL."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from pivot.method import (
    k3_divergence,
    policy_loss,
    policy_terms,
    sequence_mean,
    token_mean,
    visual_support,
)

examples = settings(derandomize=True, deadline=None, max_examples=25)
seeds = st.integers(0, 2**32 - 1)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def naive_token_loss(logprob: float, old: float, advantage: float, dual_clip: float | None) -> float:
    ratio = math.exp(logprob - old)
    clipped = min(max(ratio, 0.8), 1.28)
    value = min(ratio * advantage, clipped * advantage)
    if dual_clip is not None and advantage < 0:
        value = max(value, dual_clip * advantage)
    return -value


@examples
@given(seed=seeds, dual_clip=st.sampled_from([None, 1.1, 3.0]))
@dtypes
def test_policy_loss_against_a_loop(ragged, seed: int, dual_clip: float | None, dtype: torch.dtype) -> None:
    batch = ragged(seed, dtype, holes=True)
    total = sum(
        naive_token_loss(
            float(batch.clean_BT[i, t]), float(batch.old_BT[i, t]), float(batch.advantage_BT[i, t]), dual_clip
        )
        for i in range(len(batch.mask_BT))
        for t in batch.valid(i)
    )
    arguments = (batch.clean_BT, batch.old_BT, batch.advantage_BT, batch.mask_BT)
    loss = policy_loss(*arguments, dual_clip=dual_clip)
    assert loss.item() == pytest.approx(total / max(batch.num_tokens, 1), rel=1e-4, abs=1e-5)
    scaled = policy_loss(*arguments, dual_clip=dual_clip, num_tokens=1000)
    assert scaled.item() == pytest.approx(total / 1000, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clips"),
    [
        (1.1, 1.0, -1.1, -1.1, (False, False, False)),
        (1.5, 1.0, -1.28, 0.0, (False, True, False)),
        (0.5, 1.0, -0.5, -0.5, (False, False, False)),
        (0.5, -1.0, 0.8, 0.0, (True, False, False)),
        (2.0, -1.0, 2.0, 2.0, (False, False, False)),
        (4.0, -2.0, 6.0, 0.0, (False, False, True)),
    ],
)
def test_policy_terms_by_hand(
    ratio: float, advantage: float, loss: float, gradient: float, clips: tuple[bool, bool, bool]
) -> None:
    old = torch.full((1, 1), -2.0, dtype=torch.float64)
    logprobs = (old + math.log(ratio)).requires_grad_()
    terms = policy_terms(logprobs, old, torch.full_like(old, advantage), torch.ones(1, 1))
    terms.loss_BT.sum().backward()
    assert terms.loss_BT.item() == pytest.approx(loss)
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(gradient)
    assert terms.ratio_BT.item() == pytest.approx(ratio)
    assert (terms.clip_low_BT.item(), terms.clip_high_BT.item(), terms.dual_clip_BT.item()) == clips


def test_policy_gradient_is_numerically_right() -> None:
    torch.manual_seed(0)
    logprobs = (-torch.rand(3, 5, dtype=torch.float64)).requires_grad_()
    old, advantage = -torch.rand(3, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([[5], [3], [0]])
    assert torch.autograd.gradcheck(lambda x: policy_loss(x, old, advantage, mask), (logprobs,))


def test_on_policy_loss_is_the_negative_mean_advantage() -> None:
    logprobs, advantage = -torch.rand(2, 3), torch.randn(2, 3)
    assert_close(policy_loss(logprobs, logprobs, advantage, torch.ones(2, 3)), -advantage.mean())


@examples
@given(seed=seeds)
@dtypes
def test_means_against_a_loop(ragged, seed: int, dtype: torch.dtype) -> None:
    batch = ragged(seed, dtype, holes=True)
    rows = [batch.advantage_BT[i, batch.valid(i)].tolist() for i in range(len(batch.mask_BT))]
    tokens = [value for row in rows for value in row]
    by_token = sum(tokens) / max(len(tokens), 1)
    filled = [row for row in rows if row]
    by_sequence = sum(sum(row) / len(row) for row in filled) / max(len(filled), 1)
    assert token_mean(batch.advantage_BT, batch.mask_BT).item() == pytest.approx(by_token, rel=1e-4, abs=1e-5)
    actual = sequence_mean(batch.advantage_BT, batch.mask_BT).item()
    assert actual == pytest.approx(by_sequence, rel=1e-4, abs=1e-5)


def test_means_by_hand() -> None:
    values = torch.tensor([[2.0, 4.0], [9.0, 100.0], [7.0, 7.0]])
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    assert token_mean(values, mask).item() == 5.0  # (2 + 4 + 9) / 3
    assert sequence_mean(values, mask).item() == 6.0  # (3 + 9) / 2
    assert sequence_mean(values, mask, num_sequences=4).item() == 3.0


@examples
@given(seed=seeds)
@dtypes
def test_k3_against_a_loop(ragged, seed: int, dtype: torch.dtype) -> None:
    batch = ragged(seed, dtype, holes=True)
    actual = k3_divergence(batch.clean_BT, batch.corrupted_BT, batch.mask_BT, maximum=2.0)
    expected = torch.zeros_like(actual)
    for i in range(len(batch.mask_BT)):
        for t in batch.valid(i):
            d = float(batch.corrupted_BT[i, t]) - float(batch.clean_BT[i, t])
            expected[i, t] = min(math.exp(d) - d - 1, 2.0)
    assert_close(actual, expected, rtol=1e-4, atol=1e-6)


def test_derivative_of_k3_is_the_visual_support() -> None:
    clean = (-torch.rand(4, 6, dtype=torch.float64)).requires_grad_()
    corrupted = -torch.rand(4, 6, dtype=torch.float64)
    k3_divergence(clean, corrupted, torch.ones(4, 6), maximum=None).sum().backward()
    assert_close(clean.grad, visual_support(clean, corrupted, torch.ones(4, 6), floor=None))


def test_k3_has_no_gradient_past_its_bound_and_none_to_the_other() -> None:
    clean = torch.tensor([[-9.0, -1.0]], requires_grad=True)
    other = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    k3_divergence(clean, other, torch.ones(1, 2), maximum=10.0).sum().backward()
    assert clean.grad is not None
    assert clean.grad[0, 0] == 0
    assert clean.grad[0, 1] == pytest.approx(1 - math.exp(-1))
    assert other.grad is None


def test_expected_k3_is_the_kl_divergence() -> None:
    log_p = torch.randn(1, 40, dtype=torch.float64).log_softmax(-1)
    log_q = torch.randn(1, 40, dtype=torch.float64).log_softmax(-1)
    k3 = k3_divergence(log_p, log_q, torch.ones(1, 40), maximum=None)
    assert_close((log_p.exp() * k3).sum(), (log_p.exp() * (log_p - log_q)).sum())


def test_reference_kl_by_hand() -> None:
    actual = k3_divergence(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-2.0, 50.0]]), torch.ones(1, 2))
    assert_close(actual, torch.tensor([[math.exp(-1) + 1 - 1, 10.0]]))
