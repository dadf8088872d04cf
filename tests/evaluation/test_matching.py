"""Letters with and without text, several letters, yes and no, lists, accepted texts."""

import pytest

from pivot.evaluation.matching import BenchmarkJudge, kind_of, letter_of, letters_in, matches, options_in
from pivot.types import Prompt

OPTIONS = ["10 cm", "20 cm", "A circle", "20 cm"]


def prompt(answer: str, matching: str, **columns: object) -> Prompt:
    return Prompt("p", "?", answer, columns={"matching": matching, **columns})


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"), ("(B)", "B"), ("B.", "B"), ("B. 20 cm", "B"), ("(A) 10 cm", "A"), ("\\text{C}", "C"),
        ("A: 10 cm", "A"), ("10 cm", "A"), ("10 CM.", "A"), ("A circle", "C"), ("20 cm", None), ("E", None),
        ("both A and B", None), ("", None), ("30 cm", None),
    ],
)  # fmt: skip
def test_the_letter_that_an_answer_names(text: str, letter: str | None) -> None:
    assert letter_of(text, OPTIONS) == letter


@pytest.mark.parametrize(
    ("question", "options"),
    [
        ("Which?\nA. one\nB. two\nC. three", ["one", "two", "three"]),
        ("Which?\nChoices:\nA:one\nB:two", ["one", "two"]),
        ("Select from A, B and C. (A) True (B)False (C)Insufficient", ["True", "False", "Insufficient"]),
        ("Which space (A or B)? (A) A, (B) B,", ["A", "B"]),
        ("Angle A. is 3.\nA. one\nB. two", ["one", "two"]),
        ("Find x.", []),
        ("At point A. there is a tree.", []),
    ],
)
def test_options_are_read_from_a_question(question: str, options: list[str]) -> None:
    assert options_in(question) == options


def test_an_answer_that_names_several_options_names_none() -> None:
    for text in ("A. B. C. D.", "(A)(B)", "A) or B)", "A. forty or B"):
        assert letter_of(text, ["forty", "fifty"]) is None, text
    assert letter_of("A. U.S. dollars", ["U.S. dollars", "euros"]) == "A"


def test_several_letters_in_any_order() -> None:
    for text in ("A, C", "AC", "C and A", "(C), (A)", "\\text{A, C}", "[A, C]"):
        assert letters_in(text) == {"A", "C"}, text
        assert matches(text, prompt("A, C", "letters"))
    for text in ("A", "A, B, C", "ACE", "A or something"):
        assert not matches(text, prompt("A, C", "letters")), text


def test_yes_no_lists_and_accepted_texts() -> None:
    assert matches("Yes, it is.", prompt("yes", "yes-no"))
    assert not matches("No", prompt("yes", "yes-no"))
    assert not matches("yesterday", prompt("yes", "yes-no"))
    assert not matches("yes or no", prompt("yes", "yes-no"))
    assert matches("[0,2.0, 1]", prompt("[0, 2, 1]", "list"))
    assert matches("\\left[0, 2, 1\\right]", prompt("[0, 2, 1]", "list"))
    assert not matches("[2, 0, 1]", prompt("[0, 2, 1]", "list"))
    assert not matches("[" * 5000, prompt("[0, 2, 1]", "list"))
    accepted = prompt("1,000", "text", accepted=["1,000", "one thousand"])
    assert all(matches(text, accepted) for text in ("1000", "One thousand.", "$1,000"))
    assert not matches("100", accepted)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [("B", "letter"), ("B, D", "letters"), ("No", "yes-no"), ("[1, 2]", "list"), ("7", "math"), ("x", "math"),
     ("(0,0)", "math")],
)  # fmt: skip
def test_the_kind_that_a_key_shows(answer: str, kind: str) -> None:
    assert kind_of(answer) == kind


def test_the_judge_asks_the_verifier_first_and_then_the_kind() -> None:
    prompts = [
        prompt("B", "letter", choices=OPTIONS[:3]),
        prompt("B", "letter", choices=OPTIONS[:3]),
        prompt("B", "letter", choices=OPTIONS[:3]),
        prompt("0.5", "math"),
        prompt("B, D", "letters"),
        prompt("yes", "yes-no"),
    ]
    boxes = ["B. 20 cm", "20 cm", "10 cm", "\\frac{1}{2}", "D and B", "No"]
    responses = [f"<think>So.</think> \\boxed{{{box}}}" for box in boxes]
    with BenchmarkJudge() as judge:
        rewards = judge.judge(prompts, [*responses[:5], "no box at all"])
    assert [reward.accuracy for reward in rewards] == [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    assert rewards[1].reason == "correct"
    assert rewards[1].format == 1.0
    assert rewards[5].extracted is None
