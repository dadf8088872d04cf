"""Soak: a random search for a box that is right for two different truths, over all real answers.

Boxes come from a grammar of short answers, with the numbers that occur in the real ones, and from small changes of
real answers. SOAK_SEARCH_SECONDS bounds the time, by default an hour.
"""

import os
import random
import re
import time
import warnings

import pytest
from real_answers import DATA, conflict, naive_number, real_answers
from soak_table import record

from pivot.rewards.verifier import Verifier
from pivot.rewards.verifier.comparison import agree
from pivot.rewards.verifier.reading import _read, read

SECONDS = float(os.environ.get("SOAK_SEARCH_SECONDS", "3600"))
ASKED = 2
"""Of the truths about which only the library can say, this many are asked for a box."""

UNITS = ["cm", "m", "cm^2", "°", "^\\circ", "%", "\\%", " degrees", " apples", " m/s", " km/h", "\\text{ cm}", "海里",
         " s", " dozen", " halves", " squared", " hundred", " tension", " am", " pm", "°C", " foo", "!", "'", "m",
         "x", "厘米", "万", "度", "\\$", " fifths", " fifth", "ⁿ", "²", "̅", " and a half", " R 2"]  # fmt: skip
NAMES = ["x", "y", "AB", "CD", "\\angle A", "\\theta", "\\text{Area}", "A", "P", "2x", "-x", "not"]
FORMS = ["{a}", "-{a}", "{a}{u}", "{a}/{b}", "\\frac{{{a}}}{{{b}}}", "{a}-{b}", "{a} to {b}", "{a}:{b}", "({a},{b})",
         "[{a},{b}]", "{a}, {b}", "{a};{b}", "(1) {a} (2) {b}", "(1){a}(2){b}", "{a} ({b})", "({a})({b})", "{a} {b}",
         "{n} = {a}", "{n}={a}{u}", "{n} = {a} = {b}", "{a} \\approx {b}", "{a} or {b}", "{a} and {b}", "\\pm {a}",
         "\\{{{a},{b}\\}}", "\\{{{a}\\}}", "{a}\\sqrt{{{b}}}", "\\sqrt{{{a}}}", "{a}\\pi", "{a}*{b}", "{a} x {b}",
         "{a}\\times 10^{{{b}}}", "{a}^{{{b}}}", "{a}^{b}", "{a}.\\overline{{{b}}}", "{a}...", "{a}/{b}/2020",
         "{l}. {a}", "({l}) {a}", "{l}, {l2}", "{l}{l2}", "{l} or {l2}", "\\sin {a}^\\circ", "\\ln {a}", "\\log_2 {a}",
         "{a}{u}, {b}{u2}", "\\angle A = {a}, \\angle B = {b}", "{a} {b}/{c}", "{a}\\frac{{{b}}}{{{c}}}", "{n}<{a}",
         "{a}<{n}<{b}", "({a},{b}]", "\\$ {a}", "\\text{{{a} {u}}}", "{a} {w}", "{w} {a}", "{w}", "{w}, {a}",
         "{a}+{b}", "{a}({b}+{c})", "{a},{b},{c}", "{a}:{b}:{c}", "|{a}|", "{a}e{b}", "①{a} ②{b}",
         "0,{a}", "{a}~{b}", "{a}或{b}", "{{{a}}}{{{b}}}", "+-{a}", "\\left.{a}\\right.", "{a}⅐", "⑫{a}",
         "{n} = {a} cm", "{a}°{b}'", "{a}_{b}", "({a})_{b}", "{l}/{l2}", "{a}+{b}i", "]{a},{b}[", "{a}.{b},{c}",
         "\\pm{a},\\pm{b}", "{n}={a} \\lor {n}={b}", "\\vec{{{n}}}=({a},{b})",
         "\\begin{{pmatrix}}{a}\\\\{b}\\end{{pmatrix}}"]  # fmt: skip


