"""GSPO, CISPO and SAPO, the constant normaliser, and the advantages of RLOO and REINFORCE++, against loops."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from pivot.method import (
    Batch,
    CappedWeight,
    GroupAdvantage,
    Method,
    NoisyRollouts,
    PolicyLoss,
    SoftGate,
    StoredGroups,
    Surrogate,
    allocate_advantage,
    capped_weight_terms,
    count_totals,
    group_advantage,
    noise_level,
    normalised_advantage,
    objective,
    preset,
    soft_gate_terms,
)

examples = settings(derandomize=True, deadline=None, max_examples=15)
seeds = st.integers(0, 2**32 - 1)


def batch_of(ragged, seed: int, *, equal_advantages: bool = False) -> Batch:
    """Rows with all that a policy loss reads; new log-probs carry a gradient."""
    rows = ragged(seed, holes=True)
    advantage_BT = (
        rows.advantage_B[:, None].expand(rows.mask_BT.shape) if equal_advantages else rows.advantage_BT
    )
    return Batch(
        mask_BT=rows.mask_BT,
        rewards_B=rows.correct_B.double(),
        format_B=rows.correct_B.double(),
        group_size=1,
        clean_logprobs_BT=rows.old_BT,
        entropy_BT=rows.entropy_BT,
        old_logprobs_BT=rows.old_BT,
        advantage_BT=advantage_BT,
        policy_mask_BT=rows.mask_BT,
        new_logprobs_BT=rows.clean_BT.clone().requires_grad_(),
        max_tokens=50,
    )


def loss_and_gradient(loss: Surrogate, batch: Batch) -> tuple[float, Tensor]:
    method = Method("", "", policy_loss=loss, terms=())
    value, _ = objective(method, batch, count_totals(method, batch))
    (gradient_BT,) = torch.autograd.grad(value, [batch.given("new_logprobs_BT")])
    return value.item(), gradient_BT


def by_loop(batch: Batch, token_loss, normaliser) -> tuple[float, Tensor]:
    """The loss and its gradient, token by token in plain floats: each token's loss and derivative by log pi."""
    total, gradient_BT = 0.0, torch.zeros(batch.mask_BT.shape, dtype=torch.float64)
    for i in range(len(batch.mask_BT)):
        valid = batch.mask_BT[i].nonzero()[:, 0].tolist()
        new = [batch.given("new_logprobs_BT")[i, t].item() for t in valid]
        old = [batch.old_logprobs_BT[i, t].item() for t in valid]
        for n, t in enumerate(valid):
            value, slope = token_loss(new, old, n, batch.given("advantage_BT")[i, t].item())
            total += value / normaliser(batch, len(valid))
            gradient_BT[i, t] = slope / normaliser(batch, len(valid))
    return total, gradient_BT


def num_responses(batch: Batch) -> int:
    return max(1, int(batch.mask_BT.any(dim=1).sum()))


NORMALISERS = {
    "token": lambda batch, length: max(1, int(batch.mask_BT.sum())),
    "sequence": lambda batch, length: length * num_responses(batch),
    "constant": lambda batch, length: 50 * num_responses(batch),
}


def clipped(low: float, high: float):
    """-min(s A, clip(s) A) and its derivative, with GSPO's ratio of the whole response."""

    def token_loss(new, old, n, advantage):
        ratio = math.exp(sum(a - b for a, b in zip(new, old, strict=True)) / len(new))
        bounded = min(max(ratio, 1 - low), 1 + high)
        is_cut = bounded * advantage < ratio * advantage
        return -min(ratio * advantage, bounded * advantage), 0.0 if is_cut else -ratio * advantage

    return token_loss


def capped(floor: float, cap: float):
    def token_loss(new, old, n, advantage):
        weight = min(max(math.exp(new[n] - old[n]), floor), cap)
        return -weight * advantage * new[n], -weight * advantage

    return token_loss


def gated(positive: float, negative: float):
    def token_loss(new, old, n, advantage):
        tau, ratio = positive if advantage > 0 else negative, math.exp(new[n] - old[n])
        gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
        return -4 / tau * gate * advantage, -4 * gate * (1 - gate) * ratio * advantage

    return token_loss


