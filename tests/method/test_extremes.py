"""Finite numbers where probabilities are 0 or 1, responses empty, dtypes short; mistakes are named."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pivot.method import (
    PRESETS,
    Batch,
    allocate_advantage,
    calibration_loss,
    count_totals,
    detrend,
    entropy_gate,
    future_support,
    group_advantage,
    modulate_advantage,
    objective,
    policy_loss,
    preset,
    token_utility,
    visual_support,
)

LOGPROBS = (0.0, -1e4, -torch.inf)
"""Probability 1, next to nothing, and 0."""


def extreme_batch(clean: float, other: float, mask: Tensor, dtype: torch.dtype) -> Batch:
    def filled(value: float) -> Tensor:
        return torch.full(mask.shape, value, dtype=dtype)

    rows = len(mask)
    return Batch(
        max_tokens=8,
        mask_BT=mask,
        rewards_B=(torch.arange(rows) % 2).to(dtype),
        format_B=torch.ones(rows, dtype=dtype),
        group_size=2,
        clean_logprobs_BT=filled(clean),
        entropy_BT=filled(0.0),
        old_logprobs_BT=filled(other),
        corrupted_logprobs_BT=filled(other),
        similarity_BT=torch.linspace(-1, 1, mask.numel()).view(mask.shape).to(dtype),
        reference_logprobs_BT=filled(other),
        off_policy_B=torch.arange(rows) == 0,
        target_B=torch.arange(rows) == 3,
        anchor_logprob_B=filled(max(other, -1e4))[:, 0] if mask.shape[1] else torch.zeros(rows, dtype=dtype),
        anchor_logprobs_BT=filled(other),
        advantage_BT=filled(1.0) * torch.linspace(-1, 1, rows, dtype=dtype)[:, None],
        policy_mask_BT=mask,
        group_advantage_B=torch.linspace(-1, 1, rows, dtype=dtype),
        new_logprobs_BT=filled(clean).requires_grad_(),
        new_entropy_BT=filled(0.0).requires_grad_(),
    )


MASKS = {
    "full": torch.ones(4, 5),
    "one token": torch.ones(4, 1),
    "some empty": (torch.arange(3) < torch.tensor([[0], [1], [2], [3]])).float(),
    "all empty": torch.zeros(4, 3),
    "no width": torch.zeros(4, 0),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("name", PRESETS)
def test_every_method_stays_finite(name: str, mask: Tensor, dtype: torch.dtype) -> None:
    method = preset(name)
    for clean in LOGPROBS:
        for other in LOGPROBS:
            batch = extreme_batch(clean, other, mask, dtype)
            loss, values = objective(method, batch, count_totals(method, batch))
            leaves = [batch.new_logprobs_BT]
            grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
            for value in (loss, *values.values(), *grads):
                assert bool(value.isfinite().all()), (clean, other)
            allocated, found = allocate_advantage(method, batch)
            results = {name: getattr(allocated, name) for name in ("advantage_BT", "group_advantage_B")}
            for name, value in (results | vars(found)).items():
                assert value is None or bool(value.isfinite().all()), (name, clean, other)


def test_all_forms_of_calibration_stay_finite() -> None:
    for form in ("anchor_mean", "position", "position_zero", "seq_mean", "seq_sum"):
        for shape in ("softplus", "leaky_relu"):
            method = preset("ser").with_settings(calibration=form, calibration_shape=shape)
            batch = extreme_batch(-torch.inf, 0.0, MASKS["some empty"], torch.float32)
            loss, _ = objective(method, batch, count_totals(method, batch))
            (gradient,) = torch.autograd.grad(loss, batch.new_logprobs_BT)
            assert bool(loss.isfinite()), (form, shape)
            assert bool(gradient.isfinite().all()), (form, shape)


def test_bfloat16_batch_are_computed_in_float32() -> None:
    clean, corrupted = -torch.rand(2, 6).bfloat16(), -torch.rand(2, 6).bfloat16()
    mask = torch.ones(2, 6, dtype=torch.bfloat16)
    support = visual_support(clean, corrupted, mask)
    assert support.dtype == torch.float32
    assert torch.equal(support, visual_support(clean.float(), corrupted.float(), mask))
    utility = token_utility(support.bfloat16(), -clean, mask)
    assert torch.equal(utility, token_utility(support.bfloat16().float(), -clean.float(), mask))
    assert policy_loss(clean, corrupted, support.bfloat16(), mask).dtype == torch.float32


BT, B = torch.zeros(2, 3), torch.zeros(2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: group_advantage(torch.zeros(3)),
            r"rewards_PG .* shape \[P, G\], got float32 of shape \[3\]",
        ),
        (
            lambda: group_advantage(torch.zeros(2, 2).long()),
            r"rewards_PG must be a floating-point .* got int64",
        ),
        (
            lambda: visual_support(BT, torch.zeros(2, 4), BT),
            r"corrupted_logprobs_BT .* \[2, 3\], got .* \[2, 4\]",
        ),
        (lambda: visual_support(BT, BT, BT.long()), r"mask_BT must be a bool or floating-point .* got int64"),
        (lambda: visual_support([1.0], BT, BT), r"clean_logprobs_BT must be .* got list"),
        (
            lambda: future_support(BT, torch.zeros(3, 2)),
            r"mask_BT .* \[2, 3\], got float32 of shape \[3, 2\]",
        ),
        (lambda: future_support(BT, BT, window=0), r"window must lie in \[1, inf\], got 0"),
        (lambda: future_support(BT, BT, discount=2.0), r"discount must lie in \[0, 1\], got 2.0"),
        (lambda: entropy_gate(B, B), r"entropy_BT .* \[B, T\], got float32 of shape \[2\]"),
        (
            lambda: detrend(BT.long(), BT),
            r"values_BT must be a floating-point tensor of shape \[B, T\], got int64",
        ),
        (
            lambda: modulate_advantage(torch.zeros(3), BT, B, BT, beta=1.0),
            r"advantage_B .* \[2\], got .* \[3\]",
        ),
        (
            lambda: modulate_advantage(B, BT, BT, BT, beta=1.0),
            r"correct_B .* \[2\], got float32 of shape \[2, 3\]",
        ),
        (lambda: policy_loss(BT, B, BT, BT), r"old_logprobs_BT .* \[2, 3\], got float32 of shape \[2\]"),
        (lambda: policy_loss(BT, BT, BT, BT, dual_clip=0.5), r"dual_clip must be above 1 or null, got 0.5"),
        (
            lambda: calibration_loss(BT, BT, B, B, BT),
            r"anchor_logprob_B .* \[2\], got float32 of shape \[2, 3\]",
        ),
    ],
)
def test_mistakes_name_the_argument_what_was_given_and_what_was_expected(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
