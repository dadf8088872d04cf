"""From rewards to token advantages, method by method."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from pivot.method import (
    PRESETS,
    Batch,
    Diagnostics,
    Method,
    allocate_advantage,
    group_advantage,
    k3_divergence,
    modulate_advantage,
    preset,
    shaping_factor,
    token_utility,
    top_token_mask,
    visual_support,
)

REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
FORMAT = torch.tensor([[1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 1.0]])


def rows(seed: int = 0, width: int = 12) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(width) < torch.randint(0, width + 1, (12, 1), generator=generator)
    logprobs, shift, entropy = (torch.randn(12, width, generator=generator) for _ in range(3))
    clean = -logprobs.abs()
    return Batch(
        mask_BT=mask,
        rewards_B=REWARDS.flatten(),
        format_B=FORMAT.flatten(),
        group_size=4,
        clean_logprobs_BT=clean,
        entropy_BT=entropy.abs(),
        old_logprobs_BT=clean,
        corrupted_logprobs_BT=clean + shift,
        similarity_BT=torch.tanh(shift),
    )


def allocate(method: Method | str, given: Batch | None = None) -> tuple[Batch, Diagnostics]:
    return allocate_advantage(preset(method) if isinstance(method, str) else method, given or rows())


def test_without_modulation_every_token_gets_accuracy_plus_format() -> None:
    given = rows()
    expected = group_advantage(REWARDS).flatten() + 0.1 * group_advantage(FORMAT).flatten()
    found, path = allocate("dapo", given)
    assert_close(found.advantage_BT, expected[:, None] * given.mask_BT)
    assert torch.equal(found.policy_mask_BT, given.mask_BT)
    assert_close(found.group_advantage_B, group_advantage(REWARDS).flatten())
    assert path.utility_BT is None
    assert path.support_clipped_share is None


def test_without_std_the_advantage_is_that_of_the_summed_reward() -> None:
    """CalibRL's script centres accuracy + 0.1 * format as one reward; without a division that is our sum of two."""
    given = rows()
    total = REWARDS + 0.1 * FORMAT
    expected = (total - total.mean(dim=1, keepdim=True)).flatten()
    found, _ = allocate("calibrl-original", given)
    assert_close(found.advantage_BT, expected[:, None] * given.mask_BT)
    # |A| of the guide: groups 1 0 0 1, 0 1 0 0 and 1 1 1 1, centred.
    assert found.group_advantage_B.tolist() == [0.5, -0.5, -0.5, 0.5, -0.25, 0.75, -0.25, -0.25, 0, 0, 0, 0]


def test_pivot_modulates_then_protects_then_adds_format() -> None:
    given, correct = rows(), REWARDS.flatten()
    support = visual_support(given.clean_logprobs_BT, given.corrupted_logprobs_BT, given.mask_BT)
    utility = token_utility(support, given.entropy_BT, given.mask_BT)
    accuracy = group_advantage(REWARDS).flatten()
    expected = modulate_advantage(accuracy, utility, correct, given.mask_BT, beta=0.5)
    expected = expected + 0.1 * group_advantage(FORMAT).flatten()[:, None] * given.mask_BT
    # Strong enough for some tokens to need protection.
    found, path = allocate(preset("pivot").with_settings(beta=0.5), given)
    assert_close(found.advantage_BT, expected)
    assert_close(path.utility_BT, utility)
    raw = accuracy[:, None] * (1 + 0.5 * accuracy.sign()[:, None] * utility)
    protected = given.mask_BT & (raw * torch.where(correct > 0, 1.0, -1.0)[:, None] < 0)
    assert torch.equal(path.protected_BT, protected)
    assert protected.any()


def test_local_utility_is_the_support() -> None:
    _, found = allocate("ser-vaa-local")
    assert torch.equal(found.utility_BT, found.support_BT)
    assert found.future_BT is None


