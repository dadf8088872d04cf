"""Eq. 16 for every method: conformance between methods, splits, and each term against its own function."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from pivot.method import (
    PRESETS,
    Method,
    ObjectiveInputs,
    ObjectiveTotals,
    calibration_loss,
    count_totals,
    leaky_guide_loss,
    nll_penalty,
    objective,
    perception_divergence,
    policy_loss,
    preset,
    reference_kl,
    sequence_mean,
    sft_loss,
    shaped_ratio_loss,
)

examples = settings(derandomize=True, deadline=None, max_examples=8)
seeds = st.integers(0, 2**32 - 1)


def full_inputs(ragged, seed: int, dtype: torch.dtype = torch.float64) -> ObjectiveInputs:
    """Everything any method may ask for."""
    batch = ragged(seed, dtype)
    generator = torch.Generator().manual_seed(seed)
    rows, width = batch.mask_BT.shape
    keep = torch.rand(rows, width, generator=generator) < 0.6
    off_policy = torch.rand(rows, generator=generator) < 0.3
    sft_mask = torch.arange(9) < torch.randint(0, 10, (rows, 1), generator=generator)
    return ObjectiveInputs(
        logprobs_BT=batch.clean_BT.clone().requires_grad_(),
        old_logprobs_BT=batch.old_BT,
        advantage_BT=batch.advantage_BT,
        mask_BT=batch.mask_BT,
        policy_mask_BT=batch.mask_BT & keep,
        group_advantage_B=batch.advantage_B,
        correct_B=batch.correct_B,
        entropy_BT=batch.entropy_BT.clone().requires_grad_(),
        corrupted_logprobs_BT=batch.corrupted_BT,
        reference_logprobs_BT=batch.reference_BT,
        anchor_logprob_B=batch.anchor_B,
        anchor_logprobs_BT=batch.anchor_BT,
        off_policy_B=off_policy,
        sft_logprobs_AT=(-torch.rand(rows, 9, generator=generator, dtype=dtype)).requires_grad_(),
        sft_mask_AT=sft_mask,
    )


def rows_of(inputs: ObjectiveInputs, rows: Tensor) -> ObjectiveInputs:
    return ObjectiveInputs(**{f.name: getattr(inputs, f.name)[rows] for f in fields(inputs)})


def plain(inputs: ObjectiveInputs) -> ObjectiveInputs:
    """Without off-policy rows and with every valid token in the policy loss."""
    return replace(inputs, off_policy_B=None, policy_mask_BT=inputs.mask_BT)


def gradients(loss: Tensor, inputs: ObjectiveInputs) -> tuple[Tensor | None, ...]:
    leaves = [inputs.logprobs_BT, inputs.entropy_BT, inputs.sft_logprobs_AT]
    return torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", PRESETS)
@examples
@given(seed=seeds)
def test_splitting_a_minibatch_changes_neither_loss_nor_gradient(
    ragged, name: str, exact: bool, seed: int
) -> None:
    method = replace(preset(name), entropy_form="exact" if exact else "nll")
    inputs = full_inputs(ragged, seed)
    totals = count_totals(method, inputs)
    loss, values = objective(method, inputs, totals)
    order = torch.randperm(len(inputs.mask_BT), generator=torch.Generator().manual_seed(seed))
    parts = [rows_of(inputs, rows) for rows in order.split(2)]
    sums = [count_totals(method, part) for part in parts]
    assert sum(sums[1:], sums[0]) == totals
    split = [objective(method, part, totals) for part in parts]
    total = torch.stack([part_loss for part_loss, _ in split]).sum()
    assert_close(total, loss)
    assert_close(gradients(total, inputs), gradients(loss, inputs))
    for key, value in values.items():
        pieces = torch.stack([part_values[key] for _, part_values in split])
        assert_close(pieces.amax() if key == "ratio_max" else pieces.sum(), value)


@pytest.mark.parametrize("name", PRESETS)
def test_padding_changes_nothing(ragged, name: str) -> None:
    method, inputs = preset(name), full_inputs(ragged, 5)
    wide = ObjectiveInputs(
        **{
            f.name: torch.nn.functional.pad(
                value, (0, 8), value=0 if value.dtype == torch.bool else torch.nan
            )
            if f.name.endswith("BT") or f.name.endswith("AT")
            else value
            for f in fields(inputs)
            for value in [getattr(inputs, f.name)]
        }
    )
    totals = count_totals(method, inputs)
    assert count_totals(method, wide) == totals
    loss, wide_loss = objective(method, inputs, totals)[0], objective(method, wide, totals)[0]
    assert_close(wide_loss, loss)
    assert_close(gradients(wide_loss, inputs), gradients(loss, inputs))


@examples
@given(seed=seeds)
def test_dapo_is_the_policy_loss_and_the_entropy_penalty(ragged, seed: int) -> None:
    inputs = plain(full_inputs(ragged, seed))
    loss, values = objective(preset("dapo"), inputs, count_totals(preset("dapo"), inputs))
    arguments = (inputs.logprobs_BT, inputs.old_logprobs_BT, inputs.advantage_BT, inputs.mask_BT)
    penalty = nll_penalty(inputs.logprobs_BT, inputs.mask_BT)
    assert_close(loss, policy_loss(*arguments) + 0.06 * penalty)
    assert_close(values["entropy"], penalty.detach())
    assert set(values) == {
        "policy", "entropy", "ratio_sum", "ratio_tokens", "ratio_max",
        "clip_low_tokens", "clip_high_tokens", "dual_clip_tokens",
    }  # fmt: skip


def test_grpo_takes_sequence_means_and_a_kl(ragged) -> None:
    method, inputs = replace(preset("grpo"), entropy_coef=0.0), plain(full_inputs(ragged, 11))
    loss, values = objective(method, inputs, count_totals(method, inputs))
    kl = sequence_mean(
        reference_kl(inputs.logprobs_BT, inputs.reference_logprobs_BT, inputs.mask_BT), inputs.mask_BT
    )
    ratio = (inputs.logprobs_BT - inputs.old_logprobs_BT).exp()
    a = inputs.advantage_BT
    surrogate = torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a)
    surrogate = torch.where(a < 0, torch.maximum(surrogate, 3.0 * a), surrogate)
    assert_close(values["kl"], kl.detach())
    assert_close(loss, -sequence_mean(surrogate, inputs.mask_BT) + 0.01 * kl)


def term(method: Method, inputs: ObjectiveInputs, name: str) -> Tensor:
    return objective(method, inputs, count_totals(method, inputs))[1][name]


@examples
@given(seed=seeds)
def test_each_term_is_its_own_function(ragged, seed: int) -> None:
    inputs = plain(full_inputs(ragged, seed))
    advantage = (inputs.group_advantage_B, inputs.correct_B, inputs.mask_BT)
    calibration = calibration_loss(inputs.logprobs_BT, inputs.anchor_logprob_B, *advantage)
    assert_close(term(preset("pivot"), inputs, "calibration"), calibration.detach())
    guide = leaky_guide_loss(inputs.logprobs_BT, inputs.anchor_logprobs_BT, *advantage)
    assert_close(term(preset("calibrl"), inputs, "calibration"), guide.detach())
    perception = perception_divergence(inputs.logprobs_BT, inputs.corrupted_logprobs_BT, inputs.mask_BT)
    assert_close(term(preset("papo"), inputs, "perception"), perception.detach())
    target = sft_loss(inputs.sft_logprobs_AT, inputs.sft_mask_AT)
    assert_close(term(preset("off-sft-vaa"), inputs, "sft"), target.detach())


@examples
@given(seed=seeds)
def test_calibrls_own_loss_against_a_loop(ragged, seed: int) -> None:
    """Token means over all responses: PPO's clip at 0.2 with the dual clip at 3, and 0.1 times the leaky guide."""
    inputs = plain(full_inputs(ragged, seed))
    policy, guide, tokens = 0.0, 0.0, 0
    for i in range(len(inputs.mask_BT)):
        anchor = [x for x in inputs.anchor_logprobs_BT[i].tolist() if not math.isnan(x)]
        s = 1 if inputs.correct_B[i] else -1
        for t in inputs.mask_BT[i].nonzero()[:, 0].tolist():
            tokens += 1
            logprob, a = inputs.logprobs_BT[i, t].item(), float(inputs.advantage_BT[i, t])
            ratio = math.exp(logprob - float(inputs.old_logprobs_BT[i, t]))
            gain = min(ratio * a, min(max(ratio, 0.8), 1.2) * a)
            policy -= max(gain, 3 * a) if a < 0 else gain
            if anchor:
                x = -s * (logprob - (anchor[t] if t < len(anchor) else 0.0))
                guide += abs(float(inputs.group_advantage_B[i])) * (x if x > 0 else 0.5 * x)
    method = preset("calibrl-original")
    loss, values = objective(method, inputs, count_totals(method, inputs))
    assert values["calibration"].item() == pytest.approx(guide / max(tokens, 1), rel=1e-6, abs=1e-9)
    assert loss.item() == pytest.approx((policy + 0.1 * guide) / max(tokens, 1), rel=1e-6, abs=1e-9)
    assert not {"kl", "entropy"} & values.keys()