LOSSES = {
    "gspo": (PolicyLoss(clip_low=0.1, clip_high=0.2, dual_clip=None, ratio="sequence"), clipped(0.1, 0.2)),
    "cispo": (CappedWeight(weight_floor=0.9, weight_cap=1.2), capped(0.9, 1.2)),
    "sapo": (SoftGate(gate_positive=1.5, gate_negative=4.0), gated(1.5, 4.0)),
}


@pytest.mark.parametrize("mean", NORMALISERS)
@pytest.mark.parametrize("name", LOSSES)
@examples
@given(seed=seeds)
def test_losses_and_gradients_against_a_loop(ragged, name: str, mean: str, seed: int) -> None:
    loss, token_loss = LOSSES[name]
    batch = batch_of(ragged, seed)
    value, gradient_BT = loss_and_gradient(replace(loss, aggregation=mean), batch)
    expected, expected_BT = by_loop(batch, token_loss, NORMALISERS[mean])
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert_close(gradient_BT.nan_to_num(), expected_BT)


@examples
@given(seed=seeds)
def test_gspo_is_the_gradient_of_the_clipped_sequence_ratio(ragged, seed: int) -> None:
    """Written as in the paper, with autograd through s_i itself; one advantage per response."""
    batch = batch_of(ragged, seed, equal_advantages=True)
    value, gradient_BT = loss_and_gradient(preset("gspo").policy_loss, batch)
    new_BT, total = batch.given("new_logprobs_BT"), torch.zeros((), dtype=torch.float64)
    for i in range(len(batch.mask_BT)):
        valid_T = batch.mask_BT[i]
        if valid_T.any():
            ratio = (new_BT[i, valid_T] - batch.old_logprobs_BT[i, valid_T]).mean().exp()
            advantage = batch.given("advantage_BT")[i, valid_T][0]
            total = total - torch.minimum(ratio * advantage, ratio.clamp(1 - 3e-4, 1 + 4e-4) * advantage)
    total = total / num_responses(batch) + 0.0 * new_BT.nan_to_num().sum()
    (expected_BT,) = torch.autograd.grad(total, [new_BT])
    assert value == pytest.approx(total.item(), rel=1e-9, abs=1e-12)
    assert_close(gradient_BT.nan_to_num(), expected_BT.nan_to_num())


def test_no_surrogate_changes_the_on_policy_gradient() -> None:
    """Where rho = 1 all of them are -A."""
    old = -torch.rand(3, 4, dtype=torch.float64)
    advantage, mask = torch.randn(3, 4, dtype=torch.float64), torch.ones(3, 4)
    for terms in (capped_weight_terms, soft_gate_terms):
        new = old.clone().requires_grad_()
        terms(new, old, advantage, mask).loss_BT.sum().backward()
        assert_close(new.grad, -advantage)


def test_a_capped_weight_keeps_the_gradient_that_a_clip_cuts() -> None:
    old = torch.tensor([[-3.0]])
    new = torch.tensor([[-1.0]], requires_grad=True)  # rho = e^2
    capped_weight_terms(new, old, torch.ones(1, 1), torch.ones(1, 1), cap=5.0).loss_BT.sum().backward()
    assert new.grad is not None
    assert new.grad.item() == -5.0


def test_the_constant_normaliser_by_hand(ragged) -> None:
    """Two responses of 2 and 1 tokens, limit 10: (1 + 2 + 4) / (2 * 10)."""
    method = preset("dr-grpo")
    rows = torch.tensor([[1.0, 2.0], [4.0, 100.0]])
    batch = replace(
        batch_of(ragged, 0),
        mask_BT=torch.tensor([[True, True], [True, False]]),
        rewards_B=torch.zeros(2),
        format_B=torch.zeros(2),
        max_tokens=10,
    )
    mean = count_totals(method, batch).mean(rows, batch.mask_BT)
    assert mean.item() == pytest.approx(7 / 20)
    given_constant = method.with_settings(constant_tokens=1)
    assert count_totals(given_constant, batch).mean(rows, batch.mask_BT).item() == 3.5
    with pytest.raises(ValueError, match="constant_tokens must be given"):
        count_totals(method, replace(batch, max_tokens=None))


REWARDS = torch.tensor(
    [[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.25, 1.0, 0.0]], dtype=torch.float64
)


def test_leave_one_out_against_a_loop() -> None:
    rows = REWARDS.tolist()
    expected = [[row[i] - (sum(row) - row[i]) / (len(row) - 1) for i in range(len(row))] for row in rows]
    found = GroupAdvantage(normalise_std=False, baseline="leave_one_out")(REWARDS)
    assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("baseline", ["batch", "group"])
