"""The rules of a row, by hand (docs/decisions.md, "Experience buffer")."""

import numpy as np
import pytest
import torch

from pivot.experience import BufferRow, ExperienceBuffer, StoredResponse


def responses(*first_tokens: int) -> list[StoredResponse]:
    return [StoredResponse([token, 1, 2]) for token in first_tokens]


def visit(
    buffer: ExperienceBuffer, prompt_id: str, k: int, step: int, *first_tokens: int, group: int = 8
) -> None:
    buffer.record(
        prompt_id, num_correct=k, num_responses=group, responses=responses(*first_tokens), step=step
    )


def first_tokens(buffer: ExperienceBuffer, prompt_id: str) -> list[int]:
    return [int(candidate.token_ids[0]) for candidate in buffer.candidates(prompt_id)]


def row_of(buffer: ExperienceBuffer, prompt_id: str) -> BufferRow:
    return next(row for row in buffer.rows() if row.prompt_id == prompt_id)


def test_a_failed_prompt_without_a_row_makes_none():
    buffer = ExperienceBuffer()
    visit(buffer, "a", 0, 1)
    assert len(buffer) == 0
    assert "a" not in buffer


def test_a_solved_prompt_whose_responses_cannot_be_kept_makes_no_row():
    buffer = ExperienceBuffer()
    visit(buffer, "a", 2, 1)
    assert len(buffer) == 0


def test_the_latest_visit_overwrites_the_success_rate():
    buffer = ExperienceBuffer()
    visit(buffer, "a", 6, 1, 10)
    visit(buffer, "a", 1, 2, 11, group=5)
    row = row_of(buffer, "a")
    assert (row.success_rate, row.step, row.num_stored) == (0.2, 2, 2)
    assert row.weight == pytest.approx(0.16, abs=1e-15)


@pytest.mark.parametrize("k", [0, 8])
def test_a_row_sleeps_at_none_and_all_correct_and_wakes_again(k):
    buffer = ExperienceBuffer()
    visit(buffer, "a", 3, 1, 10)
    visit(buffer, "a", k, 2)
    assert buffer.draw(1) == []
    assert first_tokens(buffer, "a") == [10]
    assert row_of(buffer, "a").success_rate == k / 8
    visit(buffer, "a", 7, 3)
    assert [draw.prompt_id for draw in buffer.draw(1)] == ["a"]


def test_a_prompt_solved_every_time_gets_a_sleeping_row():
    buffer = ExperienceBuffer()
    visit(buffer, "a", 8, 1, 10)
    assert "a" in buffer
    assert buffer.stats().eligible == 0


def test_a_duplicate_is_the_newest_sampling_whole():
    buffer = ExperienceBuffer(responses_per_prompt=2)
    old, new = [
        StoredResponse([5, 6], logprobs=[value, value], entropy=value, dependency=value)
        for value in (-0.5, -0.25)
    ]
    buffer.record("a", num_correct=1, num_responses=8, responses=[old], step=1)
    visit(buffer, "a", 1, 2, 10)
    buffer.record("a", num_correct=1, num_responses=8, responses=[new], step=3)
    first, second = buffer.candidates("a")
    assert first.token_ids.tolist() == [10, 1, 2]
    assert (second.step, second.serial, second.entropy, second.dependency) == (3, 2, -0.25, -0.25)
    assert second.logprobs is not None
    assert second.logprobs.tolist() == [-0.25, -0.25]
    visit(buffer, "a", 1, 4, 11)
    assert first_tokens(buffer, "a") == [5, 11], "the one not sampled for the longest time went"


def test_more_responses_than_fit_keep_the_last():
    buffer = ExperienceBuffer(responses_per_prompt=3)
    visit(buffer, "a", 5, 1, 10, 11, 12, 13, 14)
    assert first_tokens(buffer, "a") == [12, 13, 14]
    visit(buffer, "a", 2, 2, 15, 16)
    assert first_tokens(buffer, "a") == [14, 15, 16]


def test_a_full_buffer_drops_the_lightest_row():
    buffer = ExperienceBuffer(max_prompts=2)
    visit(buffer, "even", 4, 1, 10)
    visit(buffer, "rare", 1, 2, 11)
    visit(buffer, "often", 6, 3, 12)
    assert ("even" in buffer, "rare" in buffer, "often" in buffer) == (True, False, True)
    visit(buffer, "asleep", 8, 4, 13)
    assert "asleep" not in buffer, "the newcomer itself is the lightest"
    visit(buffer, "often", 4, 5)
    visit(buffer, "third", 4, 6, 14)
    assert "even" not in buffer, "of equal weights the longest without a visit"
    assert first_tokens(buffer, "often") == [12]
    assert first_tokens(buffer, "third") == [14]


