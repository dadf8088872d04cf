"""Extraction, format, the fast path's spellings, and the Verifier's interface."""

import subprocess
import sys

import pytest

from pivot.rewards.verifier import Reason, Verifier, check_answer, follows_template, last_box
from pivot.rewards.verifier.response import MAX_BOX_CHARS


@pytest.mark.parametrize(
    ("response", "content"),
    [
        (r"so \boxed{5}.", "5"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"<think>\boxed{1}</think> \boxed{2}", "2"),
        (r"<think>\boxed{1}</think> nothing", "1"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{5} and \boxed{6", "5"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed {5}", "5"),
        (r"\boxed{  5 }", "5"),
        (r"\boxed{}", ""),
    ],
)
def test_the_last_balanced_box_is_the_answer(response: str, content: str) -> None:
    box = last_box(response)
    assert box is not None
    assert box.content == content


@pytest.mark.parametrize("response", ["", "5", r"\boxed{5", r"\boxed 5", "boxed{5}", r"\fbox{5}", "None"])
def test_no_box_is_no_answer(response: str) -> None:
    assert last_box(response) is None
    with Verifier() as verifier:
        reward = verifier.grade(response, "None")
    assert (reward.accuracy, reward.reason, reward.extracted) == (0.0, Reason.NO_BOX, None)


@pytest.mark.parametrize(
    ("response", "follows"),
    [
        (r"<think>a</think>\boxed{5}", True),
        ("\n <think>\na\n</think>\nSo \\boxed{5}. Done.", True),
        (r"<think>\boxed{1}</think> \boxed{5}", True),
        (r"<think>\boxed{5}</think>", False),
        (r"Sure: <think>a</think> \boxed{5}", False),
        (r"<think>a</think></think> \boxed{5}", False),
        (r"<think><think>a</think> \boxed{5}", False),
        (r"<think>a \boxed{5}", False),
        (r"a</think> \boxed{5}", False),
        (r"<think>a</think> \boxed{5", False),
        (r"<think>a</think> 5", False),
        (r"<Think>a</Think> \boxed{5}", False),
    ],
)
def test_format_is_one_think_block_at_the_start_and_a_box_after_it(response: str, follows: bool) -> None:
    assert follows_template(response) is follows


SAME = [
    ("70°", "70"),
    (r"70^\circ", "70"),
    (r"70^{\circ}", "70"),
    ("70 degrees", "70"),
    ("x = 5", "5"),
    ("5", "x=5"),
    (r"m\angle ABC = 50^\circ", "50"),
    ("x = 2 + 3 = 5", "5"),
    ("x ≈ 5.3", "5.3"),
    ("B. 48", "B"),
    ("B", "B. 48"),
    ("48", "B. 48"),
    ("(B)", "B"),
    ("b", "B"),
    (r"\text{B}", "B"),
    ("The answer is B", "B"),
    ("A. larger than", "larger than"),
    ("B, D", "D and B"),
    ("BD", "B, D"),
    ("Yes.", "yes"),
    ("Yes, it is longer", "Yes"),
    ("1,000", "1000"),
    (r"1{,}000", "1000"),
    (r"10\,000", "10000"),
    (r"\$81,326", "81326"),
    ("−5", "-5"),
    ("２５", "25"),
    ("٣", "3"),
    (".5", "0.5"),
    ("1.20", "1.2"),
    ("3.", "3"),
    ("3.5e3", "3500"),
    ("5 million", "5000000"),
    ("50%", "50"),
    ("50%", "0.5"),
    (r"50\%", "50%"),
    (r"\frac12", "0.5"),
    (r"\dfrac{14}{3}", r"$$\frac{14}{3}$$"),
    (r"2\frac{1}{2}", "2.5"),
    ("2 1/2", "2.5"),
    ("2½", "2.5"),
    (r"-\frac{3}{4}", r"\frac{-3}{4}"),
    (r"2\sqrt{221}", "2*√221"),
    (r"5\sqrt3", r"5 \sqrt { 3 }"),
    ("√12", "2√3"),
    (r"\sqrt{\frac{1}{2}}", r"\frac{\sqrt{2}}{2}"),
    ("1/(1+√2)", "√2-1"),
    (r"\frac{8\sqrt{3}\pi}{3}", r"8/\sqrt3\pi"),
    ("sqrt(3)/2", r"\frac{\sqrt{3}}{2}"),
    (r"25\pi \text{ cm}^2", r"25\pi"),
    ("5 cm", "5"),
    ("12 square units", "12"),
    ("60 km/h", "60"),
    ("12 apples", "12"),
    (r"20\sqrt{2}\text{ nautical miles}", "20√{2}海里"),
    (r"132^\circ", r"132 ^\circT"),
    ("(0, 0)", "(0,0)"),
    ("(11,300)", "(11, 300)"),
    (r"\left(\frac{1}{2}, 3\right)", "(0.5,3)"),
    ("0, 2, 1", "[0, 2, 1]"),
    (r"\{1,2\}", r"\{2,1\}"),
    ("x=2 or x=3", "3 or 2"),
    (r"\pm 2", "2 or -2"),
    ("6, 6", "6\n6"),
    ("-2; 3√2", r"(1)$$-2$$ (2)$$3\sqrt{\number{2}}$$"),
    ("4:6", "2:3"),
    ("2/3", "2:3"),
    ("03:30", "3:30"),
    ("not enough information", "notenoughinformation"),
    (r"\angle 3 \cong \angle Z", r"\angle3\cong\angleZ"),
    ("AD and BE", "ADandBE"),
    ("2, 3, 6, 7", "angles2,3,6,and7"),
    ("10y(2y-1)", "20y^2-10y"),
    ("60 > x", "x<60"),
    ("2x - y + 3 = 0", "y = 2x+3"),
    (r"y \le 3+2x", r"$y \leq 2 x+3$"),
    (r"2^{10}", "1024"),
    ("5!", "120"),
]


@pytest.mark.parametrize(("extracted", "answer"), SAME)
def test_spellings_of_the_same_answer_are_correct(extracted: str, answer: str) -> None:
    assert check_answer(extracted, answer) is Reason.CORRECT


DIFFERENT = [
    ("5", "50"),
    ("8.66", r"5\sqrt{3}"),
    ("3.14", r"\pi"),
    ("C. 48", "B. 48"),
    ("B. 50", "B. 48"),
    ("A or B", "A"),
    ("A, B", "A"),
    ("A. B. C. D.", "A"),
    ("A triangle", "A"),
    ("BA", "AB"),
    ("5 cm", "5 m"),
    ("y = 5", "x = 5"),
    ("5 or 6", "5"),
    ("3:30", "1:10"),
    ("(0,1)", "[0,1]"),
    ("2, 1", "1, 2"),
    ("x > 60", "x<60"),
    ("x ≤ 60", "x<60"),
    ("50%", "5"),
    ("50%", "0.5%"),
    ("no", "yes"),
    ("yes or no", "yes"),
    ("3n", "3"),
    ("None", "5"),
    ("notenoughinformation", "15"),
    ("5 + 6 = 10", "10"),
    ("", "5"),
    ("5", ""),
]


@pytest.mark.parametrize(("extracted", "answer"), DIFFERENT)
def test_different_answers_are_never_correct(extracted: str, answer: str) -> None:
    assert check_answer(extracted, answer) in (Reason.WRONG, Reason.UNPARSABLE)


@pytest.mark.parametrize(
    "extracted", [r"\sin 30^\circ", r"\sqrt{2+\sqrt{3}}", r"\log_2 8", r"\frac{x+1}{x-1}"]
)
def test_what_the_fast_path_cannot_read_is_left_undecided(extracted: str) -> None:
    assert check_answer(extracted, "5") is None


def test_unparsable_is_what_nobody_should_compute() -> None:
    assert check_answer("9^{9^{9^9}}", "5") is Reason.UNPARSABLE
    assert check_answer("99999!", "5") is Reason.UNPARSABLE
    assert check_answer("5+?", "5") is Reason.UNPARSABLE
    assert check_answer(" $ $ ", "5") is Reason.UNPARSABLE


def test_a_box_beyond_the_cap_is_too_long() -> None:
    with Verifier() as verifier:
        longest = verifier.grade(f"\\boxed{{{'7' * MAX_BOX_CHARS}}}", "7" * MAX_BOX_CHARS)
        longer = verifier.grade(f"\\boxed{{{'7' * (MAX_BOX_CHARS + 1)}}}", "7")
    assert longest.reason == "correct"
    assert (longer.reason, longer.extracted) == ("too long", None)


def test_many_are_graded_in_order_by_both_paths() -> None:
    boxes = ["5", r"\sqrt{2+\sqrt{3}}", "6", r"\log_2 8", r"\sin 90"]
    answers = ["5", r"\frac{\sqrt{6}+\sqrt{2}}{2}", "5", "3", "x"]
    with Verifier(seconds=5.0) as verifier:
        rewards = verifier.grade_many([f"<think>a</think>\\boxed{{{box}}}" for box in boxes], answers)
    assert [reward.reason for reward in rewards] == ["correct", "correct", "wrong", "correct", "wrong"]
    assert [reward.extracted for reward in rewards] == boxes
    assert all(reward.format == 1.0 for reward in rewards)


def test_a_reward_says_which_path_decided_it() -> None:
    pairs = [
        ("5", "5"),
        ("B. 48", "B"),
        ("6", "5"),
        ("(1, 2)", "(1,2)"),
        ("20-25", "10-15"),
        (r"\log_2 8", "3"),
    ]
    with Verifier(seconds=5.0) as verifier:
        rewards = [verifier.grade(f"\\boxed{{{box}}}", answer) for box, answer in pairs]
    assert [reward.path for reward in rewards] == [
        "fast",
        "fast",
        "fast",
        "structured",
        "structured",
        "library",
    ]
    assert [reward.correct for reward in rewards] == [True, True, False, True, False, True]


def test_lengths_and_graders_are_checked() -> None:
    with Verifier() as verifier, pytest.raises(ValueError, match="2 responses, but 1 answers"):
        verifier.grade_many(["a", "b"], ["c"])
    with pytest.raises(ValueError, match="one of pivot, mathruler"):
        Verifier("mathrule")


def test_grading_needs_neither_torch_nor_sympy() -> None:
    code = (
        "import sys; from pivot.rewards.verifier import Verifier; Verifier().grade('\\\\boxed{5}', '5');"
        "sys.exit(any(name in sys.modules for name in ('torch', 'sympy', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
