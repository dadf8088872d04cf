"""Where a response says its answer: boxes, tags and regular expressions, in bounded time."""

import time

import pytest

from pivot.errors import UserError
from pivot.rewards.verifier import Verifier, answer_finder
from pivot.rewards.verifier.verifier import MAX_TIMEOUTS


@pytest.mark.parametrize(
    ("form", "response", "answer"),
    [
        ("boxed", "\\boxed{1} \\boxed{2}", "2"),
        ("tag", "<answer>1</answer> or <answer> 2 </answer>", "2"),
        ("tag", "<answer>1</answer> <answer>2", "1"),
        ("tag", "</answer><answer>", None),
        ("tag", "\\boxed{2}", None),
        (r"Answer: (.+)", "Answer: 1\nAnswer: 2 cm\n", "2 cm"),
        (r"(?:x = (\d+)|none)", "x = 5, none", "5"),
        (r"Answer: (.+)", "no", None),
    ],
)
def test_the_last_answer_is_found(form, response, answer):
    found = answer_finder(form)(response)
    assert (None if found is None else found.content) == answer


@pytest.mark.parametrize(
    ("form", "think", "response", "follows"),
    [
        ("tag", True, "<think>a</think> <answer>2</answer>", True),
        ("tag", True, "<answer>2</answer>", False),
        ("tag", False, "<answer>2</answer>", True),
        ("tag", True, "<think><answer>2</answer></think>", False),
        ("tag", True, "<think>a</think></think><answer>2</answer>", False),
        (r"= (\d+)", True, " <think>1</think> so = 2", True),
        (r"= (\d+)", True, "<think>= 2</think>", False),
        ("boxed", False, "\\boxed{2}", True),
        ("boxed", False, "2", False),
    ],
)
def test_the_format_is_what_the_prompt_asks_for(form, think, response, follows):
    with Verifier(answer=form, think=think) as verifier:
        assert verifier.grade(response, "2").format == float(follows)


def test_mathruler_compares_other_forms_too():
    with Verifier("mathruler", workers=1, seconds=5.0, answer="tag") as verifier:
        rewards = verifier.grade_many(["<answer>\\frac{1}{2}</answer>", "\\boxed{1/2}"], ["1/2", "1/2"])
    assert [r.reason for r in rewards] == ["correct", "no answer"]


def test_an_expression_that_backtracks_is_stopped_and_many_of_them_end_the_call():
    slow, hostile = r"(?:(a|aa)+)$", "a" * 60 + "!"
    with Verifier(answer=slow) as verifier:
        begin = time.monotonic()
        rewards = verifier.grade_many([hostile, "a"], ["a", "a"])
        assert time.monotonic() - begin < 20
        assert [r.reason for r in rewards] == ["timed out", "correct"]
        assert rewards[0].format == 0


def test_a_batch_full_of_them_ends_the_call(monkeypatch):
    monkeypatch.setattr("pivot.rewards.verifier.answers.SEARCH_SECONDS", 0.01)
    with (
        Verifier(answer=r"(?:(a|aa)+)$") as verifier,
        pytest.raises(UserError, match="without nested repetitions"),
    ):
        verifier.look(["a" * 60 + "!"] * MAX_TIMEOUTS)
