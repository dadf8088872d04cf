"""All 3,002 real answers of Geometry3K, in their own and in other spellings."""

import itertools
import json
import math
import random
import re
from pathlib import Path

import pytest

from pivot.rewards.verifier import Reason, Verifier, check_answer

ANSWERS = Path(__file__).parents[3] / "shared" / "data" / "geometry3k" / "answers.jsonl"
pytestmark = pytest.mark.skipif(not ANSWERS.exists(), reason="the real answers are not here")


@pytest.fixture(scope="module")
def answers() -> list[str]:
    return [json.loads(line)["answer"] for line in ANSWERS.read_text(encoding="utf-8").splitlines()]


def respond(box: str) -> str:
    return f"<think>The angle is 40, so \\boxed{{40}} is a first guess.</think> Hence \\boxed{{{box}}}."


def naive_value(answer: str) -> float | str:
    """A float for every answer that Python can evaluate after four replacements, else the text."""
    text = answer.replace(" ", "").replace("\\pi", "*math.pi").replace("\\sqrt", "√")
    text = re.sub(r"√\{?(\d+)\}?", r"*math.sqrt(\1)", text)
    text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1)/(\2)", text).replace("**", "*")
    text = re.sub(r"(^|[(/+-])\*", r"\1", text)
    if not re.fullmatch(r"[\d.+*/()-]*", re.sub(r"math\.(pi|sqrt)", "", text)):
        return answer
    return float(eval(text, {"math": math}))


def is_same(a: float | str, b: float | str) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return math.isclose(a, b, rel_tol=1e-9)


def test_every_answer_agrees_with_itself_in_a_full_response(answers: list[str]) -> None:
    assert len(answers) == 3002
    with Verifier() as verifier:
        rewards = verifier.grade_many([respond(answer) for answer in answers], answers)
        assert verifier.pool.pids == [], "the fast path decides all of them"
    assert {reward.reason for reward in rewards} == {Reason.CORRECT}
    assert all(reward.format == 1.0 for reward in rewards)


def respell(answer: str) -> set[str]:
    """The same value in other common spellings."""
    spellings = {f"${answer}$", f" {answer} ", answer + "."}
    if not re.search("[a-zA-Z:<=]", answer.replace("sqrt", "").replace("frac", "").replace("pi", "")):
        spellings |= {f"x = {answer}", f"x={answer}", f"{answer}^\\circ", f"{answer}°", f"{answer} degrees"}
        spellings |= {f"{answer} \\text{{ cm}}", f"{answer}\\,\\mathrm{{cm}}^2", f"m\\angle ABC = {answer}"}
        spellings |= {f"{answer} units", f"\\text{{Area}} = {answer}"}
    latex = re.sub(r"√(\d+)", r"\\sqrt{\1}", answer).replace("*", "")
    spellings |= {latex, latex.replace(" ", ""), latex.replace("\\frac", "\\dfrac")}
    sign = (
        re.sub(r"\\sqrt ?(\d+)|\\sqrt \{ (\d+) \}", r"√\1\2", answer).replace("\\pi", "π").replace("-", "−")
    )
    spellings |= {sign, sign.replace("*", " * "), sign.replace("*", "×"), sign.replace("*√", "√")}
    if re.fullmatch(r"\d+", answer):
        spellings |= {
            f"{int(answer):,}",
            answer + ".0",
            f"\\text{{{answer}}}",
            f"{{{answer}}}",
            f"B. {answer}",
        }
    fraction = re.fullmatch(r"(\d+)/(\d+)", answer)
    if fraction:
        top, bottom = fraction.groups()
        spellings |= {f"\\frac{{{top}}}{{{bottom}}}", f"\\frac {{ {top} }} {{ {bottom} }}"}
    return spellings


def test_every_answer_agrees_with_its_other_spellings(answers: list[str]) -> None:
    wrong = [
        (spelling, answer)
        for answer in dict.fromkeys(answers)
        for spelling in sorted(respell(answer))
        if check_answer(spelling, answer) is not Reason.CORRECT
    ]
    assert wrong == []


def test_every_answer_is_wrong_against_a_different_one(answers: list[str]) -> None:
    values = {answer: naive_value(answer) for answer in answers}
    draw = random.Random(0)
    for answer in answers:
        other = draw.choice(answers)
        while is_same(values[other], values[answer]):
            other = draw.choice(answers)
        assert check_answer(other, answer) is Reason.WRONG, (other, answer)


def test_equal_values_are_just_what_python_computes(answers: list[str]) -> None:
    """All pairs of distinct answers: exact arithmetic and floats agree about which are equal."""
    values = {answer: naive_value(answer) for answer in answers}
    numbers = sorted((value, answer) for answer, value in values.items() if isinstance(value, float))
    assert len(numbers) > 800
    for (small, a), (large, b) in itertools.pairwise(numbers):
        assert (check_answer(a, b) is Reason.CORRECT) == is_same(small, large), (a, b)


def test_agreement_with_mathruler(answers: list[str]) -> None:
    """A sample with every notation; `python -m benchmarks.verifier --agreement` compares all."""
    draw = random.Random(1)
    plain = [answer for answer in answers if re.fullmatch(r"[\d.]+", answer)]
    distinct = sorted({*answers} - {*plain}) + draw.sample(plain, 250)
    others = [draw.choice([other for other in distinct if other != answer]) for answer in distinct]
    boxes, truths = [*distinct, *others], [*distinct, *distinct]
    responses = [respond(box) for box in boxes]
    with Verifier("pivot") as ours, Verifier("mathruler", seconds=5.0) as theirs:
        pairs = zip(ours.grade_many(responses, truths), theirs.grade_many(responses, truths), strict=True)
        disagreements = sum(a.correct != b.correct for a, b in pairs)
    assert disagreements <= 0.001 * len(responses)
