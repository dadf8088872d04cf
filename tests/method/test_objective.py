"""Eq. 16 for every method: conformance between methods, splits, and each term against its own function."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from pivot.method import (
    PRESETS,
    Batch,
    Method,
    Totals,
    calibration_loss,
    count_totals,
    k3_divergence,
    leaky_margin,
    nll_penalty,
    objective,
    policy_loss,
    preset,
    sequence_mean,
    shaped_ratio_terms,
    token_mean,
)

examples = settings(derandomize=True, deadline=None, max_examples=8)
seeds = st.integers(0, 2**32 - 1)


def full_batch(ragged, seed: int, dtype: torch.dtype = torch.float64) -> Batch:
    """Everything any method may ask for; the second half of the rows are supervised targets."""
    rows = ragged(seed, dtype)
    generator = torch.Generator().manual_seed(seed)
    num_rows, width = rows.mask_BT.shape
    keep = torch.rand(num_rows, width, generator=generator) < 0.6
    target_mask = torch.arange(width) < torch.randint(0, width + 1, (num_rows, 1), generator=generator)
    target_logprobs = -torch.rand(num_rows, width, generator=generator, dtype=dtype)

    def with_targets(values: Tensor, targets: Tensor | None = None) -> Tensor:
        blank = torch.zeros_like(values) if values.dtype == torch.bool else torch.full_like(values, torch.nan)
        return torch.cat([values, blank if targets is None else targets])

    return Batch(
        max_tokens=50,
        mask_BT=with_targets(rows.mask_BT, target_mask),
        rewards_B=with_targets(rows.correct_B.to(dtype)),
        format_B=torch.zeros(2 * num_rows, dtype=dtype),
        group_size=1,
        clean_logprobs_BT=with_targets(rows.clean_BT),
        entropy_BT=with_targets(rows.entropy_BT),
        old_logprobs_BT=with_targets(rows.old_BT),
        corrupted_logprobs_BT=with_targets(rows.corrupted_BT),
        similarity_BT=with_targets(torch.tanh(rows.advantage_BT)),
        reference_logprobs_BT=with_targets(rows.reference_BT),
        off_policy_B=with_targets(torch.rand(num_rows, generator=generator) < 0.3),
        target_B=torch.arange(2 * num_rows) >= num_rows,
        anchor_logprob_B=with_targets(rows.anchor_B),
        anchor_logprobs_BT=with_targets(rows.anchor_BT),
        advantage_BT=with_targets(rows.advantage_BT),
        policy_mask_BT=with_targets(rows.mask_BT & keep),
        group_advantage_B=with_targets(rows.advantage_B),
        new_logprobs_BT=with_targets(rows.clean_BT, target_logprobs).requires_grad_(),
        new_entropy_BT=with_targets(rows.entropy_BT).requires_grad_(),
    )


def plain(batch: Batch) -> Batch:
    """Responses alone: no targets, no off-policy rows, every valid token in the policy loss."""
    responses = batch.responses()
    return replace(responses, off_policy_B=None, target_B=None, policy_mask_BT=responses.mask_BT)


def gradients(loss: Tensor, batch: Batch) -> tuple[Tensor | None, ...]:
    leaves = [batch.new_logprobs_BT, batch.new_entropy_BT]
    return torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", PRESETS)
@examples
@given(seed=seeds)
def test_splitting_a_minibatch_changes_neither_loss_nor_gradient(
    ragged, name: str, exact: bool, seed: int
) -> None:
    method = preset(name)
    if "entropy_form" in method.own_settings():
        method = method.with_settings(entropy_form="exact" if exact else "nll")
    batch = full_batch(ragged, seed)
    totals = count_totals(method, batch)
    loss, values = objective(method, batch, totals)
    order = torch.randperm(len(batch.mask_BT), generator=torch.Generator().manual_seed(seed))
    parts = [batch.select(rows) for rows in order.split(2)]
    sums = [count_totals(method, part) for part in parts]
    assert sum(sums[1:], sums[0]) == totals
    split = [objective(method, part, totals) for part in parts]
    total = torch.stack([part_loss for part_loss, _ in split]).sum()
    assert_close(total, loss)
    assert_close(gradients(total, batch), gradients(loss, batch))
    for key, value in values.items():
        pieces = torch.stack([part_values[key] for _, part_values in split])
        assert_close(pieces.amax() if key == "ratio_max" else pieces.sum(), value)


@pytest.mark.parametrize("name", PRESETS)
def test_padding_changes_nothing(ragged, name: str) -> None:
    method, batch = preset(name), full_batch(ragged, 5)
    wide = replace(
        batch,
        **{
            name: torch.nn.functional.pad(value, (0, 8), value=0 if value.dtype == torch.bool else torch.nan)
            for name, value in vars(batch).items()
            if name.endswith("_BT") and value is not None
        },
    )
    totals = count_totals(method, batch)
    assert count_totals(method, wide) == totals
    loss, wide_loss = objective(method, batch, totals)[0], objective(method, wide, totals)[0]
    assert_close(wide_loss, loss)
    assert_close(gradients(wide_loss, batch), gradients(loss, batch))


@examples
@given(seed=seeds)
def test_dapo_is_the_policy_loss_and_the_entropy_penalty(ragged, seed: int) -> None:
    batch = plain(full_batch(ragged, seed))
    loss, values = objective(preset("dapo"), batch, count_totals(preset("dapo"), batch))
    arguments = (batch.new_logprobs_BT, batch.old_logprobs_BT, batch.advantage_BT, batch.mask_BT)
    penalty = nll_penalty(batch.new_logprobs_BT, batch.mask_BT)
    assert_close(loss, policy_loss(*arguments) + 0.06 * penalty)
    assert_close(values["entropy"], penalty.detach())
    assert set(values) == {
        "policy", "entropy", "ratio_sum", "ratio_tokens", "ratio_max",
        "clip_low_tokens", "clip_high_tokens", "dual_clip_tokens",
    }  # fmt: skip


def test_grpo_takes_sequence_means_and_a_kl(ragged) -> None:
    method, batch = preset("grpo").with_settings(entropy_coef=0.0), plain(full_batch(ragged, 11))
    loss, values = objective(method, batch, count_totals(method, batch))
    kl = sequence_mean(
        k3_divergence(batch.new_logprobs_BT, batch.reference_logprobs_BT, batch.mask_BT), batch.mask_BT
    )
    ratio = (batch.new_logprobs_BT - batch.old_logprobs_BT).exp()
    a = batch.advantage_BT
    surrogate = torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a)
    surrogate = torch.where(a < 0, torch.maximum(surrogate, 3.0 * a), surrogate)
    assert_close(values["kl"], kl.detach())
    assert_close(loss, -sequence_mean(surrogate, batch.mask_BT) + 0.01 * kl)


def term(method: Method, batch: Batch, name: str) -> Tensor:
    return objective(method, batch, count_totals(method, batch))[1][name]


@examples
@given(seed=seeds)
def test_each_term_is_its_own_function(ragged, seed: int) -> None:
    batch = plain(full_batch(ragged, seed))
    advantage = (batch.group_advantage_B, batch.correct_B, batch.mask_BT)
    calibration = calibration_loss(batch.new_logprobs_BT, batch.anchor_logprob_B, *advantage)
    assert_close(term(preset("pivot"), batch, "calibration"), calibration.detach())
    guide = calibration_loss(
        batch.new_logprobs_BT, batch.anchor_logprobs_BT, *advantage, form="position", margin=leaky_margin()
    )
    assert_close(term(preset("calibrl"), batch, "calibration"), guide.detach())
    k3 = k3_divergence(batch.new_logprobs_BT, batch.corrupted_logprobs_BT, batch.mask_BT)
    perception = token_mean(k3, batch.mask_BT)
    assert_close(term(preset("papo"), batch, "perception"), perception.detach())
    whole = full_batch(ragged, seed)
    rows = whole.target_B
    target = nll_penalty(whole.new_logprobs_BT[rows], whole.mask_BT[rows])
    assert_close(term(preset("off-sft-vaa"), whole, "sft"), target.detach())


@examples
@given(seed=seeds)
def test_calibrls_own_loss_against_a_loop(ragged, seed: int) -> None:
    """Token means over all responses: PPO's clip at 0.2 with the dual clip at 3, and 0.1 times the leaky guide."""
    batch = plain(full_batch(ragged, seed))
    policy, guide, tokens = 0.0, 0.0, 0
    for i in range(len(batch.mask_BT)):
        anchor = [x for x in batch.anchor_logprobs_BT[i].tolist() if not math.isnan(x)]
        s = 1 if batch.correct_B[i] else -1
        for t in batch.mask_BT[i].nonzero()[:, 0].tolist():
            tokens += 1
            logprob, a = batch.new_logprobs_BT[i, t].item(), float(batch.advantage_BT[i, t])
            ratio = math.exp(logprob - float(batch.old_logprobs_BT[i, t]))
            gain = min(ratio * a, min(max(ratio, 0.8), 1.2) * a)
            policy -= max(gain, 3 * a) if a < 0 else gain
            if anchor:
                x = -s * (logprob - (anchor[t] if t < len(anchor) else 0.0))
                guide += abs(float(batch.group_advantage_B[i])) * (x if x > 0 else 0.5 * x)
    method = preset("calibrl-original")
    loss, values = objective(method, batch, count_totals(method, batch))
    assert values["calibration"].item() == pytest.approx(guide / max(tokens, 1), rel=1e-6, abs=1e-9)
    assert loss.item() == pytest.approx((policy + 0.1 * guide) / max(tokens, 1), rel=1e-6, abs=1e-9)
    assert not {"kl", "entropy"} & values.keys()


