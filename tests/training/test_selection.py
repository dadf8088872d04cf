"""The two quotas of a step, with a real buffer and a real stream; groups are made by hand."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pivot.experience import ExperienceBuffer, StoredResponse
from pivot.training.selection import FreshStream, KeepRates, Quotas, Selection, Sources
from pivot.types import Prompt, Response, Reward

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
    return Selection(sources, 2, Quotas(fresh, replayed, **({"max_tries": 2} | options)))


def roll(drawn, num_correct):
    """Give each group responses of which `num_correct(group)` are right."""
    empty = torch.zeros(1)

    for group in drawn:
        rewards = [float(i < num_correct(group)) for i in range(NUM_RESPONSES)]
        group.responses = [Response(empty, "", empty, empty, False, Reward(r, 1.0, "")) for r in rewards]
    return drawn


def test_half_is_drawn_and_never_also_fresh(sources):
    fill(sources.buffer, 20)
    groups = open_selection(sources, 8, 8).draw()
    drawn = [v for v in groups if v.replayed]
    assert len(drawn) == 8
    assert len(groups) == 16
    assert len({v.prompt.id for v in groups}) == 16
    assert all(len(v.candidates) == 2 and v.candidates[0].probability == pytest.approx(1 / 20) for v in drawn)


def test_fewer_eligible_rows_than_asked_are_filled_up_with_fresh_prompts(sources):
    fill(sources.buffer, 3)
    groups = open_selection(sources, 8, 8).draw()
    assert sum(v.replayed for v in groups) == 3
    assert len(groups) == 16


def test_full_quotas_end_the_step(sources):
    fill(sources.buffer, 20)
    selection = open_selection(sources, 4, 4)
    selection.filter(roll(selection.draw(), lambda v: 2))
    assert selection.draw() == []
    assert len(selection.kept) == 8
    assert selection.rounds == 1


def test_each_quota_is_refilled_from_its_own_source(sources):
    fill(sources.buffer, 20)
    selection = open_selection(sources, 4, 4)
    # Two of the replayed groups and one fresh one carry no signal.
    first = selection.draw()
    dull = {v.prompt.id for v in first[:2]} | {first[-1].prompt.id}
    selection.filter(roll(first, lambda v: 0 if v.prompt.id in dull else 2))
    second = selection.draw()
    assert [v.replayed for v in second] == [True, True, False]
    assert not {v.prompt.id for v in first} & {v.prompt.id for v in second}


def test_after_its_tries_replay_is_filled_from_fresh_prompts_once(sources):
    fill(sources.buffer, 30)
    selection = open_selection(sources, 2, 4)
    rounds = []
    while groups := selection.draw():
        rounds.append([v.replayed for v in groups])
        # Replayed groups are all solved by now; fresh ones carry a signal.
        selection.filter(roll(groups, lambda v: NUM_RESPONSES if v.replayed else 1))
    assert rounds == [[True] * 4 + [False] * 2, [True] * 4, [False] * 4]
    assert len(selection.kept) == 6
    assert not any(g.replayed for g in selection.kept)


def test_one_try_is_one_round_for_replay_too(sources):
    fill(sources.buffer, 30)
    selection = open_selection(sources, 2, 4, max_tries=1)
    selection.filter(roll(selection.draw(), lambda v: NUM_RESPONSES))
    assert selection.draw() == []
    assert len(selection.sampled) == 6


@pytest.mark.parametrize("rows", [0, 3, 30])
def test_a_step_samples_no_more_groups_than_the_budget_has_left(sources, rows):
    fill(sources.buffer, rows)
    selection = open_selection(sources, 6, 6, max_tries=3, max_groups=9, oversample=True)
    first = selection.draw()
    assert sum(group.replayed for group in first) == min(rows, 4), "replay takes its half of the nine"
    selection.filter(roll(first, lambda v: 0))
    while groups := selection.draw():
        selection.filter(roll(groups, lambda v: 0))
    assert len(selection.sampled) == 9


def test_a_round_that_grows_stays_within_the_budget(sources):
    selection = open_selection(sources, 6, 0, max_tries=3, max_groups=8)
    groups = selection.draw()
    for group in roll(groups[:4], lambda v: 0):
        assert not group.is_informative
    added = selection.refill(groups[:4], groups[4:])
    assert len(added) == 2


def test_nothing_informative_ends_after_the_tries_with_nothing(sources):
    selection = open_selection(sources, 6, 0, max_tries=3)
    while groups := selection.draw():
        selection.filter(roll(groups, lambda v: 0))
    assert selection.kept == []
    assert selection.rounds == 3
    assert len(selection.sampled) == 18


def test_without_the_filter_one_round_keeps_everything(sources):
    selection = open_selection(sources, 6, 0, max_tries=1, filter_groups=False)
    selection.filter(roll(selection.draw(), lambda v: 0))
    assert selection.draw() == []
    assert len(selection.kept) == 6


def test_a_set_that_runs_dry_ends_the_step(sources):
    selection = open_selection(sources, 39, 0, max_tries=5)
    selection.filter(roll(selection.draw(), lambda v: 0))
    second = selection.draw()
    assert len(second) == 1, "forty prompts, thirty-nine used"
    selection.filter(roll(second, lambda v: 0))
    assert selection.draw() == []


def collect(selection, num_correct):
    """Run a whole selection; the number of groups of each round, replayed and fresh."""
    rounds = []
    while groups := selection.draw():
        rounds.append((sum(v.replayed for v in groups), sum(not v.replayed for v in groups)))
        selection.filter(roll(groups, num_correct))
    selection.close()
    return rounds


def every_other(group):
    """A prompt with an odd number is informative, the others are never solved."""
    return 2 * (int(group.prompt.id[1:]) % 2)


def test_twenty_tries_fill_a_step_that_three_leave_half_empty(sources):
    """One prompt in four carries a signal."""

    def one_in_four(group):
        return 2 if int(group.prompt.id[1:]) % 4 == 0 else 0

    few, many = (open_selection(sources, 6, 0, max_tries=tries) for tries in (3, 20))
    collect(few, one_in_four)
    collect(many, one_in_four)
    assert len(few.kept) < 6
    assert len(many.kept) == 6


def test_a_round_asks_for_as_many_more_as_recent_steps_lost(sources):
    sources.keep_rates.add(False, survived=10, sampled=20)
    selection = open_selection(sources, 6, 0, oversample=True)
    assert len(selection.draw()) == math.ceil((6 + 0.5 * math.sqrt(6 * 0.5)) / 0.5) == 14
    plain = open_selection(sources, 6, 0, oversample=False)
    assert len(plain.draw()) == 6


def test_sources_are_oversampled_each_by_its_own_losses(sources):
    fill(sources.buffer, 20)
    sources.keep_rates.add(False, survived=5, sampled=5)
    sources.keep_rates.add(True, survived=3, sampled=6)
    groups = open_selection(sources, 4, 4, oversample=True).draw()
    assert sum(v.replayed for v in groups) == math.ceil((4 + 0.5 * math.sqrt(4 * 0.5)) / 0.5) == 10
    assert sum(not v.replayed for v in groups) == 4, "none of them was lost"


def test_what_survives_beyond_the_quota_is_surplus_and_the_step_is_exactly_full(sources):
    sources.keep_rates.add(False, survived=10, sampled=20)
    selection = open_selection(sources, 6, 0, oversample=True)
    groups = selection.draw()
    selection.filter(roll(groups, lambda v: 2))
    assert [g.prompt.id for g in selection.kept] == [v.prompt.id for v in groups[:6]], "the first ones drawn"
    assert len(selection.surplus) == 8
    assert selection.draw() == []


def test_a_second_round_knows_what_the_first_lost(sources):
    selection = open_selection(sources, 8, 0, max_tries=20, oversample=True)
    rounds = collect(selection, every_other)
    assert rounds[0] == (0, 8), "nothing is known yet"
    lost = 8 - sum(every_other(g) > 0 for g in selection.sampled[:8])
    rate = (8 - lost) / 8
    assert rounds[1][1] == min(4 * lost, math.ceil((lost + 0.5 * math.sqrt(lost * (1 - rate))) / rate))
    assert len(selection.kept) == 8


def test_a_round_asks_for_at_most_four_times_what_is_missing(sources):
    sources.keep_rates.add(False, survived=0, sampled=100)
    assert len(open_selection(sources, 3, 0, oversample=True).draw()) == 12


def test_without_the_filter_nothing_is_oversampled(sources):
    sources.keep_rates.add(False, survived=1, sampled=4)
    selection = open_selection(sources, 6, 0, filter_groups=False, max_tries=1, oversample=True)
    assert len(selection.draw()) == 6


def test_both_quotas_fall_back_on_fresh_prompts_by_the_same_rule(sources):
    """After the tries of its own source replay's share is refilled from fresh prompts, round by round."""
    fill(sources.buffer, 30)
    selection = open_selection(sources, 2, 4, max_tries=2)
    fresh_seen = []

    def replay_is_solved_and_every_other_fresh_one_useless(group):
        if group.replayed:
            return NUM_RESPONSES
        if group.prompt.id not in fresh_seen:
            fresh_seen.append(group.prompt.id)
        return 0 if fresh_seen.index(group.prompt.id) % 2 else 2

    rounds = collect(selection, replay_is_solved_and_every_other_fresh_one_useless)
    assert rounds == [(4, 2), (4, 1), (0, 4), (0, 2)], "two rounds more, not one"
    assert len(selection.kept) == 5
    assert selection.rounds == 4


