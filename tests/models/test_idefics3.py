"""Idefics3 and SmolVLM on the generic path: the numbers of Hugging Face's own forward, and a PIVOT step."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoModelForImageTextToText,
    AutoTokenizer,
    GenerationConfig,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

from pivot import tiny
from pivot.doctor import find_architecture
from pivot.errors import UserError
from pivot.evaluation.attention import measure
from pivot.models.corruption import Corruption, Corruptor
from pivot.models.loading import ModelOptions, file_limits, load_policy, save_policy
from pivot.models.rows import PromptWithResponses
from pivot.sampling import Sampling, sample_responses
from pivot.types import Prompt

SIDE, PATCH, SCALE = 56, 14, 2
TOKENS_PER_TILE = (SIDE // PATCH // SCALE) ** 2
MARKS = ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"]
MARKS += [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
CHAT_TEMPLATE = """\
<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}\
{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}\
{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}\
{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>
{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""
"""SmolVLM's own."""
CLASSES = {
    "idefics3": (Idefics3Config, Idefics3ForConditionalGeneration),
    "smolvlm": (SmolVLMConfig, SmolVLMForConditionalGeneration),
}


def build_folder(folder, model_type):
    tokenizer = AutoTokenizer.from_pretrained(tiny.checkpoint_path("easy"))
    tokenizer.add_special_tokens({"additional_special_tokens": MARKS})
    tokenizer.chat_template = CHAT_TEMPLATE
    token = tokenizer.get_vocab().__getitem__
    config_class, model_class = CLASSES[model_type]
    config = config_class(
        text_config={
            "model_type": "llama", "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
            "max_position_embeddings": 4096, "initializer_range": 0.1, "pad_token_id": token("<|endoftext|>"),
        },
        vision_config={
            "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": SIDE, "patch_size": PATCH, "initializer_range": 0.1,
        },
        scale_factor=SCALE,
        image_token_id=token("<image>"),
        pad_token_id=token("<|endoftext|>"),
        tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = model_class(config)
    ends = [token("<end_of_utterance>"), token("<|im_end|>")]
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=token("<|endoftext|>"))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    sizes = {"size": {"longest_edge": 3 * SIDE}, "max_image_size": {"longest_edge": SIDE}}
    Idefics3ImageProcessorPil(**sizes).save_pretrained(folder)
    return folder


@pytest.fixture(params=CLASSES)
def folder(request, tmp_path_factory):
    return build_folder(tmp_path_factory.mktemp(request.param), request.param)


def plain_logprobs(model, encoded, y):
    """Hugging Face's own forward over prompt and response, one distribution per token."""
    ids = torch.cat([encoded.input_ids_L, y])[None]
    visual = {}
    if encoded.images:
        visual = {"pixel_values": torch.cat([image.pixels for image in encoded.images])[None]}
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), **visual)
    return out.logits[0, len(encoded) - 1 : -1].float().log_softmax(-1)


