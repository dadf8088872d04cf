"""Every family by the same code: loading, encoding, rollout, scoring, a PIVOT step, saving, and back."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoTokenizer

from pivot.data import template
from pivot.models.loading import ModelOptions, load_policy, save_policy
from pivot.models.rows import PromptWithResponses
from pivot.sampling import SampleRequest, Sampling, sample_responses

FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen2_5_vl-real"]
PATCH = {"qwen2_vl": 14, "qwen2_5_vl": 14, "qwen3_vl": 16}


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def folder(family, family_folder, request):
    return family_folder(family, request.getfixturevalue("shared_data") if "-" in family else None)


def plain_logprobs(model, encoded, y):
    """Hugging Face's own forward over prompt and response, one distribution per token."""
    ids = torch.cat([encoded.input_ids_L, y])[None]
    visual = {}
    if encoded.images:
        visual = {
            "pixel_values": torch.cat([image.pixels for image in encoded.images]),
            "image_grid_thw": torch.tensor([image.grid for image in encoded.images]),
            "mm_token_type_ids": (ids == model.config.image_token_id).int(),
        }
    model.model.rope_deltas = None
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), **visual)
    return out.logits[0, len(encoded) - 1 : -1].float().log_softmax(-1)


def test_patches_are_those_of_the_models_own_files(model, folder, family):
    """Resize, normalise and cut by hand, from what preprocessor_config.json says."""
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    patch, merge = settings["patch_size"], settings["merge_size"]
    assert patch == PATCH[family.partition("-")[0]]
    side = patch * merge
    pixels = np.random.default_rng(0).integers(0, 256, (2 * side, 3 * side, 3), dtype=np.uint8)
    encoded = model.family.encode_image(Image.fromarray(pixels))
    assert encoded.grid == (1, 4, 6)
    mean, std = np.array(settings["image_mean"]), np.array(settings["image_std"])
    normal = (pixels / 255.0 - mean) / std
    # The first four patches are the first merge block: rows 0 and 1 of columns 0 and 1.
    for number, (row, column) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        part = normal[row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]
        expected = np.repeat(part.transpose(2, 0, 1)[:, None], settings["temporal_patch_size"], 1)
        np.testing.assert_allclose(encoded.pixels[number].numpy(), expected.ravel(), atol=1e-5)