def test_papo_is_dapo_and_its_weighted_terms(ragged) -> None:
    batch = plain(full_batch(ragged, 2))
    totals = count_totals(preset("papo"), batch)
    expected = objective(preset("dapo"), batch, totals)[0]
    arguments = (batch.new_logprobs_BT, batch.corrupted_logprobs_BT, batch.mask_BT)
    expected = expected - 0.01 * token_mean(k3_divergence(*arguments), batch.mask_BT)
    for logprobs in arguments[:2]:
        expected = expected + 0.03 * nll_penalty(logprobs, batch.mask_BT)
    assert_close(objective(preset("papo"), batch, totals)[0], expected)


def test_off_policy_rows_take_the_shaped_ratio_and_no_other_term(ragged) -> None:
    method, batch = preset("off-pg-vaa"), full_batch(ragged, 8).responses()
    batch = replace(batch, target_B=None, policy_mask_BT=batch.mask_BT)
    off = batch.off_policy_B
    assert off.any()
    assert not off.all()
    totals = count_totals(method, batch)
    loss, values = objective(method, batch, totals)
    rows = (
        batch.new_logprobs_BT[off],
        batch.old_logprobs_BT[off],
        batch.advantage_BT[off],
        batch.mask_BT[off],
    )
    experience = token_mean(shaped_ratio_terms(*rows), batch.mask_BT[off], num_tokens=totals.num_tokens)
    fresh = objective(preset("dapo"), batch.take(~off), totals)[0]
    assert_close(values["off_policy"], experience.detach())
    assert_close(loss, fresh + experience)


