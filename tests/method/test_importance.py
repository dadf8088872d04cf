"""The mismatch of two programs and truncated importance sampling, by hand."""

import math

import pytest
import torch
from torch.testing import assert_close

from pivot.method import Batch, PolicyLoss, Totals, sampler_mismatch, truncated_importance

NAN = torch.nan
TRAINER_BT = torch.tensor([[0.5, 0.2, 0.9], [0.4, NAN, NAN]]).log()
SAMPLER_BT = torch.tensor([[0.25, 0.4, 0.9], [0.1, NAN, NAN]]).log()
MASK_BT = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()


def test_mismatch_by_hand():
    """Ratios 2, 1/2, 1 and 4."""
    found = sampler_mismatch(TRAINER_BT, SAMPLER_BT, MASK_BT)
    expected = sum(ratio - math.log(ratio) - 1 for ratio in (2, 0.5, 1, 4)) / 4
    assert float(found.divergence) == pytest.approx(expected, rel=1e-5)
    assert float(found.max_ratio) == pytest.approx(4, rel=1e-5)


def test_a_token_that_the_sampler_thinks_far_likelier_counts_as_much():
    found = sampler_mismatch(SAMPLER_BT, TRAINER_BT, MASK_BT)
    assert float(found.max_ratio) == pytest.approx(4, rel=1e-5)


def test_nothing_to_compare_is_no_mismatch():
    found = sampler_mismatch(TRAINER_BT, SAMPLER_BT, torch.zeros_like(MASK_BT))
    assert (float(found.divergence), float(found.max_ratio)) == (0.0, 1.0)


def test_weights_are_ratios_up_to_the_cap_and_one_where_masked():
    weight_BT = truncated_importance(TRAINER_BT, SAMPLER_BT, MASK_BT, cap=2.5)
    assert_close(weight_BT, torch.tensor([[2.0, 0.5, 1.0], [2.5, 1.0, 1.0]]))
    with pytest.raises(ValueError, match="cap must lie in"):
        truncated_importance(TRAINER_BT, SAMPLER_BT, MASK_BT, cap=0.5)


def test_a_weight_multiplies_the_tokens_loss_and_carries_no_gradient():
    """At ratio 1 a token's loss is -A and its gradient -A: with weights 2 and 1/2 and A = 3, over two tokens."""
    trainer_BT = torch.tensor([[0.5, 0.2]]).log().requires_grad_()
    mask_BT = torch.ones(1, 2, dtype=torch.bool)
    weight_BT = truncated_importance(trainer_BT, torch.tensor([[0.25, 0.4]]).log(), mask_BT, cap=5.0)
    assert not weight_BT.requires_grad
    batch = Batch(
        mask_BT=mask_BT,
        rewards_B=torch.ones(1),
        format_B=torch.ones(1),
        group_size=1,
        clean_logprobs_BT=trainer_BT.detach(),
        entropy_BT=torch.zeros(1, 2),
        old_logprobs_BT=trainer_BT.detach(),
        advantage_BT=torch.full((1, 2), 3.0),
        policy_mask_BT=mask_BT,
        importance_weight_BT=weight_BT,
        new_logprobs_BT=trainer_BT,
    )
    loss, _ = PolicyLoss()(batch, Totals(2, 1, {}))
    assert float(loss.detach()) == pytest.approx(-3 * (2 + 0.5) / 2, rel=1e-5)
    loss.backward()
    assert_close(trainer_BT.grad, torch.tensor([[-3.0, -0.75]]))
