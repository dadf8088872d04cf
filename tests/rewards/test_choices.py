"""Option letters, several letters, yes and no: one parser for the verifier and the benchmarks."""

import pytest

from pivot.rewards.verifier import read_choices

OPTIONS = ["10 cm", "20 cm", "A circle", "20 cm"]


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"), ("(B)", "B"), ("B.", "B"), ("B. 20 cm", "B"), ("(A) 10 cm", "A"), ("\\text{C}", "C"),
        ("A: 10 cm", "A"), ("A:10 cm", "A"), ("A、10 cm", "A"), ("Option B", "B"), ("10 cm", "A"), ("10 CM.", "A"),
        ("A circle", "C"), ("20 cm", ""), ("E", ""), ("both A and B", ""), ("", ""), ("30 cm", ""), ("A. or B.", ""),
    ],
)  # fmt: skip
def test_the_option_that_an_answer_names(text: str, letter: str) -> None:
    assert read_choices(text, OPTIONS) == set(letter)


@pytest.mark.parametrize(
    "text", ["A, C", "AC", "CA", "C and A", "(C), (A)", "\\text{A, C}", "[A, C]", "A\nC", "A; C"]
)
def test_several_letters_in_any_order(text: str) -> None:
    assert read_choices(text) == {"A", "C"}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Yes", "yes"), ("no", "no"), ("Yes, it is.", "yes"), ("No there is no dog", "no"), ("\\text{No}", "no"),
        ("True.", "true"), ("yesterday", ""), ("yes or no", ""), ("maybe", ""), ("north", ""),
    ],
)  # fmt: skip
def test_yes_and_no(text: str, word: str) -> None:
    assert read_choices(text) == ({word} if word else frozenset())


@pytest.mark.parametrize("text", ["(0,0)", "5", "A or something", "x", "A or B", "\ud800", "", "[" * 500])
def test_other_answers_name_nothing(text: str) -> None:
    assert read_choices(text) == frozenset()


def test_the_text_of_an_option_counts_where_letters_and_words_do_not() -> None:
    assert read_choices("a", ["b", "a"]) == {"B"}
    assert read_choices("Yes, always", ["No", "Yes"]) == {"B"}