def test_a_draw_says_why():
    buffer = ExperienceBuffer()
    visit(buffer, "a", 4, 1, 10)
    visit(buffer, "b", 2, 3, 11)
    visit(buffer, "c", 2, 3, 12)
    draws = {draw.prompt_id: draw for draw in buffer.draw(2, exclude=["c", "unknown"], step=7)}
    assert draws["a"].probability == pytest.approx(16 / 28, abs=1e-15)
    assert draws["b"].probability == pytest.approx(12 / 28, abs=1e-15)
    assert (draws["a"].age, draws["b"].age) == (6, 4)
    assert (draws["a"].times_drawn, draws["a"].success_rate) == (1, 0.5)
    again = {draw.prompt_id: draw for draw in buffer.draw(3)}
    assert (again["a"].times_drawn, again["b"].times_drawn, again["c"].times_drawn) == (2, 2, 1)
    assert again["a"].age == 2, "without a step, as of the newest recorded"


def test_scores_are_kept_and_updated_by_serial():
    buffer = ExperienceBuffer()
    kept = [StoredResponse([token], entropy=0.5, dependency=None) for token in (1, 2)]
    buffer.record("a", num_correct=2, num_responses=8, responses=kept, step=1)
    second = buffer.candidates("a")[1]
    assert (second.entropy, second.dependency, second.scored_step) == (0.5, None, 1)
    buffer.update_scores("a", {second.serial: (0.1, 0.9)}, step=6)
    first, second = buffer.candidates("a")
    assert (first.entropy, first.scored_step) == (0.5, 1)
    assert (second.entropy, second.dependency, second.scored_step, second.step) == (0.1, 0.9, 6, 1)
    with pytest.raises(ValueError, match="serials"):
        buffer.update_scores("a", {99: (0.1, 0.9)}, step=6)


def test_candidates_are_copies():
    buffer = ExperienceBuffer()
    visit(buffer, "a", 4, 1, 10)
    buffer.candidates("a")[0].token_ids[0] = 99
    assert first_tokens(buffer, "a") == [10]


def test_what_is_handed_in_may_change_afterwards():
    buffer = ExperienceBuffer()
    ids = np.array([7, 8], dtype=np.int32)
    buffer.record("a", num_correct=1, num_responses=2, responses=[StoredResponse(ids)], step=1)
    ids[0] = 99
    assert first_tokens(buffer, "a") == [7]


def test_statistics_by_hand():
    buffer = ExperienceBuffer()
    for index, k in enumerate([1, 3, 3, 9, 10]):
        visit(buffer, f"p{index}", k, index + 1, 10, group=10)
    visit(buffer, "p4", 0, 6, group=10)
    stats = buffer.stats(step=10)
    assert stats.success_histogram == (1, 1, 0, 2, 0, 0, 0, 0, 0, 1), "0.3 belongs to the bin from 0.3"
    assert (stats.size, stats.eligible, stats.responses) == (5, 4, 5)
    assert (stats.oldest_step, stats.newest_step) == (1, 6)
    assert stats.mean_age == pytest.approx(10 - (1 + 2 + 3 + 4 + 6) / 5)


def test_an_empty_buffer():
    buffer = ExperienceBuffer()
    stats = buffer.stats()
    assert (stats.size, stats.bytes, stats.oldest_step, sum(stats.success_histogram)) == (0, 0, None, 0)
    assert buffer.draw(4) == []
    with pytest.raises(KeyError):
        buffer.candidates("a")


def test_tensors_and_lists_are_taken():
    response = StoredResponse(torch.tensor([3, 151_000]), logprobs=torch.tensor([-0.5, -1.0]))
    assert response.token_ids.dtype == np.int32
    assert response.token_ids.tolist() == [3, 151_000]
    assert response.logprobs is not None
    assert response.logprobs.dtype == np.float32


@pytest.mark.parametrize(
    ("token_ids", "logprobs", "message"),
    [
        ([], None, "token_ids"),
        ([[1, 2]], None, "token_ids"),
        ([1.5], None, "token_ids"),
        ([-1], None, "token_ids"),
        (np.array([-1], dtype=np.int32), None, "token_ids"),
        ([2**31], None, "token_ids"),
        ([1, 2], [0.5], "logprobs"),
    ],
)
def test_an_impossible_response_is_refused(token_ids, logprobs, message):
    with pytest.raises(ValueError, match=message):
        StoredResponse(token_ids, logprobs=logprobs)


@pytest.mark.parametrize(
    ("k", "group", "tokens", "step", "message"),
    [
        (9, 8, (), 5, "num_correct"),
        (-1, 8, (), 5, "num_correct"),
        (0, 0, (), 5, "num_correct"),
        (1, 8, (1, 2), 5, "successful"),
        (1, 8, (1,), 4, "step"),
    ],
)
def test_an_impossible_visit_is_refused_and_changes_nothing(k, group, tokens, step, message):
    buffer = ExperienceBuffer()
    visit(buffer, "a", 4, 5, 10)
    before = row_of(buffer, "a")
    with pytest.raises(ValueError, match=message):
        visit(buffer, "a", k, step, *tokens, group=group)
    assert row_of(buffer, "a") == before


def test_impossible_limits_are_refused():
    with pytest.raises(ValueError, match="responses_per_prompt"):
        ExperienceBuffer(responses_per_prompt=0)
    with pytest.raises(ValueError, match="max_prompts"):
        ExperienceBuffer(max_prompts=0)
