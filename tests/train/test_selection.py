"""The two quotas of a step, with a real buffer and a real stream; groups are made by hand."""

import numpy as np
import pytest
import torch

from pivot.experience import ExperienceBuffer, StoredResponse
from pivot.train.selection import Selection, Sources
from pivot.train.stream import FreshStream
from pivot.types import Prompt, Response, Reward, RolloutGroup

NUM_RESPONSES = 4


@pytest.fixture
def sources():
    prompts = {f"p{i:02}": Prompt(f"p{i:02}", "?", "1") for i in range(40)}
    return Sources(prompts, FreshStream(list(prompts), seed=0), ExperienceBuffer(seed=0))


def fill(buffer, num_rows, num_correct=2):
    for i in range(num_rows):
        stored = [StoredResponse(np.array([i, j + 1])) for j in range(num_correct)]
        buffer.record(
            f"p{i:02}", num_correct=num_correct, num_responses=NUM_RESPONSES, responses=stored, step=1
        )


def open_selection(sources, fresh, replayed, **options):
    settings = {"max_tries": 2, "filter_groups": True} | options
    return Selection(sources, 2, fresh, replayed, **settings)


def roll(visits, num_correct):
    """Groups in which `num_correct(visit)` of the responses are right."""
    empty = torch.zeros(1)

    def group(visit):
        rewards = [float(i < num_correct(visit)) for i in range(NUM_RESPONSES)]
        responses = [Response(empty, "", empty, empty, False, Reward(r, 1.0, "")) for r in rewards]
        return RolloutGroup(visit.prompt, responses, replayed=visit.draw is not None)

    return [group(visit) for visit in visits]


def test_half_is_drawn_and_never_also_fresh(sources):
    fill(sources.buffer, 20)
    visits = open_selection(sources, 8, 8).next_visits()
    drawn = [v for v in visits if v.draw]
    assert len(drawn) == 8
    assert len(visits) == 16
    assert len({v.prompt.id for v in visits}) == 16
    assert all(len(v.candidates) == 2 and v.draw.probability == pytest.approx(1 / 20) for v in drawn)


def test_fewer_eligible_rows_than_asked_are_filled_up_with_fresh_prompts(sources):
    fill(sources.buffer, 3)
    visits = open_selection(sources, 8, 8).next_visits()
    assert sum(v.draw is not None for v in visits) == 3
    assert len(visits) == 16


def test_full_quotas_end_the_step(sources):
    fill(sources.buffer, 20)
    selection = open_selection(sources, 4, 4)
    selection.observe(roll(selection.next_visits(), lambda v: 2))
    assert selection.next_visits() == []
    assert len(selection.kept) == 8
    assert selection.rounds == 1


def test_each_quota_is_refilled_from_its_own_source(sources):
    fill(sources.buffer, 20)
    selection = open_selection(sources, 4, 4)
    # Two of the replayed groups and one fresh one carry no signal.
    first = selection.next_visits()
    dull = {v.prompt.id for v in first[:2]} | {first[-1].prompt.id}
    selection.observe(roll(first, lambda v: 0 if v.prompt.id in dull else 2))
    second = selection.next_visits()
    assert [v.draw is not None for v in second] == [True, True, False]
    assert not {v.prompt.id for v in first} & {v.prompt.id for v in second}


def test_after_its_tries_replay_is_filled_from_fresh_prompts_once(sources):
    fill(sources.buffer, 30)
    selection = open_selection(sources, 2, 4)
    rounds = []
    while visits := selection.next_visits():
        rounds.append([v.draw is not None for v in visits])
        # Replayed groups are all solved by now; fresh ones carry a signal.
        selection.observe(roll(visits, lambda v: NUM_RESPONSES if v.draw else 1))
    assert rounds == [[True] * 4 + [False] * 2, [True] * 4, [False] * 4]
    assert len(selection.kept) == 6
    assert not any(g.replayed for g in selection.kept)


def test_nothing_informative_ends_after_the_tries_with_nothing(sources):
    selection = open_selection(sources, 6, 0, max_tries=3)
    while visits := selection.next_visits():
        selection.observe(roll(visits, lambda v: 0))
    assert selection.kept == []
    assert selection.rounds == 3
    assert len(selection.sampled) == 18


def test_without_the_filter_one_round_keeps_everything(sources):
    selection = open_selection(sources, 6, 0, max_tries=1, filter_groups=False)
    selection.observe(roll(selection.next_visits(), lambda v: 0))
    assert selection.next_visits() == []
    assert len(selection.kept) == 6


def test_a_set_that_runs_dry_ends_the_step(sources):
    selection = open_selection(sources, 39, 0, max_tries=5)
    selection.observe(roll(selection.next_visits(), lambda v: 0))
    second = selection.next_visits()
    assert len(second) == 1, "forty prompts, thirty-nine used"
    selection.observe(roll(second, lambda v: 0))
    assert selection.next_visits() == []