def test_vppo_drops_tokens_but_still_divides_by_all(ragged) -> None:
    batch = replace(full_batch(ragged, 4).responses(), off_policy_B=None, target_B=None)
    arguments = (batch.new_logprobs_BT, batch.old_logprobs_BT, batch.advantage_BT, batch.policy_mask_BT)
    expected = policy_loss(*arguments, num_tokens=int(batch.mask_BT.sum()))
    assert_close(term(preset("vppo"), batch, "policy"), expected.detach())


@pytest.mark.parametrize("name", ["vaa", "ser", "pivot"])
def test_without_modulation_and_anchors_the_loss_is_exactly_dapos(ragged, name: str) -> None:
    """beta = 0 leaves the advantages (test_allocation), no anchor leaves a zero: bit for bit DAPO's loss."""
    batch = plain(full_batch(ragged, 6, torch.float32))
    for anchor in (None, torch.full_like(batch.group_advantage_B, torch.nan)):
        bare = replace(batch, anchor_logprob_B=anchor)
        settings = {} if name == "ser" else {"beta": 0.0}
        method, dapo = preset(name).with_settings(**settings), preset("dapo")
        totals = count_totals(method, bare)
        loss, reference = objective(method, bare, totals)[0], objective(dapo, bare, totals)[0]
        assert torch.equal(loss, reference)
        assert_close(gradients(loss, bare), gradients(reference, bare), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["ser", "off-sft-vaa", "calibrl", "calibrl-original"])
