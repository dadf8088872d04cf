"""Eq. 7: the lowest-entropy half, then the highest dependency."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pivot.method import select_anchor


def test_the_most_grounded_of_the_stable_half() -> None:
    entropy, dependency = torch.tensor([0.9, 0.1, 0.5, 0.2]), torch.tensor([9.0, 1.0, 8.0, 2.0])
    assert select_anchor(entropy, dependency) == 3  # of {1, 3}; 0 depends more but is unstable
    assert select_anchor(entropy, dependency, keep=1.0) == 0
    assert select_anchor(entropy, dependency, keep=0.1) == 1  # at least one stays


def test_half_of_five_is_two() -> None:
    entropy, dependency = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]), torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])
    assert select_anchor(entropy, dependency) == 1


def test_ties_go_to_the_lower_entropy_then_to_the_newer() -> None:
    assert select_anchor(torch.tensor([0.2, 0.1, 0.9, 0.9]), torch.zeros(4)) == 1
    assert select_anchor(torch.tensor([0.1, 0.1, 0.9, 0.9]), torch.zeros(4)) == 1
    assert select_anchor(torch.tensor([0.5, 0.5]), torch.tensor([3.0, 1.0])) == 1  # one stays: the newer


@settings(derandomize=True, deadline=None, max_examples=50)
@given(
    scores=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=9),
    keep=st.sampled_from([0.25, 0.5, 0.7, 1.0]),
)
def test_against_the_definition(scores: list[tuple[int, int]], keep: float) -> None:
    entropy, dependency = (torch.tensor(column, dtype=torch.float32) for column in zip(*scores, strict=True))
    chosen = select_anchor(entropy, dependency, keep=keep)
    ranked = sorted(range(len(scores)), key=lambda n: (scores[n][0], -n))
    stable = ranked[: max(1, math.floor(keep * len(scores) + 1e-9))]
    best = max(scores[n][1] for n in stable)
    assert chosen == next(n for n in stable if scores[n][1] == best)


@pytest.mark.parametrize(
    ("entropy", "dependency", "keep", "message"),
    [
        (torch.zeros(0), torch.zeros(0), 0.5, r"entropy_N must hold at least one candidate"),
        (torch.zeros(2), torch.zeros(3), 0.5, r"dependency_N .* shape \[2\], got float32 of shape \[3\]"),
        (torch.tensor([0.1, math.nan]), torch.zeros(2), 0.5, r"entropy_N must be finite"),
        (torch.zeros(2), torch.zeros(2), 0.0, r"keep must lie in \(0, 1\], got 0.0"),
    ],
)
def test_mistakes_are_named(entropy, dependency, keep: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select_anchor(entropy, dependency, keep=keep)