def test_papo_is_dapo_and_its_weighted_terms(ragged) -> None:
    inputs = plain(full_inputs(ragged, 2))
    totals = count_totals(preset("papo"), inputs)
    expected = objective(preset("dapo"), inputs, totals)[0]
    arguments = (inputs.logprobs_BT, inputs.corrupted_logprobs_BT, inputs.mask_BT)
    expected = expected - 0.01 * perception_divergence(*arguments)
    for logprobs in arguments[:2]:
        expected = expected + 0.03 * nll_penalty(logprobs, inputs.mask_BT)
    assert_close(objective(preset("papo"), inputs, totals)[0], expected)


def test_off_policy_rows_take_the_shaped_ratio_and_no_other_term(ragged) -> None:
    method, inputs = preset("off-pg-vaa"), full_inputs(ragged, 8)
    inputs = replace(inputs, policy_mask_BT=inputs.mask_BT)
    off = inputs.off_policy_B
    assert off.any()
    assert not off.all()
    totals = count_totals(method, inputs)
    loss, values = objective(method, inputs, totals)
    experience = shaped_ratio_loss(
        inputs.logprobs_BT[off], inputs.old_logprobs_BT[off], inputs.advantage_BT[off], inputs.mask_BT[off],
        num_tokens=totals.num_tokens,
    )  # fmt: skip
    fresh = objective(preset("dapo"), rows_of(inputs, ~off), totals)[0]
    assert_close(values["off_policy"], experience.detach())
    assert_close(loss, fresh + experience)


