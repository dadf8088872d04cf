"""From rewards to token advantages, method by method."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pivot.method import (
    PRESETS,
    Allocation,
    Method,
    TokenScores,
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


def scores(seed: int = 0, width: int = 12) -> TokenScores:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(width) < torch.randint(0, width + 1, (12, 1), generator=generator)
    logprobs, shift, entropy = (torch.randn(12, width, generator=generator) for _ in range(3))
    clean = -logprobs.abs()
    return TokenScores(clean, entropy.abs(), mask, clean + shift)


def allocate(method: Method | str, given: TokenScores | None = None, **options: Tensor) -> Allocation:
    method = preset(method) if isinstance(method, str) else method
    return allocate_advantage(method, REWARDS, FORMAT, given or scores(), **options)


def test_without_modulation_every_token_gets_accuracy_plus_format() -> None:
    given = scores()
    expected = group_advantage(REWARDS).flatten() + 0.1 * group_advantage(FORMAT).flatten()
    found = allocate("dapo", given)
    assert_close(found.advantage_BT, expected[:, None] * given.mask_BT)
    assert torch.equal(found.policy_mask_BT, given.mask_BT)
    assert_close(found.group_advantage_B, group_advantage(REWARDS).flatten())
    assert found.utility_BT is None
    assert found.support_clipped_share is None


def test_without_std_the_advantage_is_that_of_the_summed_reward() -> None:
    """CalibRL's script centres accuracy + 0.1 * format as one reward; without a division that is our sum of two."""
    given = scores()
    total = REWARDS + 0.1 * FORMAT
    expected = (total - total.mean(dim=1, keepdim=True)).flatten()
    found = allocate("calibrl-original", given)
    assert_close(found.advantage_BT, expected[:, None] * given.mask_BT)
    # |A| of the guide: groups 1 0 0 1, 0 1 0 0 and 1 1 1 1, centred.
    assert found.group_advantage_B.tolist() == [0.5, -0.5, -0.5, 0.5, -0.25, 0.75, -0.25, -0.25, 0, 0, 0, 0]


def test_pivot_modulates_then_protects_then_adds_format() -> None:
    given, correct = scores(), REWARDS.flatten()
    support = visual_support(given.logprobs_BT, given.corrupted_logprobs_BT, given.mask_BT)
    utility = token_utility(support, given.entropy_BT, given.mask_BT)
    accuracy = group_advantage(REWARDS).flatten()
    expected = modulate_advantage(accuracy, utility, correct, given.mask_BT, beta=0.5)
    expected = expected + 0.1 * group_advantage(FORMAT).flatten()[:, None] * given.mask_BT
    # Strong enough for some tokens to need protection.
    found = allocate(replace(preset("pivot"), beta=0.5), given)
    assert_close(found.advantage_BT, expected)
    assert_close(found.utility_BT, utility)
    raw = accuracy[:, None] * (1 + 0.5 * accuracy.sign()[:, None] * utility)
    protected = given.mask_BT & (raw * torch.where(correct > 0, 1.0, -1.0)[:, None] < 0)
    assert torch.equal(found.protected_BT, protected)
    assert protected.any()


def test_local_utility_is_the_support() -> None:
    found = allocate("ser-vaa-local")
    assert torch.equal(found.utility_BT, found.support_BT)
    assert found.future_BT is None


def test_format_before_modulation_is_modulated_and_protected_too() -> None:
    method = replace(preset("vaa"), format_position="before", beta=0.5)
    given = scores()
    total = group_advantage(REWARDS).flatten() + 0.1 * group_advantage(FORMAT).flatten()
    found = allocate(method, given)
    utility = allocate("vaa", given).utility_BT
    expected = modulate_advantage(total, utility, REWARDS.flatten(), given.mask_BT, beta=0.5)
    assert_close(found.advantage_BT, expected)
    assert_close(found.group_advantage_B, group_advantage(REWARDS).flatten())