def test_without_anchors_the_term_is_a_zero_attached_to_the_graph(ragged, name: str) -> None:
    method = preset(name).with_settings(entropy_coef=0.0)
    batch = plain(full_batch(ragged, 6))
    batch = replace(
        batch,
        advantage_BT=torch.zeros_like(batch.mask_BT.double()),
        anchor_logprob_B=None,
        anchor_logprobs_BT=None,
    )
    loss, values = objective(method, batch, count_totals(method, batch))
    assert values["sft" if name == "off-sft-vaa" else "calibration"].item() == 0
    (gradient,) = torch.autograd.grad(loss, batch.new_logprobs_BT)
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_all_tokens_may_normalise_the_calibration(ragged) -> None:
    batch = plain(full_batch(ragged, 9))
    method = preset("ser")
    totals = count_totals(method, batch)
    over_replayed = term(method, batch, "calibration") * totals.counts["calibration"]
    over_all = term(method.with_settings(calibration_tokens="all"), batch, "calibration") * totals.num_tokens
    assert 0 < totals.counts["calibration"] < totals.num_tokens
    assert_close(over_replayed, over_all)


@pytest.mark.parametrize("form", ["seq_mean", "seq_sum"])
def test_the_sequence_forms_reach_the_objective(ragged, form: str) -> None:
    batch = plain(full_batch(ragged, 9))
    method = preset("ser").with_settings(calibration=form)
    assert term(method, batch, "calibration") != term(preset("ser"), batch, "calibration")


def test_metrics_by_hand() -> None:
    ratio = torch.tensor([[1.5, 0.5, 4.0, 1.0]])
    old_BT, ones_BT = torch.full((1, 4), -5.0), torch.ones(1, 4)
    batch = Batch(
        mask_BT=ones_BT,
        rewards_B=torch.ones(1),
        format_B=torch.ones(1),
        group_size=1,
        clean_logprobs_BT=old_BT,
        entropy_BT=ones_BT,
        old_logprobs_BT=old_BT,
        advantage_BT=torch.tensor([[1.0, -1.0, -1.0, 1.0]]),
        policy_mask_BT=ones_BT,
        group_advantage_B=torch.ones(1),
        new_logprobs_BT=ratio.log() - 5,
    )
    values = objective(preset("dapo"), batch, Totals(4, 1, {}))[1]
    assert values["ratio_sum"].item() == pytest.approx(7.0)
    assert values["ratio_max"].item() == pytest.approx(4.0)
    counts = [values[f"{clip}_tokens"].item() for clip in ("ratio", "clip_low", "clip_high", "dual_clip")]
    assert counts == [4, 1, 1, 1]


def test_a_missing_input_is_named(ragged) -> None:
    batch = replace(full_batch(ragged, 0), reference_logprobs_BT=None, corrupted_logprobs_BT=None)
    for name, argument in (("grpo", "reference_logprobs_BT"), ("papo", "corrupted_logprobs_BT")):
        with pytest.raises(ValueError, match=f"{argument} must be a tensor for this method, got None"):
            objective(preset(name), batch, Totals(1, 1, {}))