def grammar(draw: random.Random, numbers: list[str], words: list[str]) -> str:
    pick = {name: draw.choice(numbers) for name in "abc"}
    pick |= {
        "u": draw.choice(UNITS),
        "u2": draw.choice(UNITS),
        "n": draw.choice(NAMES),
        "w": draw.choice(words),
    }
    pick |= {"l": draw.choice("ABCDE"), "l2": draw.choice("ABCDE")}
    if draw.random() < 0.2:
        pick["a"] = draw.choice(FORMS).format(**pick)
    return draw.choice(FORMS).format(**pick)


def mutated(draw: random.Random, answers: list[str], pieces: list[str]) -> str:
    """A real answer with one or two pieces dropped, doubled, swapped or replaced."""
    parts = re.findall(r"\\[a-zA-Z]+|[0-9.]+|[A-Za-z]+|.", draw.choice(answers)[:60], re.DOTALL)
    for _ in range(draw.randint(1, 2)):
        place = draw.randrange(len(parts))
        match draw.randrange(4):
            case 0:
                parts[place] = draw.choice(pieces)
            case 1:
                parts.insert(place, draw.choice(pieces))
            case 2 if len(parts) > 1:
                del parts[place]
            case _:
                parts[place] = parts[place] + " " + draw.choice(parts)
    return "".join(parts)


@pytest.mark.skipif(not DATA.exists(), reason="the real answers are not here")
def test_no_box_is_right_for_two_different_truths() -> None:
    answers = real_answers()
    truths = [(answer, read(answer)) for answer in answers]
    numbers = sorted({number for answer in answers for number in re.findall(r"\d+(?:\.\d+)?", answer)})
    words = sorted({word for answer in answers for word in re.findall("[A-Za-z]+", answer)})
    pieces = [*"()[]{}+-*/^:;,=<> ", " or ", "\\", "√", "π", *UNITS, *words[:100], *numbers[:200]]
    draw, deadline = random.Random(time.time_ns()), time.monotonic() + SECONDS
    boxes, accepted, asked, found = 0, 0, 0, []
    warnings.simplefilter("ignore", SyntaxWarning)
    with Verifier(workers=1) as verifier:
        while time.monotonic() < deadline and len(found) < 20:
            box = grammar(draw, numbers, words) if draw.random() < 0.6 else mutated(draw, answers, pieces)
            given, boxes = _read(box), boxes + 1
            verdicts = [(answer, agree(given, truth)) for answer, truth in truths]
            right = [answer for answer, verdict in verdicts if verdict]
            open_ones = [answer for answer, verdict in verdicts if verdict is None]
            if open_ones and draw.random() < 0.02:
                some = draw.sample(open_ones, min(ASKED, len(open_ones)))
                rewards = verifier.grade_many([f"\\boxed{{{box}}}"] * len(some), some)
                right += [answer for answer, reward in zip(some, rewards, strict=True) if reward.correct]
                asked += len(some)
            accepted += len(right)
            found += [(box, right[0], other) for other in right[1:] if conflict(right[0], other, box)]
            found += [(box, answer) for answer in right if not _equal_where_known(box, answer)]
    record(
        "search",
        f"{SECONDS / 60:g} minutes, {boxes:,} random boxes against {len(answers):,} real truths",
        f"{accepted:,} accepted, {asked:,} asked of the library, {len(found)} right for two different truths",
    )
    for hole in found:
        print("  ", hole)
    assert not found
    assert accepted > 0


def _equal_where_known(box: str, answer: str) -> bool:
    """Where Python itself can compute both, they must be the same number.

    It cannot compute percentages, and takes `2\\frac{1}{2}`, which is 2.5, for a product.
    """
    one, other = naive_number(box), naive_number(answer)
    if (
        one is None
        or other is None
        or re.search(r"\d[ ,]\d|\d-\d|\)\(|/.*/|%|\d\s*\\d?frac", box + " " + answer)
    ):
        return True
    return one == other
