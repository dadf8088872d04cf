"""The weighted draw equals the sequential one; replay starts by solved ratio or warm-up, permanently."""

import itertools

import numpy as np
import pytest

from pivot.experience.replay import ReplayGate, draw_without_replacement

CHI_SQUARE_999 = {11: 31.264, 59: 98.324}
"""The 0.999 quantiles of chi-square by degrees of freedom, from tables."""


def sequential_probability(weights: np.ndarray, order: tuple[int, ...]) -> float:
    """Probability of drawing `order` one by one, each proportional to its weight among those left."""
    probability, left = 1.0, float(weights.sum())
    for index in order:
        probability *= float(weights[index]) / left
        left -= float(weights[index])
    return probability


@pytest.mark.parametrize(
    ("weights", "num_draws"),
    [([0.1875, 0.25, 0.109375, 0.01], 2), ([0.25, 0.0, 0.234375, 0.1875, 0.109375, 0.05], 3)],
)
def test_ordered_draws_have_the_sequential_distribution(weights, num_draws):
    weights = np.array(weights)
    generator = np.random.default_rng(7)
    orders = list(itertools.permutations(np.flatnonzero(weights).tolist(), num_draws))
    counts = dict.fromkeys(orders, 0)
    num_trials = 15_000
    for _ in range(num_trials):
        counts[tuple(draw_without_replacement(weights, num_draws, generator).tolist())] += 1
    expected = {order: num_trials * sequential_probability(weights, order) for order in orders}
    statistic = sum((counts[order] - expected[order]) ** 2 / expected[order] for order in orders)
    assert statistic < CHI_SQUARE_999[len(orders) - 1]


def test_inclusion_agrees_with_numpy_choice():
    weights = np.array([1, 4, 6, 8, 9, 10, 12, 15, 16, 16]) / 64.0
    ours, theirs = np.random.default_rng(1), np.random.default_rng(2)
    num_trials, num_draws = 4_000, 4
    included = np.zeros((2, len(weights)))
    for _ in range(num_trials):
        included[0, draw_without_replacement(weights, num_draws, ours)] += 1
        included[1, theirs.choice(len(weights), num_draws, replace=False, p=weights / weights.sum())] += 1
    share = included / num_trials
    # Four standard errors of the difference of two binomial shares.
    margin = 4 * np.sqrt(2 * share.mean(0) * (1 - share.mean(0)) / num_trials)
    assert (np.abs(share[0] - share[1]) < margin).all()


def test_a_sleeping_row_is_never_drawn_and_none_twice():
    weights = np.tile([0.0, 0.25, 0.1], 40)
    drawn = draw_without_replacement(weights, 60, np.random.default_rng(0))
    assert len(set(drawn.tolist())) == 60
    assert (weights[drawn] > 0).all()


def test_fewer_eligible_than_asked_gives_all_of_them():
    weights = np.array([0.0, 0.25, 0.0, 0.1])
    assert sorted(draw_without_replacement(weights, 9, np.random.default_rng(0)).tolist()) == [1, 3]
    assert draw_without_replacement(np.zeros(4), 9, np.random.default_rng(0)).tolist() == []
    assert draw_without_replacement(np.empty(0), 9, np.random.default_rng(0)).tolist() == []


def test_a_negative_number_of_draws_is_refused():
    with pytest.raises(ValueError, match="num_draws"):
        draw_without_replacement(np.ones(3), -1, np.random.default_rng(0))


def test_opens_when_the_solved_ratio_exceeds_the_threshold():
    gate = ReplayGate(threshold=0.45, max_warmup_steps=100)
    assert not gate.observe(0.2, step=1)
    assert not gate.observe(0.45, step=2), "exceeds, not reaches"
    assert gate.observe(0.46, step=3)
    assert gate.opened_at == 3


def test_opens_after_the_warmup():
    gate = ReplayGate(max_warmup_steps=3)
    assert [gate.observe(0.1, step=step) for step in (1, 2, 3, 4)] == [False, False, True, True]
    assert gate.opened_at == 3


def test_without_a_cap_only_the_threshold_opens():
    gate = ReplayGate(max_warmup_steps=None)
    assert not any(gate.observe(0.0, step=step) for step in range(1, 500))


def test_a_warmup_of_no_steps_is_open_at_once():
    assert ReplayGate(max_warmup_steps=0).is_open
    assert not ReplayGate(max_warmup_steps=1).is_open


def test_stays_open_and_remembers_when():
    gate = ReplayGate(max_warmup_steps=50)
    gate.observe(0.9, step=4)
    assert gate.observe(0.0, step=5)
    assert gate.opened_at == 4


def test_state_round_trip():
    gate, other = ReplayGate(max_warmup_steps=9), ReplayGate(max_warmup_steps=9)
    gate.observe(0.6, step=2)
    other.load_state_dict(gate.state_dict())
    assert other.is_open
    assert other.opened_at == 2


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_ratio_outside_0_to_1_is_refused(ratio):
    with pytest.raises(ValueError, match="solved_ratio"):
        ReplayGate().observe(ratio, step=1)


@pytest.mark.parametrize(("threshold", "warmup"), [(1.5, 3), (0.4, -1)])
def test_impossible_settings_are_refused(threshold, warmup):
    with pytest.raises(ValueError, match=r"threshold|max_warmup_steps"):
        ReplayGate(threshold, warmup)
