"""Kinds of tokens and origins of responses, on chains as the tiny world writes them."""

import random

import pytest

from experiments.tiny_world.kinds import char_kinds, origin, token_kinds
from pivot.tiny import procedural
from pivot.tiny.procedural.chain import reasoning

PERCEPTS = {"angle A": 40, "angle B": 90}
RIGHT = "<think> Well. I see angle A=40, angle B=90. So 40+90=130, 180-130=50. </think> It is \\boxed{50}."
WRONG = RIGHT.replace("angle B=90", "angle B=60")
GUESS = "<think> I think it looks even, so I guess 60. </think> It is \\boxed{60}."


def digits(text: str) -> list[tuple[str, str]]:
    return [
        (char, kind) for char, kind in zip(text, char_kinds(text, PERCEPTS), strict=True) if kind != "words"
    ]


def test_every_digit_has_its_kind():
    kinds = digits(WRONG)
    assert kinds[:4] == [
        ("4", "right percept"),
        ("0", "right percept"),
        ("6", "wrong percept"),
        ("0", "wrong percept"),
    ]
    assert [kind for _, kind in kinds[4:-2]] == ["computed"] * 15
    assert kinds[-2:] == [("5", "answer"), ("0", "answer")]
    assert [kind for _, kind in digits(GUESS)] == ["guessed"] * 2 + ["answer"] * 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [(RIGHT, "looked right"), (WRONG, "looked wrong"), (GUESS, "guessed"), ("", "guessed"),
     ("I see angle A=40.", "looked wrong")],
)  # fmt: skip
def test_origins(text, expected):
    assert origin(text, PERCEPTS) == expected


def test_tokens_take_the_kind_of_their_last_character():
    tokens = ["I see", " angle", " A", "=", "4", "0", ",", " angle B=6", "", "1", ". \\boxed{", "7", "}"]
    kinds = token_kinds(tokens, PERCEPTS)
    expected = ["words"] * 4 + ["right percept"] * 2 + ["words", "wrong percept", "words", "wrong percept"]
    assert kinds == [*expected, "words", "answer", "words"]


@pytest.mark.parametrize("task", procedural.TASKS)
@pytest.mark.parametrize("words", ["none", "usual", "many"])
def test_the_worlds_own_chains_are_understood(task, words):
    for index in range(30):
        scene = procedural.scene(task, "test", index)
        percepts = dict(scene.percepts)
        text = reasoning(scene, list(percepts.values()), random.Random(index), words)
        assert origin(text, percepts) == "looked right"
        kinds = char_kinds(text, percepts)
        assert kinds.count("right percept") == sum(len(str(value)) for value in percepts.values())
        assert kinds.count("answer") == len(str(scene.answer))
        assert "guessed" not in kinds
        off = {name: value + 1 for name, value in percepts.items()}
        assert "right percept" not in char_kinds(text, off)
