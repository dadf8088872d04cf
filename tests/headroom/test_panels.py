"""Problems on four panels: what is asked, what distracts, and how long their chains are."""

import random

import numpy as np
import pytest

from experiments.headroom.panels import SPLITS, chain, habitual_response, problem, prompt, true_chain
from pivot.rewards.verifier import Reason, check_answer, follows_template, last_box
from pivot.tiny import procedural
from pivot.tiny.forward import patches
from pivot.tiny.habits import Habits
from pivot.tiny.tokenizer import build_tokenizer


@pytest.mark.parametrize("split", SPLITS)
def test_a_problem_is_the_same_every_time_and_its_panels_belong_to_its_split(split):
    for index in range(12):
        found = problem(split, index)
        assert found == problem(split, index)
        assert found.level == 1 + index % 3
        assert len(set(found.asked)) == (3 if found.level == 3 else 2)
        tasks = [
            next(task for task, kind in procedural.TASKS.items() if isinstance(s, kind)) for s in found.scenes
        ]
        assert len(set(tasks)) == 4
    assert problem(split, 1) != problem(split, 4)


def test_the_answer_by_hand():
    """Each panel's own answer, combined as the question says."""
    for index in range(60):
        found = problem("train", index)
        parts = [scene.answer for scene in found.parts]
        expected = {1: lambda p: p[0] + p[1], 2: lambda p: p[0] - p[1], 3: lambda p: p[0] + p[1] - p[2]}
        assert found.answer == expected[found.level](parts)


def test_right_chains_are_right_and_distractors_decide_nothing():
    rng = random.Random(0)
    for index in range(60):
        found = problem("train", index)
        text = true_chain(found, rng)
        assert follows_template(text)
        assert check_answer(last_box(text).content, prompt("train", index).answer) is Reason.CORRECT
        assert text.count("=") > len(found.percepts)
    values = [value + 1 for _, value in found.percepts]
    assert f"{found.percepts[0][0]}={values[0]}" in chain(found, values, rng)
    truth = prompt("train", index).answer
    careful, careless = (Habits((0, 0, 0), misperceive=share) for share in (0, 1))
    assert check_answer(last_box(habitual_response(found, rng, careful)).content, truth) is Reason.CORRECT
    habits = [last_box(habitual_response(found, rng, careless)).content for _ in range(20)]
    assert any(check_answer(box, truth) is not Reason.CORRECT for box in habits)


def test_pictures_are_36_image_tokens_and_chains_80_to_160_tokens():
    tokenizer = build_tokenizer()
    rng = random.Random(0)
    assert patches(prompt("train", 0).images[0].open()).shape == (144, 588)
    lengths = [len(tokenizer.encode(true_chain(problem("train", index), rng))) for index in range(150)]
    assert 80 <= np.mean(lengths) <= 160
