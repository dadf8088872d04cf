"""The cross product of all real answers: only what is truly equal is accepted."""

import warnings

import pytest
from real_answers import DATA, conflict, facets, real_answers

from pivot.rewards.verifier.comparison import agree
from pivot.rewards.verifier.reading import read

pytestmark = pytest.mark.skipif(not DATA.exists(), reason="the real answers are not here")


@pytest.fixture(scope="module")
def answers() -> list[str]:
    found = real_answers()
    assert len(found) > 1200
    return found


def test_the_cross_product_accepts_only_what_is_equal(answers: list[str]) -> None:
    """1.5 million pairs. `facets` is a naive reading that shares no code with the verifier."""
    readings = [read(answer) for answer in answers]
    accepted = [
        (given, truth)
        for given, one in zip(answers, readings, strict=True)
        for truth, other in zip(answers, readings, strict=True)
        if given != truth and agree(one, other) is not False
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        assert [pair for pair in accepted if conflict(*pair)] == []
    assert len(accepted) > 400, "spellings of the same value occur in the data"


def test_every_real_answer_is_right_for_itself(answers: list[str]) -> None:
    assert [answer for answer in answers if agree(read(answer), read(answer)) is not True] == []


def test_the_naive_reading_is_not_blind() -> None:
    assert facets("B. 48") >= {("letter", "B"), ("value", 48.0)}
    assert facets("10.5%") >= {("value", 10.5), ("value", 0.105)}
    assert ("values", (0.04, 440.0)) in facets("(1)$$0.04$$ (2)$$440$$")
    assert conflict("2*√3", "3.4")
    assert not conflict("2*√3", "$2\\sqrt{3}$")
    assert conflict("15 tension", "15 compression")
