"""The start `small`: interrupted anywhere it ends as if it had not been, and its folder is an ordinary model."""

import random
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from experiments.headroom.panels import guess, habitual_response, problem, prompt, true_chain
from experiments.headroom.pretrain import SMALL, batches_from, measure, pretrain
from experiments.headroom.speed import Size
from pivot.errors import UserError
from pivot.models.loading import load_policy
from pivot.rewards.verifier import Reason, check_answer, follows_template, last_box
from pivot.tiny.examples import BATCHES_PER_POOL
from pivot.tiny.habits import Habits
from pivot.tiny.pretrain import Plan
from pivot.tiny.tokenizer import build_tokenizer

PLAN = replace(
    SMALL, size=Size(64, 1, 1), phases=Plan(skill_steps=22, batch_size=2), habit_steps=3, save_minutes=0.0
)


class Interrupted(Exception):
    pass


def interrupt(line):
    raise Interrupted(line)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    said = []
    return pretrain(PLAN, tmp_path_factory.mktemp("whole"), said.append), said


def test_interrupted_it_ends_as_if_it_had_not_been(finished, tmp_path):
    folder, said = finished
    assert [line.partition(":")[0] for line in said] == ["skill 20 of 22"]
    with pytest.raises(Interrupted, match="skill 20"):
        pretrain(PLAN, tmp_path, interrupt)
    told = []
    again = pretrain(PLAN, tmp_path, told.append)
    assert len(told) == 1, "it continues at step 19, the last that was saved"
    expected, found = (load_file(one / "model.safetensors") for one in (folder, again))
    assert expected.keys() == found.keys()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def test_a_state_of_other_settings_is_refused(finished):
    folder, _ = finished
    with pytest.raises(UserError, match="was made by other settings"):
        pretrain(replace(PLAN, habit_steps=4), folder.parent, print)


def test_batches_can_be_begun_with_anywhere():
    tokenizer = build_tokenizer()
    first = BATCHES_PER_POOL - 1
    whole = batches_from(tokenizer, true_chain, 2, "seed", 0)
    expected = [next(whole) for _ in range(BATCHES_PER_POOL + 1)][first:]
    later = batches_from(tokenizer, true_chain, 2, "seed", first)
    for batch in expected:
        assert torch.equal(batch.ids_BL, next(later).ids_BL)
    assert not torch.equal(expected[0].ids_BL, expected[1].ids_BL)


def test_the_saved_model_sees_four_panels_and_can_be_measured(finished):
    folder, _ = finished
    encoded = load_policy(str(folder)).encoder.encode(prompt("test", 0))
    assert list(encoded.input_ids_L).count(build_tokenizer().get_vocab()["<|image_pad|>"]) == 36
    figures = measure(folder, 3, 2)
    assert set(figures["conditions"]) == {"train", "test", "ood", "blank"}
    for row in figures["conditions"].values():
        assert set(row["levels"]) == {"1", "2", "3"}
        assert row["tokens"] > 0


def test_guesses_are_answers_without_percepts():
    rng = random.Random(0)
    right = 0
    for index in range(60):
        found = problem("train", index)
        text = guess(found, rng)
        assert follows_template(text)
        assert text.count("=") == 0
        right += check_answer(last_box(text).content, str(found.answer)) is Reason.CORRECT
    assert right < 20
    always = Habits((1, 1, 1), misperceive=0)
    assert "=" not in habitual_response(problem("train", 0), rng, always)
