"""Stored groups: drawn by score, bounded, saved as they are; and ExGRPO's buckets."""

import math
from collections import Counter

import numpy as np
import pytest

from pivot.experience import ExperienceBuffer, GroupStore, StoredGroup, StoredResponse
from pivot.experience.replay import bucket_weights


def group(name, score, step=1):
    responses = tuple(
        StoredResponse([n + 1, 2, 3][: n + 1], np.full(n + 1, -0.5 * n), accuracy=float(n % 2), format=1.0)
        for n in range(3)
    )
    return StoredGroup(name, responses, (False, True, False), (False, False, True), score, step)


def names(store, step=0, number=10):
    return [one.prompt_id for one in store.draw(number, step)]


def test_the_oldest_or_the_lowest_score_goes_first():
    oldest, lowest = GroupStore(2), GroupStore(2, by_score=True)
    for store in (oldest, lowest):
        for name, score in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
            store.add(group(name, score))
    assert set(names(oldest)) == {"b", "c"}
    assert set(names(lowest)) == {"a", "c"}
    oldest.add(group("b", 5.0))
    oldest.add(group("d", 1.0))
    assert set(names(oldest)) == {"b", "d"}, "a newer group of a prompt replaces it"


def test_equal_scores_are_no_problem():
    store = GroupStore(2, by_score=True)
    for name in "abcd":
        store.add(group(name, 1.0))
    assert set(names(store)) == {"c", "d"}


def test_draws_follow_the_scores_and_repeat_for_a_step():
    store = GroupStore(8, seed=3)
    for name, score in (("a", 6.0), ("b", 3.0), ("c", 1.0)):
        store.add(group(name, score))
    first = Counter(names(store, step, 1)[0] for step in range(2000))
    for name, share in (("a", 0.6), ("b", 0.3), ("c", 0.1)):
        assert first[name] / 2000 == pytest.approx(share, abs=4 * math.sqrt(0.25 / 2000))
    assert names(store, 7) == names(store, 7)
    assert [one.prompt_id for one in store.draw(9, 7, exclude={"a"})] != []
    assert "a" not in [one.prompt_id for one in store.draw(9, 7, exclude={"a"})]
    assert store.draw(0, 1) == store.draw(-2, 1) == []


def test_a_saved_store_is_the_same_store(tmp_path):
    store = GroupStore(4)
    for name, score in (("ä", 2.0), ("b", 1.5)):
        store.add(group(name, score, step=5))
    kept = store.snapshot()
    store.add(group("later", 9.0))
    kept.save(tmp_path)
    again = GroupStore(4)
    again.load(tmp_path)
    assert names(again, 3) == names(kept, 3)
    for one, other in zip(kept.draw(9, 1), again.draw(9, 1), strict=True):
        assert (one.success, one.truncated, one.score, one.step) == (
            other.success, other.truncated, other.score, other.step,
        )  # fmt: skip
        for a, b in zip(one.responses, other.responses, strict=True):
            assert a.token_ids.tolist() == b.token_ids.tolist()
            assert a.logprobs.tolist() == b.logprobs.tolist()
            assert (a.accuracy, a.format) == (b.accuracy, b.format)
    empty = GroupStore(4)
    empty.save(tmp_path / "empty")
    again.load(tmp_path / "empty")
    assert len(again) == 0


def test_buckets_against_a_loop():
    correct, sampled = np.array([4, 4, 2, 6, 7, 0, 8]), np.full(7, 8)
    eligible = (correct > 0) & (correct < sampled)
    rates = [k / 8 for k in correct.tolist()]
    expected = []
    for i, p in enumerate(rates):
        members = sum(q == p and ok for q, ok in zip(rates, eligible, strict=True))
        density = math.exp(-((p - 0.5) ** 2) / (2 * 0.125**2))
        expected.append(density / members if eligible[i] else 0.0)
    found = bucket_weights(correct, sampled, eligible, 0.125)
    np.testing.assert_allclose(found / found.sum(), np.array(expected) / sum(expected))


def test_far_buckets_and_no_bucket_at_all():
    weights = bucket_weights(np.array([1, 0]), np.array([1000, 1000]), np.array([True, False]), 1e-3)
    assert weights.tolist() == [1.0, 0.0]
    assert bucket_weights(np.array([0]), np.array([8]), np.array([False]), 0.1).tolist() == [0.0]


def test_the_buffer_draws_by_bucket():
    """Nine rows of 1/2 and one of 1/4: a bucket's share does not grow with its rows."""
    buffer = ExperienceBuffer(bucket_sigma=0.25)
    for i in range(10):
        k = 2 if i else 1
        buffer.record(str(i), num_correct=k, num_responses=4, responses=[StoredResponse([i + 1])], step=1)
    shares = {draw.prompt_id: draw.probability for draw in buffer.draw(10)}
    ratio = math.exp(-0.5)
    assert shares["0"] == pytest.approx(ratio / (1 + ratio))
    assert shares["3"] == pytest.approx(1 / (1 + ratio) / 9)


def test_the_buffer_draws_uniformly_among_rows_that_can_teach():
    """Rows of 1/8 and 4/8 alike; one that is always solved stays out."""
    buffer = ExperienceBuffer(uniform=True, seed=3)
    for i, k in enumerate((1, 4, 4, 8)):
        stored = [StoredResponse([i + 1, j]) for j in range(k)]
        buffer.record(str(i), num_correct=k, num_responses=8, responses=stored, step=1)
    drawn = [buffer.draw(1)[0] for _ in range(3000)]
    assert {draw.probability for draw in drawn} == {1 / 3}
    assert {draw.prompt_id for draw in drawn} == {"0", "1", "2"}
    assert all(abs(sum(d.prompt_id == str(i) for d in drawn) - 1000) < 120 for i in range(3))