def test_prompts_are_those_of_the_models_own_processor(model, folder, picture, prompts):
    """The text of `Idefics3Processor.replace_image_token`, which cannot be imported without torchvision."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tile = "<image>" * TOKENS_PER_TILE
    whole = f"<fake_token_around_image><global-img>{tile}<fake_token_around_image>"
    encoded = model.encoder.encode(Prompt("p", "<image>Find x.", "1", (picture(112, 56),)))
    assert encoded.images[0].grid == (2, 3)
    cells = [[f"<fake_token_around_image><row_{r}_col_{c}>{tile}" for c in (1, 2, 3)] for r in (1, 2)]
    image = "".join("".join(row) + "\n" for row in cells) + "\n" + whole
    question = encoded.prompt.question.removeprefix("<image>")
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "You are a helpful assistant."}]},
        {
            "role": "user",
            "content": [{"type": "image"}, {"type": "text", "text": f"{question}\n\nINSTRUCTION"}],
        },
    ]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    from pivot.data.template import INSTRUCTION

    text = text.replace("<image>", image).replace("INSTRUCTION", INSTRUCTION)
    assert encoded.input_ids_L.tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
    for prompt in prompts:
        assert model.encoder.count_tokens(prompt) == len(model.encoder.encode(prompt))


def test_sampling_records_the_plain_forwards_scores(model, folder, prompts):
    plain = AutoModelForImageTextToText.from_pretrained(folder).eval()
    encoded = [model.encoder.encode(prompt) for prompt in prompts]
    found = dict(sample_responses(model, encoded, 3, Sampling(max_tokens=8)))
    assert sorted(found) == [0, 1, 2]
    for index, responses in found.items():
        for response in responses:
            assert not set(response.token_ids_T.tolist()) & set(model.banned_ids)
            logprobs_TV = plain_logprobs(plain, encoded[index], response.token_ids_T)
            expected_T = logprobs_TV.gather(-1, response.token_ids_T[:, None]).squeeze(-1)
            torch.testing.assert_close(response.logprobs_T, expected_T, atol=3e-5, rtol=0)
            entropy_T = -(logprobs_TV.exp() * logprobs_TV).sum(-1)
            torch.testing.assert_close(response.entropy_T, entropy_T, atol=1e-4, rtol=1e-5)


def test_scores_under_both_images_are_the_plain_forwards(model, folder, prompts):
    plain = AutoModelForImageTextToText.from_pretrained(folder).eval()
    corruptor = Corruptor(model.encoder, Corruption(), seed=0)
    generator = torch.Generator().manual_seed(1)
    units = [
        PromptWithResponses(
            model.encoder.encode(prompt), [torch.randint(0, 500, (n,), generator=generator) for n in lengths]
        )
        for prompt, lengths in zip(prompts, ([5, 2], [3], [1, 6]), strict=True)
    ]
    damaged = [corruptor.corrupt(unit.prompt, 1) for unit in units]
    with torch.no_grad():
        found = model.score(
            units,
            model.features([unit.prompt for unit in units]),
            layout="repeated",
            corrupted_features=model.features(damaged, "corrupted"),
        )
    row = 0
    for unit, twin in zip(units, damaged, strict=True):
        for y in unit.responses:
            p_TV, q_TV = (plain_logprobs(plain, prompt, y) for prompt in (unit.prompt, twin))
            divergence_T = (p_TV.exp() * (p_TV - q_TV)).sum(-1)
            expected_T = p_TV.gather(-1, y[:, None]).squeeze(-1)
            torch.testing.assert_close(found.logprobs_BT[row, : len(y)], expected_T, atol=3e-5, rtol=0)
            torch.testing.assert_close(found.divergence_BT[row, : len(y)], divergence_T, atol=5e-5, rtol=0)
            row += 1
    assert found.divergence_BT.max() > 1e-3


def test_corruption_acts_on_the_towers_patches_and_can_be_looked_at(model, picture):
    source = picture(168, 112)
    encoded = model.encoder.encode(Prompt("p", "<image>Read.", "1", (source,)))
    image = encoded.images[0]
    assert image.pixels.shape == (7, 3, SIDE, SIDE)
    assert (np.asarray(model.family.picture(image)) == np.asarray(source.image)).all()
    after = Corruptor(model.encoder, Corruption("patch", 0.6), seed=0).corrupt(encoded, 1).images[0]
    black = ((after.pixels * 0.5 + 0.5).abs() < 1e-6).all(1)
    kept = (after.pixels == image.pixels).all(1)
    whole = [
        cell.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(3).all(-1) for cell in (black, kept)
    ]
    assert (whole[0] | whole[1]).all(), "each patch is black or untouched"
    assert 0.4 < whole[0].float().mean() < 0.8
    grey = Corruptor(model.encoder, Corruption("grey"), seed=0).corrupt(encoded, 1).images[0]
    assert (np.asarray(model.family.picture(grey)) == 128).all()
    # Tiles know where they are: the lower half of the patches covers the lower half of the picture.
    canvas = model.family.canvas(image)
    lower = model.family.repaint(image, canvas.per_pixel(canvas.centre_N2[:, 0] > 0.5), 0.0)
    shown = np.asarray(model.family.picture(lower))
    assert (shown[56:] == 0).all()
    assert (shown[:56] == np.asarray(source.image)[:56]).all()


@pytest.mark.parametrize("splits", [True, False])
def test_the_grid_follows_from_the_size_alone(model, splits):
    model.family.image_processor.do_image_splitting = splits
    sizes = np.random.default_rng(0).integers(1, 400, (60, 2)).tolist()
    for width, height in [*sizes, (56, 56), (168, 168), (169, 168), (1, 400), (400, 1), (57, 113)]:
        encoded = model.family.encode_image(Image.new("RGB", (width, height)))
        assert model.family.grid_of(width, height) == encoded.grid, (width, height)


def test_image_limits_are_numbers_of_tiles(folder, picture):
    assert file_limits(folder) == (1, (3 * SIDE) ** 2)
    small = load_policy(str(folder), ModelOptions(max_pixels=(2 * SIDE + 5) ** 2))
    assert small.encoder.image_limits == (1, (2 * SIDE) ** 2)
    assert small.family.encode_image(picture(300, 200).open()).grid == (2, 2)
    whole = load_policy(str(folder), ModelOptions(max_pixels=1))
    assert whole.family.encode_image(picture(300, 200).open()).grid == (0, 0)
    assert len(whole.encoder.encode(Prompt("p", "<image>Read.", "1", (picture(300, 200),)))) > TOKENS_PER_TILE


def test_a_pivot_step_trains_every_part_and_the_saved_folder_is_the_model(
    folder, make_trainer, remember_responses, tmp_path, prompts
):
    trainer = make_trainer(folder)
    policy = trainer.engine.policy
    remember_responses(trainer)
    before = {name: p.detach().clone() for name, p in policy.trainable_parameters().items()}
    outcome = trainer.step()
    trainer.judge.close()
    assert outcome.update is not None
    assert "calibration" in outcome.update.terms
    assert any(group.replayed and group.anchor for group in outcome.groups)
    still = {n for n, p in policy.trainable_parameters().items() if torch.equal(p, before[n])}
    assert not still
    save_policy(policy, tmp_path / "saved")
    again = load_policy(str(tmp_path / "saved"))
    y = torch.tensor([5, 6, 7])
    for prompt in prompts:
        encoded = again.encoder.encode(prompt)
        expected = plain_logprobs(policy.model, encoded, y)
        assert torch.equal(expected, plain_logprobs(again.model, encoded, y))


def test_tree_rows_are_refused_before_training(folder, make_trainer):
    with pytest.raises(UserError, match="layout=repeated or auto"):
        make_trainer(folder, "train.layout=tree")


def test_attention_sizes_adapters_and_frozen_towers(model, folder, prompts):
    found = measure(model, [prompts[0]], "own", sampling=Sampling(max_tokens=4))
    assert found.mass_PN.shape == (1, 2)
    assert ((found.mass_PN > 0) & (found.mass_PN < 1)).all()
    sizes = find_architecture(str(folder))
    assert sizes.parameters == model.num_parameters
    assert sizes.patches_per_token == SCALE**2
    assert sizes.pixels_per_token == (PATCH * SCALE) ** 2
    assert sizes.max_pixels == (3 * SIDE) ** 2
    frozen = load_policy(str(folder), ModelOptions(freeze_vision=True)).trainable_parameters()
    assert frozen
    assert not any("vision_model" in name or "connector" in name for name in frozen)
    adapted = load_policy(str(folder), ModelOptions(lora_rank=2)).trainable_parameters()
    assert adapted
    assert all("text_model" in name for name in adapted)
