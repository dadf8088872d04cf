"""Phase times, and what a person sees of a run."""

import io

import pytest

from pivot.runs.progress import Progress, duration, summarise
from pivot.training.clock import PhaseClock

METRICS = {
    "step": 1,
    "reward/mean": 0.45,
    "reward/accuracy": 0.4,
    "buffer/size": 12,
    "buffer/success_histogram": [1, 2],
    "eval/accuracy": None,
    "time/step": 3.2,
    "time/rollout": 2.0,
    "time/update": 0.01,
    "time/share_rollout": 0.6,
    "time/tokens_per_second": 1234.5,
}


class Ticks:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def test_phases_add_up_and_the_rest_is_other():
    ticks = Ticks()
    clock = PhaseClock(ticks)
    for _ in range(2):
        with clock.phase("rollout"):
            ticks.now += 3
        ticks.now += 1
    with clock.phase("update"):
        ticks.now += 2
    metrics = clock.metrics()
    assert {key: metrics[f"time/{key}"] for key in ("step", "rollout", "update", "other")} == {
        "step": 10,
        "rollout": 6,
        "update": 2,
        "other": 2,
    }
    assert metrics["time/share_rollout"] == 0.6
    assert metrics["time/share_other"] == 0.2


def test_processor_time_is_counted_beside_the_wall_and_from_the_restart():
    wall, processor = Ticks(), Ticks()
    clock = PhaseClock(wall, processor=processor)
    wall.now, processor.now = 9, 5
    assert clock.metrics()["time/processor"] == 5
    clock.restart()
    wall.now, processor.now = 12, 7
    metrics = clock.metrics()
    assert (metrics["time/step"], metrics["time/processor"]) == (3, 2)


def test_a_change_of_phase_is_told():
    told = []
    clock = PhaseClock(on_change=told.append)
    with clock.phase("rollout"), clock.phase("verify"):
        pass
    assert told == ["rollout", "verify", "rollout", None]


def test_nested_time_counts_for_the_inner_phase_alone():
    ticks = Ticks()
    clock = PhaseClock(ticks)
    with clock.phase("rollout"):
        ticks.now += 1
        with clock.phase("verify"):
            assert clock.running == "verify"
            ticks.now += 5
        assert clock.running == "rollout"
        ticks.now += 1
    assert clock.phases == {"rollout": 2, "verify": 5}


def test_a_phase_that_raises_is_still_counted_and_left():
    ticks = Ticks()
    clock = PhaseClock(ticks)

    def roll_out():
        with clock.phase("rollout"):
            ticks.now += 4
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        roll_out()
    assert clock.phases == {"rollout": 4}
    assert clock.running is None


def test_restart_begins_a_new_step_inside_a_running_phase():
    ticks = Ticks()
    clock = PhaseClock(ticks)
    with clock.phase("evaluate"):
        ticks.now += 3
        clock.restart()
        ticks.now += 2
    assert clock.phases == {"evaluate": 2}
    assert clock.elapsed == 2


def test_the_summary_leaves_out_what_a_step_lacks():
    assert summarise(METRICS) == {
        "reward": "0.450",
        "accuracy": "0.400",
        "buffer": "12",
        "tokens/s": "1234",
        "seconds": "step 3.2 rollout 2.0",
    }


def test_without_a_terminal_there_is_one_line_a_step():
    stream = io.StringIO()
    with Progress(3, stream=stream) as progress:
        for step in (1, 2):
            with progress.phase("rollout"):
                pass
            progress.step_done(step, METRICS)
        progress.say("saved [1]")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("step 1/3  reward 0.450  accuracy 0.400  buffer 12")
    assert lines[0].endswith("left 0s")
    assert lines[2] == "saved [1]"


def test_every_line_is_flushed_when_it_is_written(tmp_path):
    with (tmp_path / "log").open("w", buffering=8192) as stream, Progress(1, stream=stream) as progress:
        progress.say("now")
        assert (tmp_path / "log").read_text() == "now\n"


def test_a_short_task_says_when_it_starts_and_when_it_is_over():
    stream = io.StringIO()
    with Progress(1, stream=stream) as progress:
        assert list(progress.track(range(8), "evaluating")) == list(range(8))
        assert list(progress.track(iter("ab"), "loading")) == ["a", "b"]
        assert list(progress.track([], "nothing")) == []
    assert stream.getvalue().splitlines() == [
        *(f"evaluating: {done}/8" for done in (0, 8)),
        "loading: 0",
        "loading: 2/2",
        "nothing: 0/0",
    ]


def test_quiet_says_nothing_but_measures():
    stream = Terminal()
    with Progress(1, quiet=True, stream=stream) as progress:
        with progress.phase("rollout"):
            pass
        assert "rollout" in progress.clock.phases
        progress.say("hello")
        progress.step_done(1, METRICS)
        assert progress.clock.phases == {}
        assert list(progress.track("ab", "task")) == ["a", "b"]
    assert stream.getvalue() == ""


def test_a_terminal_shows_step_phase_numbers_and_messages(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    stream = Terminal()
    with Progress(4, stream=stream) as progress:
        progress.step_done(1, METRICS)
        with progress.phase("rollout"):
            for _ in progress.track(range(2), "evaluating"):
                progress.say("a message [with brackets]")
    shown = stream.getvalue()
    for part in ("1/4", "rollout", "accuracy 0.400", "a message [with brackets]", "left"):
        assert part in shown


def test_the_display_is_closed_when_a_run_breaks_off():
    stream = Terminal()
    with pytest.raises(KeyboardInterrupt), Progress(4, stream=stream):
        raise KeyboardInterrupt
    assert stream.getvalue().endswith("\x1b[?25h")


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (59.6, "1m00s"), (190, "3m10s"), (7500, "2h05m")])
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


def test_time_left_counts_from_where_a_resumed_run_went_on():
    stream = io.StringIO()
    with Progress(12, first_step=11, stream=stream) as progress:
        ticks = Ticks()
        progress._run = PhaseClock(ticks)
        ticks.now = 30
        progress.step_done(11, {})
    assert stream.getvalue() == "step 11/12  left 30s\n"
