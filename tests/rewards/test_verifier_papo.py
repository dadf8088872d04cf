"""`mathruler`: the accuracy and the format of PAPO's reward function, on whole responses."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mathruler.grader import extract_boxed_content, grade_answer

from pivot.rewards.judge import FunctionJudge, RewardRules
from pivot.rewards.verifier import Verifier
from pivot.rewards.verifier.response import follows_papo_format, papo_box, papo_text
from pivot.types import Prompt

CASES = [
    # response, answer, accuracy, format
    (r"<think>a</think> \boxed{5}", "5", 1, 1),
    # White space around tags goes, wherever it stands.
    ("\n <think>\na\n</think>\n\\boxed{5}", "5", 1, 1),
    ("< think >a< / think > \\boxed{5}", "5", 1, 1),
    ("<\tthink\n>a<\u3000/\xa0think> \\boxed{5}", "5", 1, 1),
    (r"<th ink>a</think> \boxed{5}", "5", 1, 0),
    (r"<think>a</think> \boxed{1 / 2}", "1/2", 1, 1),
    (r"<think>a</think> \boxed{x < 2}", "x<2", 1, 1),
    ("<think>a</think> \\boxed{7\t/ 2}", "7/2", 1, 1),
    ("<think>a</think> \\boxed{km\u3000/ h}", "km/h", 1, 1),
    (r"<think>a</think> \boxed{  5 }", "5", 1, 1),
    (r"<think>a</think> \boxed{1, 2}", "1,2", 1, 1),
    (r"<think>a</think> \boxed {5}", "5", 0, 0),
    (r"<think>a</think> \boxed {5}", "None", 1, 0),
    # Several boxes: the very last one is the answer; any after a closing tag makes the format.
    (r"<think>a</think> \boxed{4} \boxed{5}", "5", 1, 1),
    (r"<think>a</think> \boxed{5} \boxed{4}", "5", 0, 1),
    (r"<think>\boxed{4}</think> \boxed{5}", "5", 1, 1),
    (r"<think>a</think> \boxed{5} \boxed{4", "5", 0, 1),
    (r"<think>a</think> \boxed{\boxed{5}}", "5", 1, 1),
    (r"<think>\boxed{5}</think>", "5", 1, 0),
    (r"<think>\boxed{5}</think> \boxed{", "5", 0, 0),
    # Think tags that are missing, repeated, in another order or in capitals.
    (r"\boxed{5}", "5", 1, 0),
    (r"a</think> \boxed{5}", "5", 1, 0),
    (r"<think>a \boxed{5}", "5", 1, 0),
    (r"Sure: <think>a</think> \boxed{5}", "5", 1, 0),
    (r"<think><think>a</think> \boxed{5}", "5", 1, 1),
    (r"<think>a</think></think> \boxed{5}", "5", 1, 1),
    (r"<think>a</think> <think>b</think> \boxed{5}", "5", 1, 1),
    (r"</think><think> \boxed{5}", "5", 1, 0),
    (r"<think></think>\boxed{}", "5", 0, 1),
    (r"<Think>a</Think> \boxed{5}", "5", 1, 0),
    # Text after the box is free.
    ("<think>a</think> \\boxed{5}. That is all.\n\n", "5", 1, 1),
    (r"<think>a</think> \boxed{5} </think>", "5", 1, 1),
    (r"<think>a</think> \boxed{5 }} {", "5", 1, 1),
    # Braces: nested ones are counted, escaped ones too; the format wants any closing brace.
    (r"<think>a</think> \boxed{\frac{1}{2}}", r"\frac{1}{2}", 1, 1),
    (r"<think>a</think> \boxed{\sqrt{\frac{{1}}{4}}}", "1/2", 1, 1),
    (r"<think>a</think> \boxed{\left\{ 5 \right.}", "5", 0, 1),
    (r"<think>a</think> \boxed{\{1,2\}}", r"\{1,2\}", 1, 1),
    (r"<think>a</think> \boxed{\frac{1}{2}", r"\frac{1}{2}", 0, 1),
    (r"<think>a</think> \boxed{5", "5", 0, 0),
    # No box is the text None.
    (r"<think>a</think> 5", "5", 0, 0),
    (r"<think>a</think> 5", "None", 1, 0),
    ("", "None", 1, 0),
    # mathruler's own opinions.
    (r"<think>a</think> \boxed{2/4}", "1/2", 0, 1),
    (r"<think>a</think> \boxed{70°}", "70", 0, 1),
    (r"<think>a</think> \boxed{\frac{1}{2}}", "0.5", 1, 1),
    (r"<think>a</think> \boxed{x=5}", "5", 1, 1),
    (r"<think>a</think> \boxed{5 cm}", "5", 1, 1),
    # No cap at 2,000 characters, neither before nor after blanks are taken off.
    (rf"<think>a</think> \boxed{{5{' ' * 5000}}}", "5", 1, 1),
    (rf"<think>a</think> \boxed{{{'ab' * 2000}}}", "ab" * 2000, 1, 1),
    (rf"<think>a</think> \boxed{{{'ab' * 2000}}}", "ab" * 2000 + "c", 0, 1),
]

TAG_SPACE = re.compile(r"\s*(<|>|/)\s*")
FORMAT = re.compile(r"<think>.*</think>.*\\boxed\{.*\}.*", re.DOTALL)


def by_papo(response: str, answer: str) -> tuple[int, int]:
    """The rule in its shortest form, with mathruler itself and without any limit."""
    text = TAG_SPACE.sub(r"\1", response)
    return int(grade_answer(extract_boxed_content(text), answer)), int(bool(FORMAT.fullmatch(text)))


@pytest.mark.parametrize(("response", "answer", "accuracy", "form"), CASES)
def test_the_table_is_what_papos_rule_gives(response: str, answer: str, accuracy: int, form: int) -> None:
    assert by_papo(response, answer) == (accuracy, form)


def test_the_grader_agrees_with_the_table() -> None:
    with Verifier("mathruler", workers=1, seconds=5.0) as verifier:
        rewards = verifier.grade_many([case[0] for case in CASES], [case[1] for case in CASES])
    for (response, answer, accuracy, form), reward in zip(CASES, rewards, strict=True):
        assert (reward.accuracy, reward.format) == (accuracy, form), (response, answer)


def test_the_extracted_answer_is_the_text_that_is_graded() -> None:
    with Verifier("mathruler", workers=1, seconds=5.0) as verifier:
        spaced = verifier.grade(r"<think>a</think> \boxed{ 1 / 2 }", "1/2")
        unclosed = verifier.grade(r"<think>a</think> \boxed{5} \boxed{4", "5")
    assert (spaced.extracted, spaced.reason) == ("1/2", "correct")
    assert (unclosed.extracted, unclosed.reason) == (None, "no box")


def test_the_other_grader_keeps_its_format() -> None:
    spaced, repeated = r"< think >a< / think > \boxed{5}", r"<think>a</think></think> \boxed{5}"
    with Verifier("pivot") as ours, Verifier("mathruler", workers=1, seconds=5.0) as papos:
        assert [ours.grade(response, "5").format for response in (spaced, repeated)] == [0.0, 0.0]
        assert [papos.grade(response, "5").format for response in (spaced, repeated)] == [1.0, 1.0]


@pytest.mark.parametrize(("grader", "form"), [("pivot", 0.0), ("mathruler", 1.0)])
def test_a_reward_function_gets_the_graders_format(grader: str, form: float) -> None:
    prompt = Prompt(id="p", question="?", answer="5", images=())
    judge = FunctionJudge(RewardRules(("experiments.tiny_world.rewards:same_remainder",), grader=grader))
    try:
        (reward,) = judge.judge([prompt], [r"< think >a< / think > \boxed{5 / 1}"])
    finally:
        judge.close()
    assert (reward.format, reward.extracted) == (form, "5/1" if form else "5 / 1")


PIECES = [
    "<",
    ">",
    "/",
    "think",
    "<think>",
    "</think>",
    "\\boxed{",
    "{",
    "}",
    "\\{",
    " ",
    "\n",
    "\xa0",
    "5",
    "\\",
]


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join))
def test_text_format_and_box_are_those_of_the_expressions(response: str) -> None:
    text = TAG_SPACE.sub(r"\1", response)
    assert papo_text(response) == text
    assert follows_papo_format(response) is bool(FORMAT.fullmatch(text))
    box = papo_box(response)
    assert ("None" if box is None else box) == extract_boxed_content(text)


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(["</think>", "\\boxed{", "}", "a"]), max_size=10).map("".join))
def test_responses_that_begin_well_have_the_expressions_format(rest: str) -> None:
    response = f"<think>{rest}"
    assert follows_papo_format(response) is bool(FORMAT.fullmatch(response))


def test_every_white_space_character_is_taken_off() -> None:
    blanks = [chr(code) for code in range(0x110000) if re.fullmatch(r"\s", chr(code))]
    assert len(blanks) > 20
    assert all(papo_text(f"{blank}<{blank}/{blank}a{blank}>{blank}") == "</a>" for blank in blanks)


@pytest.mark.parametrize(
    "response",
    [
        "<think>" + "</think>\\boxed{" * 100_000,  # the expression is cubic on these
        "<think>" + " " * 1_000_000 + "a</think>\\boxed{5}",
        "\\boxed{" * 100_000 + "5" + "}" * 100_000,
        "< / > " * 200_000,
    ],
)
def test_long_responses_take_linear_time(response: str) -> None:
    begin = time.process_time()
    papo_box(response)
    follows_papo_format(response)
    assert time.process_time() - begin < 2.0


def test_a_box_beyond_the_cap_of_the_library_is_too_long() -> None:
    with Verifier("mathruler", workers=1) as verifier:
        reward = verifier.grade(rf"<think>a</think> \boxed{{{'7' * 65_537}}}", "7")
    assert (reward.accuracy, reward.format, reward.reason, reward.extracted) == (0.0, 1.0, "too long", None)
