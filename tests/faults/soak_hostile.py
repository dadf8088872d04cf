"""Soak: every hostile response at the verifier's own limits, for both graders, and fuzzing within a time bound."""

import os
import time
from pathlib import Path
from statistics import mean

import pytest
from hostile_responses import whole_responses
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from soak_table import record

from pivot.rewards.verifier import Reason, Verifier

FUZZ_SECONDS = float(os.environ.get("SOAK_FUZZ_SECONDS", "90"))
LIMIT_SECONDS = 2.0
LOAD = float(os.environ.get("SOAK_LOAD", "3"))
"""How many times slower than an idle machine this one may be, by the clock."""
ALPHABET = r"\frac \sqrt \text{ \{ \} { } ( ) [ ] ^ ! / * + - √ π ° % , ; : = < ± ½ ² 9 10 0.5 x A or \boxed{ 9^{9^9}"
PIECES = [
    *ALPHABET.split(),
    " ",
    "\n",
    "<think>",
    "</think>",
    "\\sin",
    "\\log_2",
    "\x00",
    "５",
    "\\begin{matrix}",
]


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.parametrize("grader", ["pivot", "mathruler"])
def test_hostile_responses(grader):
    texts, worst = whole_responses(), []
    # mathruler asks its library about everything; an answer that is no integer makes it compute.
    answer = "7" if grader == "pivot" else "\\frac{\\sqrt{7}}{2}"
    with Verifier(grader, workers=1, seconds=1.0 if grader == "pivot" else 0.25) as verifier:
        verifier.grade(r"\boxed{\sin 30^\circ}", "y")
        memory = resident_megabytes()
        for text in texts:
            begin = time.monotonic()
            reward = verifier.grade(text, answer)
            worst.append(time.monotonic() - begin)
            assert reward.reason in set(Reason)
            assert worst[-1] < LOAD * LIMIT_SECONDS, text[:80]
        growth = resident_megabytes() - memory
        assert verifier.grade(r"\boxed{7}", "7").correct
    over = sum(seconds > LIMIT_SECONDS for seconds in worst)
    record(
        "hostile answers",
        f"{len(texts)} with the grader {grader}",
        f"slowest {max(worst):.2f} s, {over} above {LIMIT_SECONDS:g} s by the clock, mean {mean(worst):.3f} s; memory "
        f"{growth:+.1f} MB",
    )
    assert growth < 100


def test_fuzzing_within_a_time_bound():
    deadline, count, slowest, rounds = time.monotonic() + FUZZ_SECONDS, 0, 0.0, 0
    texts = st.one_of(st.lists(st.sampled_from(PIECES), max_size=60).map("".join), st.text(max_size=300))
    with Verifier(workers=1, seconds=0.5) as verifier:
        verifier.grade(r"\boxed{\sin 30^\circ}", "y")  # starts the library
        memory = resident_megabytes()

        def answered(text: str, answer: str) -> None:
            nonlocal count, slowest
            if time.monotonic() > deadline:
                return
            begin = time.monotonic()
            reward = verifier.grade(f"\\boxed{{{text}}}", answer)
            slowest = max(slowest, time.monotonic() - begin)
            count += 1
            assert reward.reason in set(Reason)

        while time.monotonic() < deadline:
            rounds += 1
            run = settings(
                max_examples=500, deadline=None, database=None, suppress_health_check=list(HealthCheck)
            )(given(texts, st.sampled_from(["5", "x+1", "(1,2)", "B", "\\sqrt{2}"]))(answered))
            seed(rounds)(run)()
        growth = resident_megabytes() - memory
    record(
        "fuzzing",
        f"{FUZZ_SECONDS / 60:g} minutes, {count:,} texts, {rounds} seeds of hypothesis",
        f"slowest {slowest:.2f} s; memory {growth:+.1f} MB",
    )
    assert count > 500
    assert slowest < LOAD * LIMIT_SECONDS
    assert growth < 100
