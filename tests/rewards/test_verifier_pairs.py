"""The hand-written corpus of `verifier_pairs.txt`: no false positive at all, and few false negatives."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from pivot.rewards.verifier import Verifier

CORPUS = Path(__file__).with_name("verifier_pairs.txt")
MAX_FALSE_NEGATIVES = 0.05


class Pair(NamedTuple):
    kind: str
    box: str
    truth: str
    same: bool


def corpus() -> list[Pair]:
    pairs, kind = [], ""
    for line in CORPUS.read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]") and " == " not in line and " != " not in line:
            kind = line[1:-1]
        elif line and not line.startswith("#"):
            sign = " == " if " == " in line else " != "
            box, truth = line.replace("⏎", "\n").split(sign)
            pairs.append(Pair(kind, box, truth, sign == " == "))
    return pairs


@pytest.fixture(scope="module")
def graded() -> list[tuple[Pair, str]]:
    pairs = corpus()
    with Verifier(seconds=10.0) as verifier:
        rewards = verifier.grade_many(
            [f"<think>a</think> \\boxed{{{pair.box}}}" for pair in pairs], [pair.truth for pair in pairs]
        )
    return [(pair, reward.reason) for pair, reward in zip(pairs, rewards, strict=True)]


def test_the_corpus_is_large_and_has_both_sides_of_every_kind() -> None:
    pairs = corpus()
    assert len(pairs) >= 600
    assert len(set(pairs)) == len(pairs)
    sides = Counter((pair.kind, pair.same) for pair in pairs)
    assert all(sides[kind, same] >= 1 for kind in {pair.kind for pair in pairs} for same in (True, False))


def test_no_wrong_answer_is_rewarded(graded: list[tuple[Pair, str]]) -> None:
    assert [pair for pair, reason in graded if reason == "correct" and not pair.same] == []


def test_few_right_answers_are_refused(graded: list[tuple[Pair, str]]) -> None:
    fair = [(pair, reason) for pair, reason in graded if pair.same]
    refused = [pair for pair, reason in fair if reason != "correct"]
    assert len(refused) < MAX_FALSE_NEGATIVES * len(fair), refused


def test_every_truth_is_right_for_itself(graded: list[tuple[Pair, str]]) -> None:
    truths = sorted({pair.truth for pair, _ in graded if pair.truth.count("{") == pair.truth.count("}")})
    with Verifier(seconds=10.0) as verifier:
        rewards = verifier.grade_many([f"\\boxed{{{truth}}}" for truth in truths], truths)
    assert [t for t, reward in zip(truths, rewards, strict=True) if not reward.correct] == []
