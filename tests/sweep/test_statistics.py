"""Intervals against hand-computed numbers, and how often they cover the truth."""

import numpy as np
import pytest

from pivot.sweep.scores import area
from pivot.sweep.statistics import SEED_QUANTILES, Difference, paired_difference, show, student_quantile


def test_a_constant_difference_has_no_interval_to_speak_of():
    first = np.random.default_rng(0).uniform(size=(5, 30))
    found = paired_difference(first + 0.1, first)
    assert (found.mean, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))
    assert found.seeds == 5


def test_pairs_share_their_prompt_so_its_difficulty_drops_out():
    rng = np.random.default_rng(1)
    difficulty = rng.uniform(size=(1, 100))
    first = difficulty + 0.05 + rng.normal(0, 0.01, (3, 100))
    second = difficulty + rng.normal(0, 0.01, (3, 100))
    paired = paired_difference(first, second)
    unpaired = paired_difference(first, second[:, ::-1])
    assert paired.low > 0
    assert unpaired.high - unpaired.low > 3 * (paired.high - paired.low)


def test_without_prompts_the_interval_is_about_students():
    seeds = np.array([[0.01], [0.02], [0.05], [0.03], [0.04]])
    found = paired_difference(seeds, np.zeros((5, 1)))
    half = SEED_QUANTILES[5] * seeds.std(ddof=1) / np.sqrt(5)
    assert found.mean == pytest.approx(0.03)
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.15)


@pytest.mark.parametrize("seeds", [3, 5])
def test_no_difference_is_rarely_taken_for_one(seeds):
    """Seeds that differ from each other by luck: a true difference of 0 must be in most intervals."""
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        delta = rng.normal(0, 0.03, (seeds, 1)) + rng.normal(0, 0.2, (seeds, 60))
        covered += paired_difference(delta, np.zeros_like(delta)).verdict() == "no difference seen"
    assert covered >= 180


def test_the_same_numbers_give_the_same_interval():
    rng = np.random.default_rng(3)
    first, second = rng.uniform(size=(3, 20)), rng.uniform(size=(3, 20))
    assert paired_difference(first, second) == paired_difference(first, second)


def test_one_row_stands_against_every_seed():
    found = paired_difference(np.full((5, 4), 0.7), np.full((1, 4), 0.4))
    assert found.mean == pytest.approx(0.3)
    assert found.seeds == 5


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.01, 0.03, "holds"),
        (-0.01, 0.03, "no difference seen"),
        (0.0, 0.1, "no difference seen"),
        (-0.03, -0.01, "reversed"),
    ],
)
def test_verdicts(low, high, expected):
    assert Difference((low + high) / 2, low, high, 5).verdict() == expected


def test_what_cannot_be_told_is_said():
    assert Difference(0.3, 0.3, 0.3, 1).verdict() == "cannot be told with 1 seed"
    wide = Difference(0.0, -0.04, 0.03, 3)
    assert wide.verdict(margin=0.05) == "no difference seen"
    assert wide.verdict(margin=0.035) == "cannot be told with 3 seeds"
    assert Difference(0.5, 0.4, 0.6, 3).verdict(margin=0.01) == "holds"


def test_area_is_the_mean_height_by_trapezoids():
    assert area([10, 20, 40], [0.0, 0.4, 0.8]) == pytest.approx((10 * 0.2 + 20 * 0.6) / 30)
    assert area([10], [0.3]) == 0.3


def test_the_quantile_beyond_the_table_is_close():
    assert student_quantile(5) == 2.776
    assert student_quantile(11) == pytest.approx(2.228, abs=0.04)
    assert student_quantile(31) == pytest.approx(2.042, abs=0.01)


def test_a_number_is_shown_alike_whatever_its_last_bits():
    assert show(1.25 + 1e-13, "+.1f") == show(1.25 - 1e-13, "+.1f")
    assert show(0.35 - 1e-14, ".1f") == show(0.35 + 1e-14, ".1f")
    assert show(-0.123, "+.1f") == "-0.1"
