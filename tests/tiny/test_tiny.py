"""The tiny model: its tokenizer, its folder, and the quick forward against Hugging Face's own."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForImageTextToText, AutoTokenizer, Qwen2VLImageProcessorPil

from pivot import tiny
from pivot.data import template
from pivot.errors import UserError
from pivot.models.loading import load_policy
from pivot.rewards.verifier import last_box
from pivot.tiny import examples, forward, procedural
from pivot.tiny.habits import Habits, skilled
from pivot.tiny.model import build_image_processor, build_model, save
from pivot.tiny.tokenizer import SPECIAL_TOKENS, build_tokenizer

TOKENIZER = build_tokenizer()


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.text())
def test_any_text_round_trips(text):
    ids = TOKENIZER.encode(text, split_special_tokens=True)
    assert TOKENIZER.decode(ids) == text


@pytest.mark.parametrize("text", ["1234567890", "angle A=45", "-7.25", "3 1/2", "x²=9", "日本語 12"])
def test_digits_are_single_tokens(text):
    for token in TOKENIZER.encode(text):
        piece = TOKENIZER.decode([token])
        assert len(piece) == 1 or not any(c.isdigit() for c in piece)


def test_prompts_and_responses_are_short():
    for prompt in procedural.dataset("train", 150):
        assert len(examples.prompt_ids(TOKENIZER, prompt.question)) < 70
        assert 25 <= len(TOKENIZER.encode(procedural.solution(prompt))) <= 75


def test_special_tokens_are_one_token_each_and_are_split_on_request():
    for token in SPECIAL_TOKENS:
        assert len(TOKENIZER.encode(token)) == 1
        assert len(TOKENIZER.encode(token, split_special_tokens=True)) > 1


def test_the_tokenizer_is_the_same_every_time():
    assert build_tokenizer().get_vocab() == TOKENIZER.get_vocab()


def test_the_chat_template_prints_what_pretraining_saw():
    prompt = procedural.make("angle", "train", 0)
    text = TOKENIZER.apply_chat_template(
        template.messages(prompt), add_generation_prompt=True, tokenize=False
    )
    text = text.replace("<|image_pad|>", "<|image_pad|>" * forward.NUM_IMAGE_TOKENS)
    question = prompt.question.removeprefix(template.IMAGE_MARK)
    assert TOKENIZER.encode(text) == examples.prompt_ids(TOKENIZER, question)


@pytest.mark.parametrize("start", tiny.STARTS)
def test_a_shipped_checkpoint_loads_with_plain_transformers(start):
    folder = tiny.checkpoint_path(start)
    model = AutoModelForImageTextToText.from_pretrained(folder)
    assert type(model).__name__ == "Qwen2_5_VLForConditionalGeneration"
    assert model.dtype == torch.float32
    assert 1e6 < sum(p.numel() for p in model.parameters()) < 3e6
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == TOKENIZER.get_vocab()
    assert Qwen2VLImageProcessorPil.from_pretrained(folder).patch_size == 14
    assert (folder / "model.safetensors").stat().st_size < 6e6


def test_an_unknown_start_is_the_users_mistake():
    with pytest.raises(UserError, match="medium"):
        tiny.checkpoint_path("medium")


@pytest.mark.parametrize("start", tiny.STARTS)
def test_the_encoder_sees_the_tokens_of_pretraining(start):
    policy = load_policy(str(tiny.checkpoint_path(start)))
    for prompt in procedural.dataset("test", 10):
        question = prompt.question.removeprefix(template.IMAGE_MARK)
        assert policy.encoder.encode(prompt).input_ids_L.tolist() == examples.prompt_ids(TOKENIZER, question)


def test_patches_are_the_image_processors():
    image = procedural.make("count", "train", 3).images[0].open()
    processed = build_image_processor()(images=[image], return_tensors="pt")
    assert processed["image_grid_thw"].tolist() == [list(forward.GRID)]
    rows = torch.from_numpy(forward.patches(image)).float() / 255
    rows = (rows - forward.IMAGE_MEAN) / forward.IMAGE_STD
    both_frames = rows.view(-1, 3, 1, 196).expand(-1, -1, 2, -1).reshape(len(rows), -1)
    torch.testing.assert_close(processed["pixel_values"], both_frames, atol=1e-5, rtol=0)


def test_the_quick_forward_is_hugging_faces():
    model = build_model(TOKENIZER, seed=3)
    batch = next(examples.batches(TOKENIZER, skilled, 2, "quick"))
    start = examples.image_start(TOKENIZER)
    quick = model.lm_head(forward.hidden_states(model, batch.patches_BNX, batch.ids_BL, start))
    pixels = (batch.patches_BNX.flatten(0, 1).float() / 255 - forward.IMAGE_MEAN) / forward.IMAGE_STD
    pixels = pixels.view(-1, 3, 1, 196).expand(-1, -1, 2, -1).reshape(len(pixels), -1)
    is_image = batch.ids_BL == model.config.image_token_id
    whole = model(
        input_ids=batch.ids_BL,
        attention_mask=torch.ones_like(batch.ids_BL),
        pixel_values=pixels,
        image_grid_thw=torch.tensor([forward.GRID] * 2),
        mm_token_type_ids=is_image.int(),
    ).logits
    torch.testing.assert_close(quick, whole, atol=1e-5, rtol=1e-5)


def test_a_saved_folder_gives_the_same_weights_up_to_half_precision(tmp_path):
    model = build_model(TOKENIZER, seed=1)
    save(model, TOKENIZER, tmp_path)
    again = AutoModelForImageTextToText.from_pretrained(tmp_path)
    for (name, old), new in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(old.half().float(), new), name


def test_targets_are_the_response_and_its_end():
    batch = next(examples.batches(TOKENIZER, skilled, 4, "targets"))
    for ids, targets in zip(batch.ids_BL, batch.targets_BL, strict=True):
        valid = targets != examples.IGNORED
        text = TOKENIZER.decode(targets[valid])
        assert text.startswith("<think>")
        assert text.endswith("}.<|im_end|>")
        first = int(valid.nonzero()[0])
        assert TOKENIZER.decode(ids[: first + 1]).endswith("<|im_start|>assistant\n")


def test_habits_guess_and_misperceive_as_often_as_asked():
    scenes = [procedural.scene("bars", "pretrain", index) for index in range(900)]
    rng = random.Random(0)
    habits = Habits(guess_by_wording=(0.0, 0.5, 1.0), misperceive=0.0)
    guesses = {0: [], 1: [], 2: []}
    for scene in scenes:
        text = habits.respond(scene, rng)
        guessed = "=" not in text
        guesses[scene.wording].append(guessed)
        if not guessed:
            box = last_box(text)
            assert box is not None
            assert box.content == str(scene.answer)
    shares = [sum(found) / len(found) for found in guesses.values()]
    assert shares[0] == 0
    assert 0.4 < shares[1] < 0.6
    assert shares[2] == 1
