"""Scores against hand-computed numbers and naive loops."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pivot.errors import UserError
from pivot.evaluation.benchmarks import hallusionbench, we_math
from pivot.evaluation.scoring import (
    Graded,
    accuracy,
    bootstrap_interval,
    by_category,
    mean_pass_at_k,
    pass_at_k,
    summarise,
)

HARD = Graded("a", (True, False, False, False), "x")
EASY = Graded("b", (True, True, True, True), "y")
NEVER = Graded("c", (False, False, False, False), "x")


def test_accuracy_is_the_mean_over_prompts_of_the_mean_over_samples() -> None:
    assert accuracy([HARD, EASY, NEVER]) == pytest.approx((0.25 + 1.0 + 0.0) / 3)
    uneven = Graded("d", (True,))
    assert accuracy([HARD, uneven]) == pytest.approx(0.625)


def test_pass_at_k_by_hand() -> None:
    assert pass_at_k(4, 1, 1) == pytest.approx(0.25)
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)
    assert pass_at_k(4, 1, 4) == 1.0
    assert pass_at_k(4, 0, 4) == 0.0
    assert mean_pass_at_k([HARD, NEVER], 2) == pytest.approx(0.25)
    with pytest.raises(ValueError, match="k is 5"):
        pass_at_k(4, 1, 5)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_k_subsets_with_a_hit(num_samples: int, data: st.DataObject) -> None:
    num_correct = data.draw(st.integers(0, num_samples))
    k = data.draw(st.integers(1, num_samples))
    samples = [i < num_correct for i in range(num_samples)]
    subsets = list(itertools.combinations(samples, k))
    assert pass_at_k(num_samples, num_correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_categories_keep_their_order_and_count() -> None:
    assert by_category([HARD, EASY, NEVER, Graded("d", (True,))]) == {
        "x": {"accuracy": 0.125, "prompts": 2},
        "y": {"accuracy": 1.0, "prompts": 1},
    }


def test_interval_is_seeded_holds_the_accuracy_and_narrows() -> None:
    few = [Graded(str(i), (i % 2 == 0,)) for i in range(20)]
    many = [Graded(str(i), (i % 2 == 0,)) for i in range(2000)]
    low, high = bootstrap_interval(few, seed=3)
    assert bootstrap_interval(few, seed=3) == (low, high)
    assert low < 0.5 < high
    # The normal approximation: 1.96 * sqrt(0.25 / n) on either side; 2,000 draws leave some noise.
    narrow = bootstrap_interval(many, seed=3)
    assert narrow[1] - narrow[0] == pytest.approx(2 * 1.96 * np.sqrt(0.25 / 2000), rel=0.1)
    assert bootstrap_interval([EASY, EASY]) == (1.0, 1.0)


def hallusion(set_id: str, figure: str, question: str, *correct: bool, category: str = "VD") -> Graded:
    columns = {
        "category": category,
        "subcategory": "s",
        "set_id": set_id,
        "figure_id": figure,
        "question_id": question,
    }
    return Graded(f"{set_id}/{figure}/{question}", correct, "VD/s", columns)


def test_hallusionbench_by_hand() -> None:
    graded = [
        hallusion("0", "0", "0", True, True),
        hallusion("0", "0", "1", True, False),
        hallusion("0", "1", "0", True, True),
        hallusion("0", "1", "1", False, True),
    ]
    # Sample 1: figure 0 whole, figure 1 not; question 0 right in both, question 1 not. Sample 2: swapped.
    assert hallusionbench.metrics(graded) == pytest.approx({"aAcc": 0.75, "fAcc": 0.5, "qAcc": 0.5})
    # A VS row with figure 0 has no figure: it counts for its question, not for a figure.
    bare = hallusion("9", "0", "0", False, False, category="VS")
    assert hallusionbench.metrics([*graded, bare]) == pytest.approx({"aAcc": 0.6, "fAcc": 0.5, "qAcc": 1 / 3})


def problem(name: str, steps: list[bool], multi: bool) -> list[Graded]:
    number = len(steps)
    keys = [f"{number}steps_{i + 1}" for i in range(number)] + [f"{number}steps_multi"]
    rows = zip(keys, [*steps, multi], strict=True)
    return [Graded(f"{name}/{key}", (correct,), columns={"ID": name, "key": key}) for key, correct in rows]


def test_we_math_by_hand() -> None:
    graded = [
        *problem("knows-nothing", [False, True], False),
        *problem("cannot-combine", [True, True, True], False),
        *problem("masters", [True, True], True),
        *problem("lucky", [True, False], True),
        *problem("by-rote", [False, False, False], True),
    ]
    scores = we_math.metrics(graded)
    assert scores["IK"] == scores["IG"] == pytest.approx(0.2)
    assert scores["CM_strict"] == pytest.approx(1 / 5)
    assert scores["CM_loose"] == pytest.approx(2 / 5)
    assert scores["RM_strict"] == pytest.approx(2 / 3)
    assert scores["RM_loose"] == pytest.approx(1 / 3)
    assert scores["score_strict"] == pytest.approx((1 + 0.5) / 5)
    assert scores["score_loose"] == pytest.approx((2 + 0.5) / 5)
    assert (scores["problems"], scores["incomplete"]) == (5, 0)


def test_we_math_leaves_out_incomplete_problems_and_averages_samples() -> None:
    whole = problem("a", [True, True], True)
    twice = [Graded(g.id, (True, not g.id.endswith("multi")), columns=g.columns) for g in whole]
    scores = we_math.metrics(
        [*twice, *(Graded(g.id, (True, True), columns=g.columns) for g in problem("b", [True], True))]
    )
    assert (scores["problems"], scores["incomplete"]) == (1, 1)
    assert scores["CM_strict"] == scores["IG"] == pytest.approx(0.5)
    with pytest.raises(UserError, match="needs all rows of a problem"):
        we_math.metrics(problem("b", [True, True], True)[:2])


def test_score_is_the_entry_of_scores_json() -> None:
    scores = summarise([HARD, EASY, NEVER], name="mathvista")
    assert scores["accuracy"] == pytest.approx(1.25 / 3)
    assert scores["pass_at_k"] == pytest.approx({"1": 1.25 / 3, "2": 1.5 / 3, "4": 2 / 3})
    assert (scores["samples"], scores["prompts"]) == (4, 3)
    assert scores["interval"][0] <= scores["accuracy"] <= scores["interval"][1]
    assert summarise(problem("a", [True, True], True), we_math.metrics)["metrics"]["CM_strict"] == 1.0
    assert "the rows lack ID, key" in summarise([HARD], we_math.metrics)["metrics_note"]
    with pytest.raises(UserError, match="no graded sample"):
        summarise([], name="mathvista")
