"""Time left, from what is known."""

import io
from pathlib import Path

import pytest

from pivot.reproduce.forecast import Forecast, Standing, spell
from pivot.reproduce.plan import Cell

TRAINED, SINGLE = Cell("main", "dapo"), Cell("main", "base")


def forecast(**known) -> Forecast:
    return Forecast(10, 2, 2, {True: known.get("single", []), False: known.get("trained", [])}, io.StringIO())


def test_nothing_is_known_at_first():
    assert forecast().seconds_left([Standing(TRAINED, 3.0, 0.0)], [TRAINED]) is None


def test_a_running_cell_gives_a_first_estimate():
    # Half done after 50 s: 50 s of it and 100 s of another are left, on two processes.
    assert forecast().seconds_left([Standing(TRAINED, 50.0, 0.5)], [TRAINED]) == pytest.approx(75.0)


def test_finished_cells_give_a_better_one():
    found = forecast(trained=[90.0, 100.0, 200.0], single=[10.0])
    left = found.seconds_left([Standing(TRAINED, 999.0, 0.25), Standing(SINGLE, 4.0, 0.0)], [TRAINED, SINGLE])
    assert left == pytest.approx((75 + 6 + 100 + 10) / 2)


def test_what_is_said_is_counted():
    found = forecast()
    found.ended(TRAINED, 125.0)
    found.broke(SINGLE, 1, Path("x/cell.log"))
    assert found.stream.getvalue().splitlines() == [
        "[3/10] main dapo seed 0: done in 2 min",
        "      main base: failed (exit code 1); see x/cell.log",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (40, "40 s"), (600, "10 min"), (11100, "3 h 05 min")]
)
def test_spelling(seconds, text):
    assert spell(seconds) == text
