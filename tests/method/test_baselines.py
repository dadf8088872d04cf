"""PAPO, VPPO, Off-PG, Off-SFT and the entropy penalties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from pivot.method import (
    Batch,
    DoubleEntropy,
    Perception,
    Totals,
    nll_penalty,
    shaped_ratio_terms,
    shaping_factor,
    top_token_mask,
    visual_support,
)


def forward(clean, corrupted, mask) -> Batch:
    """What PAPO's terms read."""
    rewards = torch.zeros(len(mask))
    fixed = clean.detach()
    return Batch(mask, rewards, rewards, 1, fixed, fixed, fixed, corrupted, new_logprobs_BT=clean)


examples = settings(derandomize=True, deadline=None, max_examples=25)
seeds = st.integers(0, 2**32 - 1)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@examples
@given(seed=seeds)
@dtypes
def test_penalties_and_papo_against_a_loop(ragged, seed: int, dtype: torch.dtype) -> None:
    batch = ragged(seed, dtype, holes=True)
    tokens = [(i, t) for i in range(len(batch.mask_BT)) for t in batch.valid(i)]
    num = max(len(tokens), 1)
    clean = [float(batch.clean_BT[i, t]) for i, t in tokens]
    corrupted = [float(batch.corrupted_BT[i, t]) for i, t in tokens]
    gaps = [q - p for p, q in zip(clean, corrupted, strict=True)]
    near = {"rel": 1e-4, "abs": 1e-5}
    assert nll_penalty(batch.clean_BT, batch.mask_BT).item() == pytest.approx(-sum(clean) / num, **near)
    k3 = sum(min(math.exp(d) - d - 1, 10.0) for d in gaps) / num
    rows, totals = forward(batch.clean_BT, batch.corrupted_BT, batch.mask_BT), Totals(num, len(tokens), {})
    assert Perception()(rows, totals).item() == pytest.approx(k3, **near)
    both = -(0.25 * sum(clean) + 0.75 * sum(corrupted)) / num
    term = DoubleEntropy(clean_entropy_coef=0.01, corrupted_entropy_coef=0.03)
    assert term(rows, totals).item() == pytest.approx(both, **near)
    assert nll_penalty(batch.clean_BT, batch.mask_BT, num_tokens=9).item() == pytest.approx(
        -sum(clean) / 9, **near
    )


def test_perception_is_a_policy_gradient_with_the_support_as_advantage() -> None:
    clean = (-torch.rand(2, 5, dtype=torch.float64)).requires_grad_()
    corrupted, mask = -torch.rand(2, 5, dtype=torch.float64), torch.ones(2, 5)
    term = Perception(perception_coef=0.01)
    (term.weight * term(forward(clean, corrupted, mask), Totals(10, 2, {}))).backward()
    assert_close(clean.grad, -0.01 * visual_support(clean, corrupted, mask, floor=None) / 10)


def test_the_corrupted_half_of_the_double_entropy_moves_nothing() -> None:
    clean = (-torch.rand(1, 4)).requires_grad_()
    corrupted = (-torch.rand(1, 4)).requires_grad_()
    DoubleEntropy()(forward(clean, corrupted, torch.ones(1, 4)), Totals(4, 1, {})).backward()
    assert_close(clean.grad, torch.full((1, 4), -0.5 / 4))
    assert corrupted.grad is None


def test_the_nll_penalty_has_no_expected_gradient_on_policy() -> None:
    logits = torch.randn(20, dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(-1)
    (logprobs.exp().detach() * -logprobs).sum().backward()
    assert_close(logits.grad, torch.zeros(20, dtype=torch.float64), rtol=0, atol=1e-12)


@examples
@given(seed=seeds, share=st.sampled_from([0.0, 0.1, 0.4, 1.0]))
def test_token_mask_against_a_loop(ragged, seed: int, share: float) -> None:
    batch = ragged(seed, holes=True)
    actual = top_token_mask(batch.entropy_BT, batch.mask_BT, share=share)
    for i in range(len(batch.mask_BT)):
        valid = batch.valid(i)
        ranked = sorted(valid, key=lambda t: (-float(batch.entropy_BT[i, t]), t))
        kept = set(ranked[: math.ceil(share * len(valid) - 1e-9)])
        assert set(actual[i].nonzero()[:, 0].tolist()) == kept


def test_token_mask_by_hand() -> None:
    dependency = torch.tensor([[0.1, 0.9, 0.9, 0.5, 0.0, 7.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0, 0.0]])
    assert top_token_mask(dependency, mask).tolist() == [[False, True, True, False, False, False]]


def naive_factors(means: list[float], floor: float) -> list[float]:
    low, high = min(means), max(means)
    if low == high:
        return [1.0] * len(means)
    normalised = [(mean - low) / (high - low) for mean in means]
    average = sum(normalised) / len(normalised)
    return [floor + n * (1 - floor) / average for n in normalised]


@examples
@given(seed=seeds)
@dtypes
def test_shaping_against_a_loop_over_minibatches(ragged, seed: int, dtype: torch.dtype) -> None:
    batch = ragged(seed, dtype)
    minibatch = torch.arange(len(batch.mask_BT)) % 2
    actual = shaping_factor(batch.entropy_BT, batch.mask_BT, minibatch_B=minibatch)
    for m in (0, 1):
        rows = [i for i in range(len(batch.mask_BT)) if minibatch[i] == m and batch.valid(i)]
        if rows:
            means = [batch.entropy_BT[i, batch.valid(i)].double().mean().item() for i in rows]
            expected = torch.tensor(naive_factors(means, 0.9), dtype=dtype)
            assert_close(actual[rows], expected, rtol=1e-4, atol=1e-4)


def test_shaping_by_hand() -> None:
    dependency = torch.tensor([[1.0, 1.0], [3.0, 99.0], [2.0, 2.0]])
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    # Means 1, 3, 2 -> n = 0, 1, 1/2 with mean 1/2 -> 0.9, 0.9 + 0.2, 0.9 + 0.1; their mean is 1.
    assert_close(shaping_factor(dependency, mask), torch.tensor([0.9, 1.1, 1.0]))


def test_equal_and_empty_responses_are_not_shaped() -> None:
    dependency, mask = torch.full((3, 2), 0.7), torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    assert shaping_factor(dependency, mask).tolist() == [1.0, 1.0, 1.0]
    assert shaping_factor(torch.zeros(1, 0), torch.zeros(1, 0)).tolist() == [1.0]


@examples
@given(seed=seeds)
@dtypes
def test_shaped_ratio_against_a_loop(ragged, seed: int, dtype: torch.dtype) -> None:
    batch = ragged(seed, dtype, holes=True)
    total = 0.0
    for i in range(len(batch.mask_BT)):
        for t in batch.valid(i):
            w = math.exp(float(batch.clean_BT[i, t]) - float(batch.old_BT[i, t]))
            total -= float(batch.advantage_BT[i, t]) * w / (w + 0.1)
    terms = shaped_ratio_terms(batch.clean_BT, batch.old_BT, batch.advantage_BT, batch.mask_BT)
    assert terms.sum().item() == pytest.approx(total, rel=1e-4, abs=1e-4)


def test_shaped_ratio_gradient_is_numerically_right() -> None:
    torch.manual_seed(0)
    logprobs = (-torch.rand(2, 3, dtype=torch.float64)).requires_grad_()
    recorded, advantage = -torch.rand(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x: shaped_ratio_terms(x, recorded, advantage, torch.ones(2, 3)).sum(), (logprobs,)
    )
