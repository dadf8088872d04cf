"""The procedural tasks: reproducible, solvable from their pictures, splits that share nothing."""

import hashlib
import random
import re
import subprocess
import sys
from collections import Counter

import pytest

from pivot.errors import UserError
from pivot.rewards.verifier import follows_template, last_box
from pivot.tiny import procedural
from pivot.tiny.procedural.chain import guess, reasoning

TASKS = tuple(procedural.TASKS)


def fingerprint(prompt) -> str:
    return hashlib.sha256(prompt.images[0].open().tobytes()).hexdigest()


def test_there_are_five_tasks():
    assert TASKS == ("angle", "count", "bars", "segments", "clock")


@pytest.mark.parametrize("task", TASKS)
def test_the_same_index_is_the_same_problem(task):
    procedural.scene.cache_clear()
    first = procedural.make(task, "train", 17)
    procedural.scene.cache_clear()
    again = procedural.make(task, "train", 17)
    assert first == again
    assert first.id == f"{task}/train/17"
    assert fingerprint(first) == fingerprint(again)
    assert procedural.solution(first) == procedural.solution(again)


def test_problems_do_not_depend_on_the_process():
    code = "from pivot.tiny import procedural as p; print([p.make(t, 'test', 5).answer for t in p.TASKS])"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "77"}
    )
    assert run.stdout.strip() == str([procedural.make(task, "test", 5).answer for task in TASKS])


@pytest.mark.parametrize("task", TASKS)
def test_splits_never_share_an_image(task):
    seen = {
        split: {fingerprint(procedural.make(task, split, index)) for index in range(400)}
        for split in procedural.SPLITS
    }
    for split in procedural.SPLITS:
        others = set().union(*(images for other, images in seen.items() if other != split))
        assert not seen[split] & others
        assert len(seen[split]) > 200, "a split repeats its few images"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("split", ["train", "ood"])
def test_the_solution_leads_to_the_answer_in_the_papers_format(task, split):
    for index in range(90):
        prompt = procedural.make(task, split, index)
        text = procedural.solution(prompt)
        box = last_box(text)
        assert box is not None
        assert box.content == prompt.answer
        assert follows_template(text)


@pytest.mark.parametrize("task", TASKS)
def test_every_step_of_a_chain_is_true_arithmetic(task):
    for index in range(90):
        text = procedural.solution(procedural.make(task, "train", index))
        steps = re.findall(r"([\d+*-]+)=(\d+)(?=[,.])", text)
        computed = [(left, right) for left, right in steps if re.search(r"[+*-]", left)]
        assert computed
        for left, right in computed:
            assert _value(left) == int(right)


def _value(expression: str) -> int:
    if "*" in expression:
        first, second = expression.split("*")
        return int(first) * int(second)
    return sum(int(term) for term in re.findall(r"-?\d+", expression))


@pytest.mark.parametrize("task", TASKS)
def test_the_chain_names_every_percept_before_it_computes(task):
    prompt = procedural.make(task, "train", 4)
    text = procedural.solution(prompt)
    for name, value in prompt.columns["percepts"].items():
        assert f"{name}={value}" in text


@pytest.mark.parametrize("task", TASKS)
def test_the_answer_cannot_be_had_without_the_image(task):
    """Under one and the same question, the likeliest answer is far from certain."""
    answers: dict[str, Counter[str]] = {}
    for index in range(1500):
        prompt = procedural.make(task, "train", index)
        answers.setdefault(prompt.question, Counter())[prompt.answer] += 1
    best = sum(counts.most_common(1)[0][1] for counts in answers.values() if counts.total() >= 10)
    total = sum(counts.total() for counts in answers.values() if counts.total() >= 10)
    assert total > 1000
    assert best / total < 0.55


@pytest.mark.parametrize("task", TASKS)
def test_the_language_prior_is_often_but_not_always_right(task):
    scenes = [procedural.scene(task, "train", index) for index in range(600)]
    share = sum(scene.answer == scene.typical_answer for scene in scenes) / len(scenes)
    assert 0.28 < share < 0.55


def test_a_wrong_percept_leads_to_the_answer_that_follows_from_it():
    scene = procedural.scene("angle", "train", 0)
    text = reasoning(scene, [50, 50], random.Random(0))
    assert "50+50=100" in text
    assert text.endswith("\\boxed{80}.")


def test_the_shortcut_gives_the_typical_answer_without_looking():
    prompt = procedural.make("clock", "train", 1)
    text = procedural.shortcut(prompt)
    assert text.endswith("\\boxed{30}.")
    assert "=" not in text


def test_a_dataset_takes_the_tasks_in_turn():
    prompts = procedural.dataset("train", 12)
    assert [prompt.task for prompt in prompts] == [*TASKS, *TASKS, "angle", "count"]
    assert len({prompt.id for prompt in prompts}) == 12
    assert procedural.dataset("train", 5) == prompts[:5]


def test_a_dataset_keeps_to_the_tasks_asked_for():
    prompts = procedural.dataset("test", 30, tasks=["bars", "clock"])
    assert Counter(prompt.task for prompt in prompts) == {"bars": 15, "clock": 15}


@pytest.mark.parametrize(
    ("task", "split", "index", "named"),
    [("maze", "train", 0, "maze"), ("angle", "dev", 0, "dev"), ("angle", "train", -1, "-1")],
)
def test_unknown_problems_are_the_users_mistake(task, split, index, named):
    with pytest.raises(UserError, match=named):
        procedural.make(task, split, index)


def test_a_solution_needs_a_procedural_prompt():
    prompt = procedural.make("angle", "train", 0)
    foreign = type(prompt)(id="geometry3k/train/17", question="?", answer="1")
    with pytest.raises(UserError, match="geometry3k"):
        procedural.solution(foreign)


@pytest.mark.parametrize("task", TASKS)
def test_filler_words_can_be_left_out_or_doubled(task):
    """The same percepts, working and answer, in fewer or more words."""
    for index in range(12):
        scene = procedural.scene(task, "test", index)
        values = [value for _, value in scene.percepts]
        texts = [reasoning(scene, values, random.Random(index), words) for words in ("none", "usual", "many")]
        lengths = [len(text.split()) for text in texts]
        assert lengths[0] < lengths[1] < lengths[2]
        assert all(follows_template(text) for text in texts)
        assert len({last_box(text).content for text in texts}) == 1
        guesses = [guess(scene, 7, random.Random(index), words) for words in ("none", "usual", "many")]
        assert [len(text.split()) for text in guesses] == sorted(len(text.split()) for text in guesses)
        assert all(last_box(text).content == "7" for text in guesses)