def test_batch_normalisation_against_a_loop(baseline: str) -> None:
    """REINFORCE++, and its variant with a group baseline."""
    rows = REWARDS.tolist()
    overall = statistics.mean(value for row in rows for value in row)
    centred = [[v - (overall if baseline == "batch" else statistics.mean(row)) for v in row] for row in rows]
    scale = statistics.stdev(value for row in centred for value in row) + 1e-6
    expected = torch.tensor([[value / scale for value in row] for row in centred], dtype=torch.float64)
    assert_close(GroupAdvantage(baseline=baseline, std_over="batch")(REWARDS), expected)


def test_the_rule_of_the_paper_is_a_special_case() -> None:
    assert_close(normalised_advantage(REWARDS), group_advantage(REWARDS))
    assert_close(normalised_advantage(REWARDS, std_over=None), group_advantage(REWARDS, normalise_std=False))


@pytest.mark.parametrize("baseline", ["group", "leave_one_out", "batch"])
@pytest.mark.parametrize("std_over", ["group", "batch", None])
def test_equal_rewards_have_no_advantage(baseline: str, std_over: str | None) -> None:
    for rewards in (torch.full((3, 4), 0.1), torch.ones(1, 1), torch.zeros(0, 4)):
        found = normalised_advantage(rewards, baseline=baseline, std_over=std_over)
        assert_close(found, torch.zeros_like(rewards))


def test_the_noise_fades_along_a_sigmoid() -> None:
    """NoisyRollout's values: 500, lambda 30, midpoint 40 of 60 steps."""
    part = NoisyRollouts()
    for step in (1, 20, 39, 40, 41, 60):
        x = 30 * (step - 40) / 60
        assert part.level(step, 60) == pytest.approx(500 * (1 - 1 / (1 + math.exp(-x))))
    assert part.level(40, 60) == pytest.approx(250)
    assert noise_level(10**6, 1, steepness=1e3) == pytest.approx(0.0)
    assert [NoisyRollouts(noise_share=share).num_noisy(8) for share in (0.0, 0.5, 0.25, 1.0)] == [0, 4, 2, 8]


def test_samples_of_drawn_groups_weigh_as_often_as_ssr_draws_them() -> None:
    """P(group) times the weight within it is proportional to |A|^alpha, sample by sample."""
    rule = StoredGroups(stored_alpha=1.5)
    advantage = group_advantage(REWARDS[[0, 2]])
    scores = rule.scores(advantage, REWARDS[[0, 2]])
    wanted = advantage.abs() ** 1.5
    assert_close(scores, wanted.sum(dim=1))
    assert_close(scores[:, None] * rule.sample_weights(advantage) / 4, wanted)
    trl = StoredGroups(flat_groups="by_score")
    std = [statistics.stdev(row) for row in REWARDS[[0, 2]].tolist()]
    expected = [sum(abs(a) for a in row) * s for row, s in zip(advantage.tolist(), std, strict=True)]
    assert_close(trl.scores(advantage, REWARDS[[0, 2]]), torch.tensor(expected, dtype=torch.float64))
    assert_close(trl.sample_weights(advantage), torch.ones_like(advantage))


def test_only_rows_of_stored_groups_are_weighted(ragged) -> None:
    rows = torch.tensor([[1.0, 0.0, 0.0, 0.0]] * 2).flatten()
    batch = Batch(
        mask_BT=torch.ones(8, 1),
        rewards_B=rows,
        format_B=torch.zeros(8),
        group_size=4,
        clean_logprobs_BT=torch.zeros(8, 1),
        entropy_BT=torch.zeros(8, 1),
        old_logprobs_BT=torch.zeros(8, 1),
        stored_B=torch.arange(8) >= 4,
    )
    allocated, _ = allocate_advantage(preset("ssr"), batch)
    plain = group_advantage(rows.view(2, 4)).flatten()
    weights = [1.0, 1.0, 1.0, 1.0, 2.0, 2 / 3, 2 / 3, 2 / 3]  # 4 |A| / sum |A| with A = 1.5, -0.5, -0.5, -0.5
    assert_close(allocated.given("advantage_BT")[:, 0], plain * torch.tensor(weights))
    assert_close(allocated.given("group_advantage_B"), plain)
