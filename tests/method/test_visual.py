"""Eq. 10-13 and the appendix: c and its zero mean, F, u, the detrending, U."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from pivot.method import detrend, entropy_gate, future_support, token_utility, visual_support

examples = settings(derandomize=True, deadline=None, max_examples=25)
seeds = st.integers(0, 2**32 - 1)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def naive_future(values: list[float], window: int, discount: float) -> list[float]:
    """Eq. 11 over the valid tokens of one response."""
    result = []
    for t in range(len(values)):
        later = range(t + 1, min(len(values), t + 1 + window))
        weights = [discount ** (k - t - 1) for k in later]
        total = sum(w * values[k] for w, k in zip(weights, later, strict=True))
        result.append(total / sum(weights) if weights else 0.0)
    return result


def naive_detrend(values: list[float]) -> list[float]:
    """Eq. 25-27 by the normal equations."""
    n = len(values)
    if n <= 2:
        return [0.0] * n
    r = [k / (n - 1) for k in range(n)]
    sr, srr, sa = sum(r), sum(x * x for x in r), sum(values)
    sra = sum(x * a for x, a in zip(r, values, strict=True))
    slope = (n * sra - sr * sa) / (n * srr - sr * sr)
    intercept = (sa - slope * sr) / n
    return [a - intercept - slope * x for x, a in zip(r, values, strict=True)]


@examples
@given(seed=seeds)
@dtypes
def test_support_against_the_ratio(ragged, seed: int, dtype: torch.dtype) -> None:
    batch = ragged(seed, dtype, holes=True)
    literal = visual_support(batch.clean_BT, batch.corrupted_BT, batch.mask_BT, floor=None)
    floored = visual_support(batch.clean_BT, batch.corrupted_BT, batch.mask_BT.to(dtype))
    for i in range(len(batch.mask_BT)):
        for t in range(batch.mask_BT.shape[1]):
            expected = 0.0
            if batch.mask_BT[i, t]:
                expected = 1 - math.exp(batch.corrupted_BT[i, t]) / math.exp(batch.clean_BT[i, t])
            assert literal[i, t].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
            assert floored[i, t].item() == pytest.approx(max(expected, -5.0), rel=1e-4, abs=1e-5)


def test_support_by_hand() -> None:
    clean, corrupted = torch.tensor([[0.5, 0.5, 0.1, 0.5]]).log(), torch.tensor([[0.25, 0.5, 0.9, 0.5]]).log()
    actual = visual_support(clean, corrupted, torch.tensor([[1.0, 1.0, 1.0, 0.0]]))
    assert_close(actual, torch.tensor([[0.5, 0.0, -5.0, 0.0]]))  # 1 - 0.9/0.1 = -8 is floored


def test_support_of_identical_images_is_exactly_zero() -> None:
    logprobs = torch.randn(4, 9).sub(3)
    logprobs[0, 0] = -torch.inf
    assert torch.equal(visual_support(logprobs, logprobs.clone(), torch.ones(4, 9)), torch.zeros(4, 9))


def test_support_is_zero_mean_and_unbiased_over_the_vocabulary() -> None:
    """Eq. 18 and 21: E_p[c 1(y = a)] = p(a) - q(a), so E_p[c] = 0; Eq. 20: E_p[log p/q] = KL >= 0."""
    log_p = torch.randn(3, 50, dtype=torch.float64).log_softmax(-1)
    log_q = torch.randn(3, 50, dtype=torch.float64).log_softmax(-1)
    support = visual_support(log_p, log_q, torch.ones(3, 50), floor=None)
    assert_close(log_p.exp() * support, log_p.exp() - log_q.exp())
    assert_close((log_p.exp() * support).sum(-1), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)
    assert bool(((log_p.exp() * (log_p - log_q)).sum(-1) > 0).all())


def test_support_as_advantage_moves_logits_by_the_mass_difference() -> None:
    """Eq. 24: E_p[c(y) d log p(y) / d z(a)] = p(a) - q(a)."""
    logits = torch.randn(30, dtype=torch.float64, requires_grad=True)
    log_p, log_q = logits.log_softmax(-1), torch.randn(30, dtype=torch.float64).log_softmax(-1)
    support = visual_support(log_p[None], log_q[None], torch.ones(1, 30), floor=None)[0]
    (log_p.exp().detach() * support * log_p).sum().backward()
    assert_close(logits.grad, (log_p.exp() - log_q.exp()).detach())


@examples
@given(seed=seeds, window=st.integers(1, 60), discount=st.sampled_from([0.0, 0.3, 0.8, 1.0]))
@dtypes
def test_future_support_against_a_loop(
    ragged, seed: int, window: int, discount: float, dtype: torch.dtype
) -> None:
    batch = ragged(seed, dtype, holes=True)
    actual = future_support(batch.advantage_BT, batch.mask_BT, window=window, discount=discount)
    expected = torch.zeros_like(actual)
    for i in range(len(batch.mask_BT)):
        valid = batch.valid(i)
        values = batch.advantage_BT[i, valid].tolist()
        expected[i, valid] = torch.tensor(naive_future(values, window, discount), dtype=dtype)
    assert_close(actual, expected, rtol=1e-5, atol=1e-5 if dtype == torch.float32 else 1e-12)


def test_future_support_by_hand() -> None:
    support = torch.tensor([[9.0, 1.0, 0.0, 2.0]], dtype=torch.float64)
    actual = future_support(support, torch.ones(1, 4), window=2, discount=0.5)
    # (1 + 0.5*0)/1.5, (0 + 0.5*2)/1.5, 2/1, nothing left
    assert_close(actual, torch.tensor([[2 / 3, 2 / 3, 2.0, 0.0]], dtype=torch.float64))


def test_future_support_of_a_constant_is_that_constant() -> None:
    actual = future_support(torch.full((1, 300), 0.25, dtype=torch.float64), torch.ones(1, 300))
    assert_close(actual[0, :-1], torch.full((299,), 0.25, dtype=torch.float64))
    assert actual[0, -1] == 0


@examples
@given(seed=seeds)
@dtypes
def test_gate_against_a_loop(ragged, seed: int, dtype: torch.dtype) -> None:
    batch = ragged(seed, dtype)
    values = batch.entropy_BT[batch.mask_BT].tolist()
    mean = max(sum(values) / max(len(values), 1), 1e-8)
    actual = entropy_gate(batch.entropy_BT, batch.mask_BT)
    expected = torch.zeros_like(actual)
    for i in range(len(batch.mask_BT)):
        for t in batch.valid(i):
            expected[i, t] = 1 - math.exp(-float(batch.entropy_BT[i, t]) / mean)
    assert_close(actual, expected)
    assert_close(entropy_gate(batch.entropy_BT, batch.mask_BT, mean_entropy=mean), expected)


def test_gate_by_hand() -> None:
    entropy = torch.tensor([[0.0, math.log(2.0)]])
    assert_close(entropy_gate(entropy, torch.ones(1, 2), mean_entropy=1.0), torch.tensor([[0.0, 0.5]]))


def test_gate_of_a_sure_policy_is_zero() -> None:
    assert torch.equal(entropy_gate(torch.zeros(2, 3), torch.ones(2, 3)), torch.zeros(2, 3))


@examples
@given(seed=seeds)
@dtypes
def test_detrend_against_the_normal_equations(ragged, seed: int, dtype: torch.dtype) -> None:
    batch = ragged(seed, dtype, holes=True)
    actual = detrend(batch.advantage_BT, batch.mask_BT)
    expected = torch.zeros_like(actual)
    for i in range(len(batch.mask_BT)):
        valid = batch.valid(i)
        expected[i, valid] = torch.tensor(naive_detrend(batch.advantage_BT[i, valid].tolist()), dtype=dtype)
    assert_close(actual, expected, rtol=1e-5, atol=1e-5 if dtype == torch.float32 else 1e-11)


@examples
@given(seed=seeds)
def test_the_residual_is_orthogonal_to_one_and_position(ragged, seed: int) -> None:
    batch = ragged(seed, holes=True)
    residual = detrend(batch.advantage_BT, batch.mask_BT)
    position = batch.mask_BT.cumsum(1).double() / max(batch.mask_BT.shape[1], 1)
    assert_close(residual.sum(1), torch.zeros(len(residual), dtype=torch.float64), rtol=0, atol=1e-10)
    assert_close(
        (residual * position).sum(1), torch.zeros(len(residual), dtype=torch.float64), rtol=0, atol=1e-10
    )


def test_detrending_by_hand_and_of_a_line() -> None:
    # 0 3 0 over r = 0, 1/2, 1: slope 0, mean 1.
    assert_close(
        detrend(torch.tensor([[0.0, 3.0, 0.0]]), torch.ones(1, 3)), torch.tensor([[-1.0, 2.0, -1.0]])
    )
    line = torch.arange(2048, dtype=torch.float32)[None] * 3 - 7
    assert detrend(line, torch.ones_like(line)).abs().max() < 1e-2  # values reach 6,137: eps * 6,137 * a few
    assert torch.equal(detrend(torch.tensor([[5.0, 1.0]]), torch.ones(1, 2)), torch.zeros(1, 2))


@examples
@given(seed=seeds)
@dtypes
def test_utility_against_a_loop(ragged, seed: int, dtype: torch.dtype) -> None:
    batch = ragged(seed, dtype, holes=True)
    actual = token_utility(
        batch.advantage_BT, batch.entropy_BT, batch.mask_BT, window=5, discount=0.6, future_coef=0.3
    )
    entropies = batch.entropy_BT[batch.mask_BT].tolist()
    mean = max(sum(entropies) / max(len(entropies), 1), 1e-8)
    expected = torch.zeros_like(actual)
    for i in range(len(batch.mask_BT)):
        valid = batch.valid(i)
        support = batch.advantage_BT[i, valid].tolist()
        gates = [1 - math.exp(-h / mean) for h in batch.entropy_BT[i, valid].tolist()]
        gated = [u * f for u, f in zip(gates, naive_future(support, 5, 0.6), strict=True)]
        residual = naive_detrend(gated)
        utility = [c + 0.3 * x for c, x in zip(support, residual, strict=True)]
        expected[i, valid] = torch.tensor(utility, dtype=dtype)
    assert_close(actual, expected, rtol=1e-4, atol=1e-5 if dtype == torch.float32 else 1e-11)


def test_identical_images_give_no_utility() -> None:
    logprobs, mask = -torch.rand(3, 20), torch.ones(3, 20)
    support = visual_support(logprobs, logprobs, mask)
    assert torch.equal(token_utility(support, torch.rand(3, 20), mask), torch.zeros(3, 20))


@examples
@given(seed=seeds)
def test_padding_and_row_order_change_nothing(ragged, seed: int) -> None:
    batch = ragged(seed, torch.float32)
    plain = token_utility(batch.advantage_BT, batch.entropy_BT, batch.mask_BT)
    pad = (0, 17)
    padded = token_utility(
        torch.nn.functional.pad(batch.advantage_BT, pad, value=torch.nan),
        torch.nn.functional.pad(batch.entropy_BT, pad, value=torch.inf),
        torch.nn.functional.pad(batch.mask_BT, pad),
    )
    order = torch.arange(len(plain)).flip(0)
    flipped = token_utility(batch.advantage_BT[order], batch.entropy_BT[order], batch.mask_BT[order])
    assert_close(padded[:, : plain.shape[1]], plain)
    assert torch.equal(padded[:, plain.shape[1] :], torch.zeros(len(plain), 17))
    assert_close(flipped[order], plain)


def test_holes_are_skipped() -> None:
    support, entropy = torch.randn(1, 8), torch.rand(1, 8)
    mask = torch.tensor([[1, 1, 0, 1, 0, 1, 1, 0]]).bool()
    holed = token_utility(support, entropy, mask)
    compact = token_utility(support[mask][None], entropy[mask][None], torch.ones(1, 5))
    assert_close(holed[mask][None], compact)


def test_nothing_carries_a_gradient() -> None:
    logprobs = (-torch.rand(2, 4)).requires_grad_()
    mask = torch.ones(2, 4)
    support = visual_support(logprobs, logprobs - 0.1, mask)
    assert not support.requires_grad
    assert not token_utility(logprobs, logprobs.exp(), mask).requires_grad
