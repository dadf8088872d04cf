"""Eq. 8-9: the calibration loss in its forms, CalibRL's leaky guide."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import softplus as softplus_margin
from torch.testing import assert_close

from pivot.method import (
    calibration_loss,
    calibration_terms,
    count_anchored_tokens,
    leaky_margin,
    position_gap,
    position_zero_gap,
    sequence_mean_gap,
    sequence_sum_gap,
)

examples = settings(derandomize=True, deadline=None, max_examples=25)
seeds = st.integers(0, 2**32 - 1)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def softplus(x: float) -> float:
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)


def leaky(x: float) -> float:
    return x if x > 0 else 0.5 * x


@examples
@given(seed=seeds)
@dtypes
def test_calibration_loss_against_a_loop(ragged, seed: int, dtype: torch.dtype) -> None:
    batch = ragged(seed, dtype, holes=True)
    total, tokens = 0.0, 0
    for i in range(len(batch.mask_BT)):
        if math.isnan(batch.anchor_B[i]):
            continue
        s = 1 if batch.correct_B[i] else -1
        for t in batch.valid(i):
            gap = float(batch.clean_BT[i, t]) - float(batch.anchor_B[i])
            total += abs(float(batch.advantage_B[i])) * softplus(-s * gap)
            tokens += 1
    arguments = (batch.clean_BT, batch.anchor_B, batch.advantage_B, batch.correct_B, batch.mask_BT)
    assert calibration_loss(*arguments).item() == pytest.approx(total / max(tokens, 1), rel=1e-4, abs=1e-5)
    assert calibration_loss(*arguments, num_tokens=77).item() == pytest.approx(total / 77, rel=1e-4, abs=1e-5)
    assert count_anchored_tokens(batch.anchor_B, batch.mask_BT).item() == tokens


def test_calibration_loss_by_hand() -> None:
    logprobs = torch.tensor([[-1.0, -3.0], [-1.0, -1.0]], dtype=torch.float64)
    loss = calibration_loss(
        logprobs,
        torch.tensor([-1.0, math.nan], dtype=torch.float64),
        torch.tensor([-2.0, 5.0], dtype=torch.float64),
        torch.tensor([False, True]),
        torch.ones(2, 2),
    )
    # |A| = 2, s = -1: softplus(0) = log 2 and softplus(-2); the second row has no anchor and is not counted.
    assert loss.item() == pytest.approx(2 * (math.log(2) + math.log1p(math.exp(-2))) / 2)


def test_gradient_raises_correct_and_lowers_wrong_responses_and_fades() -> None:
    logprobs = torch.tensor([[-2.0, -0.1], [-2.0, -0.1]], requires_grad=True)
    anchor, correct = torch.tensor([-1.0, -1.0]), torch.tensor([1.0, 0.0])
    calibration_loss(logprobs, anchor, torch.tensor([1.0, -1.0]), correct, torch.ones(2, 2)).backward()
    below, above = logprobs.grad[0].tolist()
    assert below < above < 0  # a correct token is raised, the less the surer it already is
    low, high = logprobs.grad[1].tolist()
    assert high > low > 0  # a wrong token is lowered, the less once it fell below the anchor


def test_calibration_gradient_is_numerically_right() -> None:
    torch.manual_seed(0)
    logprobs = (-torch.rand(3, 4, dtype=torch.float64)).requires_grad_()
    anchor = torch.tensor([-0.5, math.nan, -0.3], dtype=torch.float64)
    advantage, correct = torch.randn(3, dtype=torch.float64), torch.tensor([True, True, False])
    mask = torch.arange(4) < torch.tensor([[4], [2], [3]])
    assert torch.autograd.gradcheck(
        lambda x: calibration_loss(x, anchor, advantage, correct, mask), (logprobs,)
    )


def test_the_anchor_carries_no_gradient() -> None:
    anchor = torch.tensor([-1.0], requires_grad=True)
    logprobs = torch.tensor([[-2.0]], requires_grad=True)
    calibration_loss(logprobs, anchor, torch.ones(1), torch.ones(1), torch.ones(1, 1)).backward()
    assert anchor.grad is None
    assert logprobs.grad is not None


def test_without_anchors_the_loss_is_a_zero_attached_to_the_graph() -> None:
    logprobs = torch.randn(2, 3, requires_grad=True)
    nothing = torch.full((2,), torch.nan)
    loss = calibration_loss(logprobs, nothing, torch.ones(2), torch.ones(2), torch.ones(2, 3))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logprobs.grad, torch.zeros(2, 3))


@examples
@given(seed=seeds)
@dtypes
def test_leaky_guide_against_a_loop(ragged, seed: int, dtype: torch.dtype) -> None:
    batch = ragged(seed, dtype)
    total, tokens = 0.0, 0
    for i in range(len(batch.mask_BT)):
        if batch.anchor_BT[i].isnan().all():
            continue
        s = 1 if batch.correct_B[i] else -1
        for t in batch.valid(i):
            tokens += 1
            if not math.isnan(batch.anchor_BT[i, t]):
                gap = float(batch.clean_BT[i, t]) - float(batch.anchor_BT[i, t])
                total += abs(float(batch.advantage_B[i])) * leaky(-s * gap)
    rows = (batch.clean_BT, batch.anchor_BT, batch.advantage_B, batch.correct_B, batch.mask_BT)
    loss = calibration_loss(*rows, form="position", margin=leaky_margin())
    assert loss.item() == pytest.approx(total / max(tokens, 1), rel=1e-4, abs=1e-5)


def test_position_form_is_zero_past_the_anchors_end() -> None:
    gap = position_gap(torch.full((1, 3), -1.0), torch.tensor([[-2.0, -0.5, math.nan]]), torch.ones(1, 3))
    terms = calibration_terms(gap, torch.ones(1), torch.ones(1), torch.ones(1, 3), margin=leaky_margin())
    assert_close(terms, torch.tensor([[-0.5, 0.5, 0.0]]))


def test_position_zero_form_compares_with_probability_one_past_the_anchors_end() -> None:
    """Past the end a correct token's NLL has the whole slope, a wrong one's half: both by |A| = 1."""
    logprobs = torch.tensor([[-1.0, -1.0, -3.0]] * 3)
    anchor = torch.tensor([[-2.0, -0.5, math.nan], [-2.0, -0.5, math.nan], [math.nan] * 3])
    gap = position_zero_gap(logprobs, anchor, torch.ones(3, 3))
    assert_close(gap, torch.tensor([[1.0, -0.5, -3.0], [1.0, -0.5, -3.0], [math.nan] * 3]), equal_nan=True)
    correct = torch.tensor([1.0, 0.0, 1.0])
    terms = calibration_terms(gap, torch.ones(3), correct, torch.ones(3, 3), margin=leaky_margin())
    assert_close(terms, torch.tensor([[-0.5, 0.5, 3.0], [1.0, -0.25, -1.5], [0.0, 0.0, 0.0]]))


@examples
@given(seed=seeds)
@dtypes
def test_position_zero_form_against_a_loop(ragged, seed: int, dtype: torch.dtype) -> None:
    batch = ragged(seed, dtype, holes=True)
    gap = position_zero_gap(batch.clean_BT, batch.anchor_BT, batch.mask_BT)
    actual = calibration_terms(gap, batch.advantage_B, batch.correct_B, batch.mask_BT, margin=leaky_margin())
    expected = torch.zeros_like(actual)
    for i in range(len(batch.mask_BT)):
        anchor = [x for x in batch.anchor_BT[i].tolist() if not math.isnan(x)]
        s = 1 if batch.correct_B[i] else -1
        for t in batch.valid(i) if anchor else ():
            padded = anchor[t] if t < len(anchor) else 0.0
            gap_t = float(batch.clean_BT[i, t]) - padded
            expected[i, t] = abs(float(batch.advantage_B[i])) * leaky(-s * gap_t)
    assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@examples
@given(seed=seeds)
@dtypes
def test_sequence_forms_against_a_loop(ragged, seed: int, dtype: torch.dtype) -> None:
    batch = ragged(seed, dtype, holes=True)
    arguments = (batch.clean_BT, batch.anchor_B, batch.mask_BT)
    for gap_of, by_mean in ((sequence_mean_gap, True), (sequence_sum_gap, False)):
        actual = calibration_terms(
            gap_of(*arguments), batch.advantage_B, batch.correct_B, batch.mask_BT, margin=softplus_margin
        )
        expected = torch.zeros_like(actual)
        for i in range(len(batch.mask_BT)):
            valid = batch.valid(i)
            if valid and not math.isnan(batch.anchor_B[i]):
                total = sum(batch.clean_BT[i, valid].tolist())
                gap = (total / len(valid) if by_mean else total) - float(batch.anchor_B[i])
                s = 1 if batch.correct_B[i] else -1
                expected[i, valid] = abs(float(batch.advantage_B[i])) * softplus(-s * gap)
        assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_forms_agree_on_responses_of_one_token() -> None:
    logprobs, anchor, mask = -torch.rand(5, 1), -torch.rand(5), torch.ones(5, 1)
    gaps = [gap(logprobs, anchor, mask) for gap in (sequence_mean_gap, sequence_sum_gap)]
    assert_close(gaps[0], gaps[1])
    assert_close(gaps[0], position_gap(logprobs, anchor[:, None], mask))


def test_the_mean_of_the_token_gap_is_the_length_normalised_gap(ragged) -> None:
    from pivot.method import anchor_mean_gap

    batch = ragged(3)
    arguments = (batch.clean_BT, batch.anchor_B, batch.mask_BT)
    token_gap, sequence_gap = anchor_mean_gap(*arguments), sequence_mean_gap(*arguments)
    for i in range(len(batch.mask_BT)):
        valid = batch.valid(i)
        if valid:
            assert_close(token_gap[i, valid].mean(), sequence_gap[i, valid[0]], equal_nan=True)


def test_rounding_does_not_choose_the_slope_of_the_leaky_guide() -> None:
    """Tokens that a response shares with its demonstration have a gap of 0, plus or minus the last bits."""
    gradients = []
    for noise in (-2e-6, 0.0, 2e-6):
        logprobs_BT = torch.tensor([[-0.7 + noise, -1.0]], requires_grad=True)
        loss = calibration_loss(
            logprobs_BT,
            torch.tensor([[-0.7, -2.0]]),
            torch.tensor([0.5]),
            torch.tensor([False]),
            torch.ones(1, 2),
            form="position",
            margin=leaky_margin(0.5),
        )
        (gradient,) = torch.autograd.grad(loss, logprobs_BT)
        gradients.append(gradient)
    # A wrong response: |A| f(Delta), f' = 0.5 at 0 and 1 at Delta = 1, over two tokens.
    for gradient in gradients:
        torch.testing.assert_close(gradient, torch.tensor([[0.125, 0.25]]))