def test_vppo_drops_tokens_but_still_divides_by_all(ragged) -> None:
    inputs = replace(full_inputs(ragged, 4), off_policy_B=None)
    arguments = (inputs.logprobs_BT, inputs.old_logprobs_BT, inputs.advantage_BT, inputs.policy_mask_BT)
    expected = policy_loss(*arguments, num_tokens=int(inputs.mask_BT.sum()))
    assert_close(term(preset("vppo"), inputs, "policy"), expected.detach())


@pytest.mark.parametrize("name", ["vaa", "ser", "pivot"])
def test_without_modulation_and_anchors_the_loss_is_exactly_dapos(ragged, name: str) -> None:
    """beta = 0 leaves the advantages (test_allocation), no anchor leaves a zero: bit for bit DAPO's loss."""
    inputs = plain(full_inputs(ragged, 6, torch.float32))
    for anchor in (None, torch.full_like(inputs.group_advantage_B, torch.nan)):
        bare = replace(inputs, anchor_logprob_B=anchor)
        method, dapo = replace(preset(name), beta=0.0), preset("dapo")
        totals = count_totals(method, bare)
        loss, reference = objective(method, bare, totals)[0], objective(dapo, bare, totals)[0]
        assert torch.equal(loss, reference)
        assert_close(gradients(loss, bare), gradients(reference, bare), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["ser", "off-sft-vaa", "calibrl", "calibrl-original"])
def test_without_anchors_the_term_is_a_zero_attached_to_the_graph(ragged, name: str) -> None:
    method = replace(preset(name), entropy_coef=0.0)
    inputs = replace(
        plain(full_inputs(ragged, 6)), advantage_BT=torch.zeros_like(full_inputs(ragged, 6).mask_BT.double())
    )
    inputs = replace(
        inputs, anchor_logprob_B=None, anchor_logprobs_BT=None, sft_logprobs_AT=None, sft_mask_AT=None
    )
    loss, values = objective(method, inputs, ObjectiveTotals(10, 2))
    assert values["sft" if name == "off-sft-vaa" else "calibration"].item() == 0
    (gradient,) = torch.autograd.grad(loss, inputs.logprobs_BT)
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_all_tokens_may_normalise_the_calibration(ragged) -> None:
    inputs = plain(full_inputs(ragged, 9))
    method = preset("ser")
    totals = count_totals(method, inputs)
    over_replayed = term(method, inputs, "calibration") * totals.num_calibrated_tokens
    over_all = term(replace(method, calibration_tokens="all"), inputs, "calibration") * totals.num_tokens
    assert 0 < totals.num_calibrated_tokens < totals.num_tokens
    assert_close(over_replayed, over_all)


@pytest.mark.parametrize("form", ["seq_mean", "seq_sum"])
def test_the_sequence_forms_reach_the_objective(ragged, form: str) -> None:
    inputs = plain(full_inputs(ragged, 9))
    method = replace(preset("ser"), calibration=form)
    assert term(method, inputs, "calibration") != term(preset("ser"), inputs, "calibration")


def test_metrics_by_hand() -> None:
    ratio = torch.tensor([[1.5, 0.5, 4.0, 1.0]])
    inputs = ObjectiveInputs(
        logprobs_BT=ratio.log() - 5,
        old_logprobs_BT=torch.full((1, 4), -5.0),
        advantage_BT=torch.tensor([[1.0, -1.0, -1.0, 1.0]]),
        mask_BT=torch.ones(1, 4),
        policy_mask_BT=torch.ones(1, 4),
        group_advantage_B=torch.ones(1),
        correct_B=torch.ones(1),
    )
    values = objective(preset("dapo"), inputs, ObjectiveTotals(4, 1))[1]
    assert values["ratio_sum"].item() == pytest.approx(7.0)
    assert values["ratio_max"].item() == pytest.approx(4.0)
    counts = [values[f"{clip}_tokens"].item() for clip in ("ratio", "clip_low", "clip_high", "dual_clip")]
    assert counts == [4, 1, 1, 1]


def test_a_missing_input_is_named(ragged) -> None:
    inputs = replace(full_inputs(ragged, 0), reference_logprobs_BT=None, corrupted_logprobs_BT=None)
    for name, argument in (("grpo", "reference_logprobs_BT"), ("papo", "corrupted_logprobs_BT")):
        with pytest.raises(ValueError, match=f"{argument} must be a tensor for this method, got None"):
            objective(preset(name), inputs, ObjectiveTotals(1, 1))
