"""Our variants of Eq. 10 and 14, against hand-computed numbers and a naive loop."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pivot.method import (
    Batch,
    absolute_support,
    allocate_advantage,
    preset,
    restrain_utility,
    support_separation,
    weigh_advantage,
)

UTILITY_BT = torch.tensor([[2.0, -3.0, 0.5], [2.0, -3.0, 0.5]])
CORRECT_B = torch.tensor([True, False])


def test_at_the_defaults_the_utility_is_the_papers() -> None:
    assert torch.equal(restrain_utility(UTILITY_BT, CORRECT_B), UTILITY_BT)


def test_the_bound_holds_on_both_sides_and_wrong_responses_gain_nothing() -> None:
    found = restrain_utility(UTILITY_BT, CORRECT_B, bound=1.0, soften_wrong=False)
    assert found.tolist() == [[1.0, -1.0, 0.5], [0.0, -1.0, 0.0]]


def naive_separation(means: list[float], correct: list[bool], size: int) -> float:
    total, pairs = 0, 0
    for start in range(0, len(means), size):
        rows = range(start, start + size)
        for i in rows:
            for j in rows:
                if correct[i] and not correct[j]:
                    pairs += 1
                    total += (means[i] > means[j]) - (means[i] < means[j])
    return total / pairs if pairs else 0.0


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=6, max_size=6))
def test_separation_is_that_of_a_naive_loop_and_padding_changes_nothing(rows) -> None:
    means, correct = [float(m) for m, _ in rows], [c for _, c in rows]
    support_BT = torch.tensor([[m - 1.0, m + 1.0, 99.0] for m in means])
    mask_BT = torch.tensor([[1, 1, 0]] * 6).bool()
    found = support_separation(support_BT, torch.tensor(correct).view(2, 3), mask_BT)
    assert float(found) == pytest.approx(naive_separation(means, correct, 3))


def rows(clean_BT: torch.Tensor, corrupted_BT: torch.Tensor) -> Batch:
    """Pairs of a right and a wrong response."""
    return Batch(
        mask_BT=torch.ones_like(clean_BT).bool(),
        rewards_B=(torch.arange(len(clean_BT)) % 2 == 0).to(clean_BT.dtype),
        format_B=torch.ones(len(clean_BT)),
        group_size=2,
        clean_logprobs_BT=clean_BT,
        entropy_BT=torch.ones_like(clean_BT),
        old_logprobs_BT=clean_BT,
        corrupted_logprobs_BT=corrupted_BT,
    )


# c = 1 - exp(log q + 1): about 0.63 for log q = -2, -1.72 for log q = 0.
SUPPORTED, UNSUPPORTED = [-2.0, -2.0], [0.0, 0.0]


def allocate(name: str, corrupted: list[list[float]], **changes):
    """The batch with its advantages, and the beta that adapted."""
    method = preset(name).with_settings(utility="local", **changes)
    found, path = allocate_advantage(method, rows(torch.full((4, 2), -1.0), torch.tensor(corrupted)))
    return found, path.beta


def test_a_supported_but_wrong_response_keeps_its_whole_penalty_when_bounded() -> None:
    everywhere = [SUPPORTED] * 4
    (plain, _), (bounded, _) = allocate("pivot", everywhere), allocate("pivot-bounded", everywhere)
    wrong = plain.group_advantage_B[1]
    assert (plain.advantage_BT[1] > wrong).all()
    assert torch.equal(bounded.advantage_BT[1], wrong.expand(2))
    assert torch.equal(bounded.advantage_BT[0], plain.advantage_BT[0])


def test_an_unsupported_wrong_token_is_hit_at_most_by_the_bound() -> None:
    found, _ = allocate("pivot-bounded", [UNSUPPORTED] * 4, beta=0.5)
    assert found.advantage_BT[1].tolist() == pytest.approx([1.5 * float(found.group_advantage_B[1])] * 2)


@pytest.mark.parametrize(
    ("corrupted", "strength"),
    [
        ([SUPPORTED, UNSUPPORTED, SUPPORTED, UNSUPPORTED], 1.0),
        ([SUPPORTED, UNSUPPORTED, UNSUPPORTED, SUPPORTED], 0.0),
        ([UNSUPPORTED, SUPPORTED, UNSUPPORTED, SUPPORTED], 0.0),
        ([SUPPORTED, UNSUPPORTED, SUPPORTED, SUPPORTED], 0.5),
    ],
    ids=["separates", "half-half", "reversed", "one of two"],
)
def test_the_adaptive_strength_is_the_separation_and_never_negative(corrupted, strength) -> None:
    found, beta = allocate("pivot-adaptive", corrupted)
    assert beta is not None
    assert float(beta) == pytest.approx(strength)
    expected, beta = allocate("pivot", corrupted, beta=strength)
    assert torch.allclose(found.advantage_BT, expected.advantage_BT)
    assert beta is None


def test_absolute_support_is_the_difference_of_two_probabilities() -> None:
    clean_BT = torch.tensor([[0.9, 0.01, 0.01, 0.5, 0.7]]).log()
    corrupted_BT = torch.tensor([[0.2, 0.002, 0.06, 0.5, 0.1]]).log()
    mask_BT = torch.tensor([[1, 1, 1, 1, 0]]).bool()
    found = absolute_support(clean_BT, corrupted_BT, mask_BT)
    assert found[0].tolist() == pytest.approx([0.7, 0.008, -0.05, 0.0, 0.0], abs=1e-6)
    assert float(found[0, 3]) == 0.0, "equal images give exactly 0"
    never = torch.full((1, 2), -torch.inf)
    both = torch.ones(1, 2).bool()
    assert absolute_support(torch.zeros(1, 2), never, both).tolist() == [[1.0, 1.0]]
    assert absolute_support(never, torch.zeros(1, 2), both).tolist() == [[-1.0, -1.0]]


def test_a_slip_weighs_little_and_a_percept_much_when_support_is_absolute() -> None:
    """Row 1 is wrong: first a slip of p = 0.01 that the corrupted image likes, then a percept that it does not."""
    clean_BT = torch.tensor([[0.01, 0.9]] * 4).log()
    corrupted_BT = torch.tensor([[0.06, 0.2]] * 4).log()
    (plain, _), (absolute, path) = (
        allocate_advantage(
            preset(name).with_settings(utility="local", beta=beta), rows(clean_BT, corrupted_BT)
        )
        for name, beta in (("pivot", 0.5), ("pivot-absolute", 1.0))
    )
    wrong = float(plain.group_advantage_B[1])
    # beta = 0.5 and c = -5, 7/9; beta = 1 and p - q = -0.05, 0.7.
    assert plain.advantage_BT[1].tolist() == pytest.approx([3.5 * wrong, (1 - 0.5 * 7 / 9) * wrong], rel=1e-4)
    assert absolute.advantage_BT[1].tolist() == pytest.approx([1.05 * wrong, 0.3 * wrong], rel=1e-4)
    assert path.support_clipped_share == 0


def test_weighed_advantages_grow_with_the_size_of_utility_and_keep_their_sign() -> None:
    advantage_B = torch.tensor([2.0, -1.0])
    mask_BT = torch.tensor([[1, 1, 1], [1, 1, 0]]).bool()
    found = weigh_advantage(advantage_B, UTILITY_BT, mask_BT, beta=0.5)
    assert found.tolist() == [[4.0, 5.0, 2.5], [-2.0, -2.5, 0.0]]


P_V = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
Q_V = torch.tensor([0.6, 0.1, 0.2, 0.1], dtype=torch.float64)


def expected_push(**changes) -> tuple[torch.Tensor, float]:
    """On the logits of one token that decides nothing: E[A' d log p(y) / d logits] over y ~ p, and |A|.

    Every word of the vocabulary is a response of one token, once right and once wrong.
    """
    method = preset("pivot").with_settings(utility="local", format_coef=0.0, **changes)
    words = len(P_V)
    clean_BT = P_V.log().repeat_interleave(2)[:, None]
    corrupted_BT = Q_V.log().repeat_interleave(2)[:, None]
    found, _ = allocate_advantage(method, rows(clean_BT, corrupted_BT))
    score_VV = torch.eye(words, dtype=torch.float64) - P_V
    push_V = (P_V * found.advantage_BT.view(words, 2).mean(dim=1)) @ score_VV
    return push_V, float(found.group_advantage_B.abs()[0])


def test_eq_14_pushes_a_token_that_decides_nothing_away_from_the_corrupted_image() -> None:
    """The push is beta |A| (p - q): the gradient of beta |A| KL(q||p), whose weight in PAPO_D is 0.01."""
    push_V, size = expected_push(beta=0.5)
    torch.testing.assert_close(push_V, 0.5 * size * (P_V - Q_V))
    logits_V = P_V.log().requires_grad_()
    divergence = (Q_V * (Q_V.log() - torch.log_softmax(logits_V, 0))).sum()
    (gradient_V,) = torch.autograd.grad(divergence, logits_V)
    torch.testing.assert_close(push_V, 0.5 * size * gradient_V)


@pytest.mark.parametrize("form", ["relative", "absolute"])
def test_weighing_pushes_a_token_that_decides_nothing_nowhere(form: str) -> None:
    push_V, _ = expected_push(beta=0.5, modulation="weigh", support_form=form)
    torch.testing.assert_close(push_V, torch.zeros_like(P_V))