def test_vppo_masks_tokens_and_shapes_over_each_minibatch() -> None:
    given = scores()
    minibatch = torch.tensor([0] * 4 + [1] * 8)
    k3 = k3_divergence(given.logprobs_BT, given.corrupted_logprobs_BT, given.mask_BT)
    factor = shaping_factor(k3, given.mask_BT, minibatch_B=minibatch)
    found = allocate("vppo", given, minibatch_B=minibatch)
    accuracy = group_advantage(REWARDS).flatten() * factor
    expected = (accuracy + 0.1 * group_advantage(FORMAT).flatten())[:, None] * given.mask_BT
    assert_close(found.advantage_BT, expected)
    assert torch.equal(found.policy_mask_BT, top_token_mask(k3, given.mask_BT, share=0.4))
    alone = allocate_advantage(
        preset("vppo"),
        REWARDS[:1],
        FORMAT[:1],
        TokenScores(*(t[:4] for t in (given.logprobs_BT, given.entropy_BT, given.mask_BT)),
                    given.corrupted_logprobs_BT[:4]),
    )  # fmt: skip
    assert_close(found.advantage_BT[:4], alone.advantage_BT)


def test_the_clipped_share_counts_valid_tokens_below_the_floor() -> None:
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    given = TokenScores(torch.full((1, 3), -5.0), torch.ones(1, 3), mask, torch.tensor([[-1.0, -5.0, -1.0]]))
    found = allocate_advantage(preset("vaa"), torch.ones(1, 1), torch.ones(1, 1), given)
    assert found.support_clipped_share.item() == 0.5
    literal = replace(preset("vaa"), support_floor=None)
    found = allocate_advantage(literal, torch.ones(1, 1), torch.ones(1, 1), given)
    assert found.support_clipped_share.item() == 0
    assert found.support_BT[0, 0] < -50


@pytest.mark.parametrize("name", PRESETS)
def test_padding_and_prompt_order_change_nothing(name: str) -> None:
    given = scores(1)
    wide = TokenScores(
        *(
            torch.nn.functional.pad(t, (0, 9), value=value)
            for t, value in (
                (given.logprobs_BT, torch.nan),
                (given.entropy_BT, torch.nan),
                (given.mask_BT, 0),
                (given.corrupted_logprobs_BT, torch.inf),
            )
        )
    )
    plain, padded = allocate(name, given), allocate(name, wide)
    assert_close(padded.advantage_BT[:, :12], plain.advantage_BT)
    assert torch.equal(padded.advantage_BT[:, 12:], torch.zeros(12, 9))
    prompts = torch.tensor([2, 0, 1])
    rows = (prompts[:, None] * 4 + torch.arange(4)).flatten()
    shuffled = allocate_advantage(
        preset(name),
        REWARDS[prompts],
        FORMAT[prompts],
        TokenScores(
            *(
                t[rows]
                for t in (given.logprobs_BT, given.entropy_BT, given.mask_BT, given.corrupted_logprobs_BT)
            )
        ),
    )
    assert_close(shuffled.advantage_BT, plain.advantage_BT[rows])


def test_identical_images_leave_dapos_advantage() -> None:
    given = scores()
    same = replace(given, corrupted_logprobs_BT=given.logprobs_BT.clone())
    assert torch.equal(allocate("pivot", same).advantage_BT, allocate("dapo", same).advantage_BT)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="corrupted_logprobs_BT must be a tensor"):
        allocate("vaa", replace(scores(), corrupted_logprobs_BT=None))
    with pytest.raises(ValueError, match=r"format_PG .* shape \[3, 4\], got float32 of shape \[3, 3\]"):
        allocate_advantage(preset("dapo"), REWARDS, FORMAT[:, :3], scores())
    with pytest.raises(ValueError, match=r"logprobs_BT .* shape \[4, T\], got float32 of shape \[12, 12\]"):
        allocate_advantage(preset("dapo"), REWARDS[:1], FORMAT[:1], scores())
