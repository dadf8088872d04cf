"""Which answers are rewarded, and the alarm when one of them is right for many truths."""

import json

import pytest
import torch

from pivot.runs.answers import MOST_PAIRS, AnswerWatch, answer_metrics, are_different
from pivot.types import Prompt, Response, Reward, RolloutGroup


def group(name, truth, *answers):
    """Answers are (text, path) of rewarded responses, or the text of a wrong one."""
    responses = []
    for answer in answers:
        text, path = answer if isinstance(answer, tuple) else (answer, "fast")
        reward = Reward(float(isinstance(answer, tuple)), 1.0, "", text, path)
        responses.append(Response(torch.tensor([1]), "", None, None, False, reward))
    return RolloutGroup(Prompt(name, "?", truth), responses)


def test_a_step_by_hand():
    row = answer_metrics(
        [
            group("a", "3", ("3", "fast"), ("3", "fast"), "4"),
            group("b", "3", ("3", "fast"), ("x=3", "fast")),
            group("c", "1/2", ("0.5", "library"), ("$ 1/2 $", "structured")),
            group("d", "7", "3"),
        ]
    )
    assert row == {
        "answers/path_fast": 4,
        "answers/path_structured": 1,
        "answers/path_library": 1,
        "answers/top_share": 2 / 3,
        "answers/differing_share": 2 / 6,
        "answers/top": [["3", 2, 3, 1], ["$ 1/2 $", 1, 1, 1], ["0.5", 1, 1, 1], ["x=3", 1, 1, 1]],
        "answers/differing": [["0.5", "1/2", "library", 1], ["x=3", "3", "fast", 1]],
    }


def test_nothing_rewarded_and_rewards_without_a_box():
    assert answer_metrics([group("a", "3", "4")]) == {}
    assert answer_metrics([group("a", "3", (None, ""))]) == {}
    assert answer_metrics([group("a", "3", (None, "library"))])["answers/path_library"] == 1


def test_a_row_stays_small_and_lists_the_worst_answer_first():
    groups = [group(f"p{i}", f"{i}" * 500, (f"{i} = {i}" + "y" * 500, "fast")) for i in range(60)]
    groups += [group(f"q{i}", f"{i + 100}", ("hole", "fast")) for i in range(8)]
    row = answer_metrics(groups)
    assert len(row["answers/differing"]) == MOST_PAIRS
    assert all(answer == "hole" for answer, *_ in row["answers/differing"][:8])
    assert len(json.dumps(row)) < 6000


@pytest.mark.parametrize(
    ("truth", "other", "different"),
    [
        ("7", "9", True),
        ("(1, 2)", "(2, 1)", True),
        ("yes", "no", True),
        ("A", "B", True),
        ("B. 48", "C. 48", False),  # the value is the same
        ("5 cm", "5 m", False),
        ("x = 3", "y = 3", False),
        ("B. 48", "B. 52", False),
        ("1/2", "0.5", False),
        ("\\sqrt{12}", "2\\sqrt{3}", False),
    ],
)
def test_when_truths_are_different(truth, other, different):
    assert are_different(truth, other) is different
    assert are_different(other, truth) is different


def row(*pairs):
    return {"answers/differing": [[answer, truth, "fast", 1] for answer, truth in pairs]}


def test_an_answer_for_three_different_truths_is_reported_once_and_again_when_they_double():
    watch = AnswerWatch()
    assert watch.add(row(("0*x", "7"), ("0*x", "9"))) is None
    assert watch.add(row(("0*x", "9"), ("0*x", "18/2"))) is None, "neither is new"
    said = watch.add(row(("0*x", "11")))
    assert said is not None
    assert "the answer '0*x' has been rewarded for 3 different truths, such as '7', '9', '11'" in said
    assert watch.suspicious == {"0*x": ["7", "9", "11"]}
    assert watch.add(row(("0*x", "12"), ("0*x", "13"))) is None
    assert "for 6 different truths" in str(watch.add(row(("0*x", "14"))))


def test_units_names_and_option_texts_never_raise_it():
    watch = AnswerWatch()
    pairs = [("5", f"5 {unit}") for unit in ("cm", "m", "km", "kg", "apples")]
    pairs += [("3", f"{name} = 3") for name in "xyzw"] + [("B", f"B. {i}") for i in range(9)]
    assert watch.add(row(*pairs)) is None
    assert watch.suspicious == {}


def test_a_resumed_watch_continues_from_the_rows():
    rows = [row(("a", "7")), row(("a", "8")), {"step": 3}, row(("a", "9")), row(("a", "10"))]
    whole, said = AnswerWatch(), []
    for one in rows:
        said.append(whole.add(one))
    for stop in range(len(rows)):
        resumed = AnswerWatch(rows[:stop])
        assert [resumed.add(one) for one in rows[stop:]] == said[stop:]
        assert resumed.suspicious == whole.suspicious