def test_keep_rates_remember_five_steps_and_survive_saving():
    rates = KeepRates()
    assert rates.prompts_for(6, False) == 6, "nothing is known"
    for survived in (0, 4, 4, 4, 4, 4):
        rates.add(False, survived, 8)
    rates.add(True, 0, 0)
    assert rates.prompts_for(8, False) == (8 + 0.5 * 2) / 0.5, "half survive: the oldest step is forgotten"
    assert rates.prompts_for(6, True) == 6
    assert rates.prompts_for(6, True, survived=0, sampled=6) == 24, "at most four times as many"
    copy = KeepRates()
    copy.load_state_dict(json.loads(json.dumps(rates.state_dict())))
    assert copy == rates


@pytest.mark.parametrize(("num_correct", "is_kept"), [(0, True), (2, True), (3, False), (4, False)])
def test_the_filter_judges_an_off_policy_group_with_its_experience_in_it(sources, num_correct, is_kept):
    """An old success in the last slot makes an unsolved group informative, and may make one flat."""
    fill(sources.buffer, 8)
    selection = open_selection(sources, 0, 4, max_tries=1, with_experience=True)
    groups = selection.draw()
    selection.filter(roll(groups, lambda v: num_correct))
    assert (len(selection.kept) == 4) == is_kept
    fresh = open_selection(sources, 4, 0, max_tries=1, with_experience=True)
    fresh.filter(roll(fresh.draw(), lambda v: num_correct))
    assert (len(fresh.kept) == 4) == (0 < num_correct < 4), "a fresh group has no experience"


