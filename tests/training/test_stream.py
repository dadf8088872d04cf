from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from pivot.training.stream import FreshStream

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
    visited = Counter({name: taken[name] + waiting[name] for name in IDS})
    assert max(visited.values()) - min(visited.values()) <= 1