def test_format_before_modulation_is_modulated_and_protected_too() -> None:
    method = preset("vaa").with_settings(format_position="before", beta=0.5)
    given = rows()
    total = group_advantage(REWARDS).flatten() + 0.1 * group_advantage(FORMAT).flatten()
    found, _ = allocate(method, given)
    utility = allocate("vaa", given)[1].utility_BT
    expected = modulate_advantage(total, utility, REWARDS.flatten(), given.mask_BT, beta=0.5)
    assert_close(found.advantage_BT, expected)
    assert_close(found.group_advantage_B, group_advantage(REWARDS).flatten())


def test_vppo_masks_tokens_and_shapes_over_each_minibatch() -> None:
    given = rows()
    minibatch = torch.tensor([0] * 4 + [1] * 8)
    k3 = k3_divergence(given.clean_logprobs_BT, given.corrupted_logprobs_BT, given.mask_BT)
    factor = shaping_factor(k3, given.mask_BT, minibatch_B=minibatch)
    found, _ = allocate("vppo", replace(given, minibatch_B=minibatch))
    accuracy = group_advantage(REWARDS).flatten() * factor
    expected = (accuracy + 0.1 * group_advantage(FORMAT).flatten())[:, None] * given.mask_BT
    assert_close(found.advantage_BT, expected)
    assert torch.equal(found.policy_mask_BT, top_token_mask(k3, given.mask_BT, share=0.4))
    alone, _ = allocate("vppo", given.take(torch.arange(4)))
    assert_close(found.advantage_BT[:4], alone.advantage_BT)


def test_the_clipped_share_counts_valid_tokens_below_the_floor() -> None:
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    clean = torch.full((1, 3), -5.0)
    given = Batch(
        mask_BT=mask,
        rewards_B=torch.ones(1),
        format_B=torch.ones(1),
        group_size=1,
        clean_logprobs_BT=clean,
        entropy_BT=torch.ones(1, 3),
        old_logprobs_BT=clean,
        corrupted_logprobs_BT=torch.tensor([[-1.0, -5.0, -1.0]]),
    )
    _, found = allocate("vaa", given)
    assert found.support_clipped_share.item() == 0.5
    _, found = allocate(preset("vaa").with_settings(support_floor=None), given)
    assert found.support_clipped_share.item() == 0
    assert found.support_BT[0, 0] < -50


@pytest.mark.parametrize("name", PRESETS)
def test_padding_and_prompt_order_change_nothing(name: str) -> None:
    given = rows(1)
    padding = {"mask_BT": 0, "corrupted_logprobs_BT": torch.inf}
    wide = replace(
        given,
        **{
            name: torch.nn.functional.pad(value, (0, 9), value=padding.get(name, torch.nan))
            for name, value in vars(given).items()
            if name.endswith("_BT") and value is not None
        },
    )
    (plain, _), (padded, _) = allocate(name, given), allocate(name, wide)
    assert_close(padded.advantage_BT[:, :12], plain.advantage_BT)
    assert torch.equal(padded.advantage_BT[:, 12:], torch.zeros(12, 9))
    prompts = torch.tensor([2, 0, 1])
    order = (prompts[:, None] * 4 + torch.arange(4)).flatten()
    shuffled, _ = allocate(name, given.take(order))
    assert_close(shuffled.advantage_BT, plain.advantage_BT[order])


def test_identical_images_leave_dapos_advantage() -> None:
    given = rows()
    same = replace(given, corrupted_logprobs_BT=given.clean_logprobs_BT.clone())
    assert torch.equal(allocate("pivot", same)[0].advantage_BT, allocate("dapo", same)[0].advantage_BT)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="corrupted_logprobs_BT must be a tensor"):
        allocate("vaa", replace(rows(), corrupted_logprobs_BT=None))
    with pytest.raises(ValueError, match=r"format_B .* shape \[12\], got float32 of shape \[9\]"):
        allocate("dapo", replace(rows(), format_B=torch.ones(9)))
    with pytest.raises(ValueError, match=r"rewards_B .* shape \[12\], got float32 of shape \[4\]"):
        allocate("dapo", replace(rows(), rewards_B=torch.ones(4)))