# The fresh stream

IDS = [f"p{i}" for i in range(7)]


def test_every_epoch_holds_every_prompt_once_in_a_new_order():
    stream = FreshStream(IDS, seed=1)
    first, second = stream.take(7), stream.take(7)
    assert sorted(first) == sorted(second) == IDS
    assert first != second
    assert FreshStream(IDS, seed=1).take(7) == first


def test_it_advances_by_just_what_was_taken():
    whole = FreshStream(IDS, seed=3).take(6)
    stream = FreshStream(IDS, seed=3)
    assert [stream.take(1)[0], *stream.take(2), *stream.take(3)] == whole


def test_excluded_prompts_are_deferred_not_dropped():
    order = FreshStream(IDS, seed=2).take(7)
    stream = FreshStream(IDS, seed=2)
    assert stream.take(2, exclude={order[0], order[2]}) == [order[1], order[3]]
    assert stream.take(3) == [order[0], order[2], order[4]]


def test_no_others_left_gives_fewer():
    assert FreshStream(IDS, seed=0).take(5, exclude=set(IDS[:5])) in (["p5", "p6"], ["p6", "p5"])
    assert FreshStream(IDS, seed=0).take(3, exclude=set(IDS)) == []


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 7), st.sets(st.sampled_from(IDS))), max_size=20), st.integers(0, 19))
def test_state_in_the_middle_changes_nothing_and_nobody_is_starved(calls, cut):
    stream, restored, taken = FreshStream(IDS, seed=5), None, Counter()
    for index, (num, exclude) in enumerate(calls):
        if index == cut:
            restored = FreshStream(IDS, seed=5)
            restored.load_state_dict(stream.state_dict())
        got = stream.take(num, exclude)
        assert len(set(got)) == len(got) == min(num, len(set(IDS) - exclude))
        assert not set(got) & exclude
        if restored is not None:
            assert restored.take(num, exclude) == got
        taken.update(got)
    # One full round for everybody: counts differ only by the epoch that is under way and what is deferred.
    waiting = Counter(stream.state_dict()["deferred"])
    grouped = Counter({name: taken[name] + waiting[name] for name in IDS})
    assert max(grouped.values()) - min(grouped.values()) <= 1


def test_a_round_is_refilled_for_what_running_groups_are_not_expected_to_fill(sources):
    """Eight wanted, all eight drawn; of four that have finished one survives: 7 missing, 4 running, 3 more."""
    selection = open_selection(sources, 8, 0, max_tries=5)
    drawn = selection.draw()
    finished, running = roll(drawn[:4], lambda group: 2 if group is drawn[0] else 0), drawn[4:]
    more = selection.refill(finished, running)
    assert len(more) == 3
    assert not {g.prompt.id for g in more} & {g.prompt.id for g in drawn}
    assert selection.refill(finished, running + more) == [], "those are on their way"
    assert selection.tries == 2
    assert selection.kept == [], "the filter sees groups in the order of the draw"


def test_a_refill_counts_on_the_share_that_survives(sources):
    """The rate of this step's finished groups, 1/2: at least 2 x 3 prompts for 3 missing groups, 2 of them running."""
    selection = open_selection(sources, 4, 0, max_tries=5, oversample=True)
    drawn = selection.draw()
    assert len(drawn) == 4
    finished = roll(drawn[:2], lambda group: 2 if group is drawn[0] else 0)
    expected = KeepRates().prompts_for(3, False, 1, 2) - 2
    assert len(selection.refill(finished, drawn[2:])) == expected >= 4


def test_a_refill_leaves_full_quotas_and_used_up_tries_alone(sources):
    selection = open_selection(sources, 2, 0, max_tries=1)
    drawn = selection.draw()
    assert selection.refill(roll(drawn[:1], lambda group: 0), drawn[1:]) == [], "the only try is used up"
    fill(sources.buffer, 20)
    selection = open_selection(sources, 1, 2, max_tries=3)
    drawn = selection.draw()
    assert selection.refill(roll(drawn[:2], lambda group: 2), drawn[2:]) == []
    failed = roll(drawn[:2], lambda group: 0)
    assert [group.replayed for group in selection.refill(failed, drawn[2:])] == [True, True]