def test_encoding_is_hugging_faces(model, folder, prompts):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for prompt in prompts:
        encoded = model.encoder.encode(prompt)
        turn = "".join(
            part if isinstance(part, str) else "<|vision_start|><|image_pad|><|vision_end|>"
            for part in template.segments(prompt)
        )
        messages = [{"role": "system", "content": template.SYSTEM}, {"role": "user", "content": turn}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        for image in encoded.images:
            text = text.replace("<|image_pad|>", "<placeholder>" * (math.prod(image.grid) // 4), 1)
        ids = tokenizer(text.replace("<placeholder>", "<|image_pad|>"), add_special_tokens=False)["input_ids"]
        assert encoded.input_ids_L.tolist() == ids
        if encoded.images:
            row = torch.tensor(ids)[None]
            positions, delta = model.model.model.get_rope_index(
                row,
                mm_token_type_ids=(row == model.model.config.image_token_id).int(),
                image_grid_thw=torch.tensor([image.grid for image in encoded.images]),
            )
            assert torch.equal(encoded.position_ids_AL, positions[:, 0])
            assert encoded.next_position == len(ids) + int(delta)
        assert model.encoder.count_tokens(prompt) == len(ids)


def test_rollout_records_the_plain_forwards_scores(model, folder, prompts):
    plain = AutoModelForImageTextToText.from_pretrained(folder).eval()
    encoded = [model.encoder.encode(prompt) for prompt in prompts]
    for index, responses in sample_responses(model, encoded, 2, Sampling(max_tokens=8)):
        for response in responses:
            assert not set(response.token_ids_T.tolist()) & set(model.banned_ids)
            logprobs_TV = plain_logprobs(plain, encoded[index], response.token_ids_T)
            expected_T = logprobs_TV.gather(-1, response.token_ids_T[:, None]).squeeze(-1)
            torch.testing.assert_close(response.logprobs_T, expected_T, atol=3e-5, rtol=0)
            entropy_T = -(logprobs_TV.exp() * logprobs_TV).sum(-1)
            torch.testing.assert_close(response.entropy_T, entropy_T, atol=1e-4, rtol=1e-5)


def test_tree_and_repeated_rows_are_the_plain_forward(model, folder, prompts):
    plain = AutoModelForImageTextToText.from_pretrained(folder).eval()
    encoded = [model.encoder.encode(prompt) for prompt in prompts]
    generator = torch.Generator().manual_seed(1)
    units = [
        PromptWithResponses(e, [torch.randint(0, 500, (n,), generator=generator) for n in lengths])
        for e, lengths in zip(encoded, ([5, 2], [3], [1, 6]), strict=True)
    ]
    with torch.no_grad():
        found = [
            model.score(units, model.features(encoded), layout=layout) for layout in ("tree", "repeated")
        ]
    row = 0
    for unit in units:
        for y in unit.responses:
            expected_T = plain_logprobs(plain, unit.prompt, y).gather(-1, y[:, None]).squeeze(-1)
            for scores in found:
                torch.testing.assert_close(scores.logprobs_BT[row, : len(y)], expected_T, atol=3e-5, rtol=0)
            row += 1


def test_a_pivot_step_trains_and_the_saved_folder_is_the_model(
    folder, make_trainer, remember_responses, tmp_path, prompts
):
    trainer = make_trainer(folder)
    remember_responses(trainer)
    before = {name: p.detach().clone() for name, p in trainer.engine.policy.trainable_parameters().items()}
    outcome = trainer.step()
    trainer.judge.close()
    assert outcome.update is not None
    assert outcome.update.num_updates
    assert "calibration" in outcome.update.terms
    assert any(group.replayed and group.anchor for group in outcome.groups)
    still = {
        name
        for name, p in trainer.engine.policy.trainable_parameters().items()
        if torch.equal(p, before[name])
    }
    assert not still, "every tensor of every part is trained, the vision tower's too"
    save_policy(trainer.engine.policy, tmp_path / "saved")
    plain = AutoModelForImageTextToText.from_pretrained(tmp_path / "saved").eval()
    again = load_policy(str(tmp_path / "saved"))
    for prompt in prompts:
        encoded = again.encoder.encode(prompt)
        assert (
            encoded.input_ids_L.tolist() == trainer.engine.policy.encoder.encode(prompt).input_ids_L.tolist()
        )
        y = torch.tensor([5, 6, 7])
        expected = plain_logprobs(trainer.engine.policy.model, encoded, y)
        assert torch.equal(expected, plain_logprobs(again.model, encoded, y))
        torch.testing.assert_close(plain_logprobs(plain, encoded, y), expected, atol=1e-5, rtol=0)


def test_the_saved_folder_has_a_processor_that_makes_the_same_prompt(model, tmp_path, prompts, family):
    """`AutoProcessor` needs torchvision; `make test-vllm` has it."""
    pytest.importorskip("torchvision")
    from transformers import AutoProcessor

    if "-" in family:
        pytest.skip("the real tokenizer's own chat template takes text alone")
    save_policy(model, tmp_path / "saved")
    processor = AutoProcessor.from_pretrained(tmp_path / "saved")
    for prompt in prompts:
        out = processor.apply_chat_template(
            template.messages(prompt),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        assert out["input_ids"][0].tolist() == model.encoder.encode(prompt).input_ids_L.tolist()


def test_vllm_reads_the_saved_folder_and_follows_the_weights(model, tmp_path, prompts):
    pytest.importorskip("vllm")
    from pivot.sampling.vllm_sampler import PolicyVllm

    save_policy(model, tmp_path / "saved")
    policy = load_policy(str(tmp_path / "saved"))
    sampler = PolicyVllm(policy, ModelOptions(), 0.3, "raw_logprobs")
    sampler._stale = False  # first with the weights that vLLM itself has read
    assert_vllm_agrees(sampler, policy, prompts)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.05 * parameter.abs().mean() * torch.randn_like(parameter))
    policy.forget_features()
    with pytest.raises(AssertionError):
        assert_vllm_agrees(sampler, policy, prompts)
    sampler.weights_changed()
    assert_vllm_agrees(sampler, policy, prompts)
    sampler.close()


def assert_vllm_agrees(sampler, policy, prompts):
    request = SampleRequest(8, Sampling(max_tokens=12), (0, "evaluation"))
    for index, responses in sampler.sample(prompts, request):
        encoded = policy.encoder.encode(prompts[index])
        unit = PromptWithResponses(encoded, [response.token_ids_T for response in responses])
        with torch.no_grad():
            expected = policy.score([unit], policy.features([encoded]), layout="repeated")
        for row, response in enumerate(responses):
            found = expected.logprobs_BT[row, : len(response)]
            torch.testing.assert_close(response.sampler_logprobs_T, found, atol=1e-3, rtol=0)
