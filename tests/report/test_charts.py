import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pivot.report.charts import Axis, extent, short, ticks
from pivot.report.series import Series, bin_means, mean_over_runs, smooth, smoothing_width, thin

many = settings(derandomize=True, deadline=None, max_examples=60)
numbers = st.floats(-1e3, 1e3)


@many
@given(st.lists(numbers, min_size=12, max_size=80), st.integers(1, 5))
def test_smoothing_equals_its_formula(values, stride):
    series = Series(np.arange(len(values), dtype=float) * stride, np.array(values))
    sigma = smoothing_width(series)
    weights = np.exp(-0.5 * ((series.steps[:, None] - series.steps) / sigma) ** 2)
    expected = weights @ series.values / weights.sum(axis=1)
    # The window ends at four sigma, where a weight is below 3.4e-4 of the middle one.
    assert np.allclose(smooth(series), expected, atol=2e-3 * (1 + np.abs(values).max()))


def test_smoothing_leaves_a_constant_alone_and_short_curves_out():
    constant = Series(np.arange(50.0), np.full(50, 0.3))
    assert np.allclose(smooth(constant), 0.3, atol=1e-12)
    assert smooth(Series(np.arange(11.0), np.arange(11.0))) is None


@many
@given(st.lists(numbers, min_size=1, max_size=3000))
def test_thinning_keeps_ends_and_extremes_within_its_limit(values):
    kept = thin(np.array(values), most=100)
    assert len(kept) <= 100
    assert list(kept) == sorted(set(kept))
    assert {0, len(values) - 1} <= set(kept)
    assert min(values) == min(values[i] for i in kept)
    assert max(values) == max(values[i] for i in kept)


def test_bins_are_means_of_neighbours():
    steps, means = bin_means(np.arange(1.0, 6.0), np.array([[1.0], [3.0], [5.0], [7.0], [9.0]]), most=2)
    assert steps.tolist() == [1.0, 3.0]
    assert means.ravel().tolist() == [2.0, 7.0]


def test_the_band_over_seeds_by_hand():
    first = Series(np.array([1.0, 2.0, 3.0]), np.array([0.2, 0.4, 0.6]))
    second = Series(np.array([2.0, 3.0, 4.0]), np.array([0.6, 0.6, 0.9]))
    mean, spread = mean_over_runs([first, second])
    assert mean.steps.tolist() == [2.0, 3.0]
    assert np.allclose(mean.values, [0.5, 0.6])
    assert np.allclose(spread, [np.sqrt(2) * 0.1, 0.0])
    assert mean_over_runs([first])[1].tolist() == [0.0, 0.0, 0.0]


@many
@given(numbers, st.floats(1e-6, 1e6))
def test_ticks_are_few_and_inside(low, height):
    marks = ticks(low, low + height)
    assert 1 <= len(marks) <= 5
    assert all(low - 1e-6 * height <= mark <= low + height * (1 + 1e-6) for mark in marks)


def test_steps_are_marked_by_whole_numbers():
    assert ticks(1, 14) == [2.5, 5.0, 7.5, 10.0, 12.5]
    assert ticks(1, 14, whole=True) == [5, 10]
    assert ticks(0, 2, whole=True) == [0, 1, 2]


def test_axes_and_numbers_by_hand():
    assert ticks(0, 1) == [0, 0.25, 0.5, 0.75, 1.0]
    assert ticks(0.28, 0.66) == [0.3, 0.4, 0.5, 0.6]
    assert extent(np.array([0.0, 1.0]), from_zero=True) == (0.0, 1.06)
    assert extent(np.array([2.0, 2.0])) == (1.88, 2.12)
    assert [short(v) for v in (0, 0.123456, -2.5, 1234.4, 45678, 2.5e6)] == [
        "0",
        "0.123",
        "−2.5",
        "1234",
        "45.7k",
        "2.5M",
    ]
    assert short(0.4567, percent=True) == "45.7%"


def test_an_axis_writes_its_ticks_with_their_unit():
    assert Axis(0, 1, percent=True).ticks()[1:3] == [(0.25, "25%"), (0.5, "50%")]
    assert Axis(0, 20, unit=" s").ticks()[-1] == (20, "20 s")
    assert Axis(0, 4, names=("0", "0.25", "0.5", "0.75", "1")).ticks()[-1] == (4, "1")
