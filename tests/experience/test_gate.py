"""The start of replay: by solved ratio, by warm-up, once and for all."""

import pytest

from pivot.experience import ReplayGate


def test_opens_when_the_solved_ratio_exceeds_the_threshold():
    gate = ReplayGate(threshold=0.45, max_warmup_steps=100)
    assert not gate.observe(0.2, step=1)
    assert not gate.observe(0.45, step=2), "exceeds, not reaches"
    assert gate.observe(0.46, step=3)
    assert gate.opened_at == 3


def test_opens_after_the_warmup():
    gate = ReplayGate(max_warmup_steps=3)
    assert [gate.observe(0.1, step=step) for step in (1, 2, 3, 4)] == [False, False, True, True]
    assert gate.opened_at == 3


def test_without_a_cap_only_the_threshold_opens():
    gate = ReplayGate(max_warmup_steps=None)
    assert not any(gate.observe(0.0, step=step) for step in range(1, 500))


def test_a_warmup_of_no_steps_is_open_at_once():
    assert ReplayGate(max_warmup_steps=0).is_open
    assert not ReplayGate(max_warmup_steps=1).is_open


def test_stays_open_and_remembers_when():
    gate = ReplayGate(max_warmup_steps=50)
    gate.observe(0.9, step=4)
    assert gate.observe(0.0, step=5)
    assert gate.opened_at == 4


def test_state_round_trip():
    gate, other = ReplayGate(max_warmup_steps=9), ReplayGate(max_warmup_steps=9)
    gate.observe(0.6, step=2)
    other.load_state_dict(gate.state_dict())
    assert other.is_open
    assert other.opened_at == 2


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_ratio_outside_0_to_1_is_refused(ratio):
    with pytest.raises(ValueError, match="solved_ratio"):
        ReplayGate().observe(ratio, step=1)


@pytest.mark.parametrize(("threshold", "warmup"), [(1.5, 3), (0.4, -1)])
def test_impossible_settings_are_refused(threshold, warmup):
    with pytest.raises(ValueError, match=r"threshold|max_warmup_steps"):
        ReplayGate(threshold, warmup)
