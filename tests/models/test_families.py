"""Every family by the same code: loading, encoding, rollout, scoring, a PIVOT step, adapters, saving, and back."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from families import SPECS
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoTokenizer
from transformers.models.smolvlm import processing_smolvlm

from pivot.data import template
from pivot.doctor import find_architecture
from pivot.models.continued import can_continue, score_continued
from pivot.models.corruption import Corruption, Corruptor
from pivot.models.generic import build_processor
from pivot.models.loading import ModelOptions, load_policy, save_policy
from pivot.models.rows import PromptWithResponses
from pivot.runs.metrics import step_metrics
from pivot.sampling import SampleRequest, Sampling, sample_responses
from pivot.types import Prompt

REAL = "qwen2_5_vl-real"
"""With the real tokenizer and its 151,936 rows."""
VLLM = ["idefics3", "smolvlm", "internvl"]
"""Families without a fast path that vLLM samples from here."""
PATCH = {"qwen2_vl": 14, "qwen2_5_vl": 14, "qwen3_vl": 16}


@pytest.fixture(params=[*SPECS, REAL])
def family(request):
    return request.param


@pytest.fixture
def folder(family, family_folder, request):
    return family_folder(family, request.getfixturevalue("shared_data") if "-" in family else None)


def model_inputs(model, encoded, ids):
    """What Hugging Face's own forward takes for a prompt's images, family by family."""
    kind, images = model.config.model_type, encoded.images
    if not images:
        return {"token_type_ids": torch.zeros_like(ids)} if kind == "gemma3" else {}
    inputs = {"pixel_values": torch.cat([image.pixels for image in images])}
    is_image = (ids == model.config.image_token_id).long()
    if kind.startswith("qwen") or kind == "glm4v":
        grids = [
            image.inputs["image_grid_thw"][0].tolist() if kind == "glm4v" else image.grid for image in images
        ]
        inputs |= {"image_grid_thw": torch.tensor(grids), "mm_token_type_ids": is_image.int()}
        model.model.rope_deltas = None
    elif kind in ("idefics3", "smolvlm"):
        inputs = {"pixel_values": inputs["pixel_values"][None]}
    elif kind == "gemma3":
        inputs["token_type_ids"] = is_image
    elif kind == "llava_onevision":
        inputs["image_sizes"] = torch.tensor([image.grid[2:] for image in images])
        inputs["batch_num_images"] = torch.tensor([len(images)])
    return inputs


def plain_logprobs(model, encoded, y):
    """Hugging Face's own forward over prompt and response, one distribution per token."""
    ids = torch.cat([encoded.input_ids_L, y])[None]
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), **model_inputs(model, encoded, ids))
    return out.logits[0, len(encoded) - 1 : -1].float().log_softmax(-1)


def conversation(prompt):
    """With the system message as a list of parts, as some templates want it."""
    first, *rest = template.messages(prompt)
    return [{**first, "content": [{"type": "text", "text": first["content"]}]}, *rest]


@pytest.mark.parametrize("family", PATCH)
def test_patches_are_those_of_the_models_own_files(model, folder, family):
    """Resize, normalise and cut by hand, from what preprocessor_config.json says."""
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    patch, merge = settings["patch_size"], settings["merge_size"]
    assert patch == PATCH[family]
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


def test_prompts_and_pixels_are_hugging_faces(model, folder, family, prompts, monkeypatch):
    """Token ids and pixels, as Hugging Face's processor makes them from the chat template's text."""
    # SmolVLM's processor asks for a package that it needs for videos alone.
    monkeypatch.setattr(processing_smolvlm, "num2words", str)
    spec, tokenizer = SPECS[family.partition("-")[0]], AutoTokenizer.from_pretrained(folder)
    processor = build_processor(
        spec.processor, model.family.image_processor, tokenizer, spec.processor_settings
    )
    for prompt in prompts:
        encoded = model.encoder.encode(prompt)
        if family == REAL:  # its own chat template takes text alone
            marks = "<|vision_start|><|image_pad|><|vision_end|>"
            turn = "".join(p if isinstance(p, str) else marks for p in template.segments(prompt))
            messages = [{"role": "system", "content": template.SYSTEM}, {"role": "user", "content": turn}]
        else:
            messages = conversation(prompt)
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        images = {"images": [[source.open() for source in prompt.images]]} if prompt.images else {}
        out = processor(text=[text], **images, add_special_tokens=False, return_tensors="pt")
        assert encoded.input_ids_L.tolist() == out["input_ids"][0].tolist()
        assert model.encoder.count_tokens(prompt) == len(encoded)
        if encoded.images:
            found = torch.cat([image.pixels for image in encoded.images])
            torch.testing.assert_close(found, out["pixel_values"].view(found.shape), atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", [name for name in SPECS if "qwen" in name])
def test_positions_are_hugging_faces(model, prompts):
    for encoded in (model.encoder.encode(prompt) for prompt in prompts if prompt.images):
        row = encoded.input_ids_L[None]
        positions, delta = model.model.model.get_rope_index(
            row,
            mm_token_type_ids=(row == model.model.config.image_token_id).int(),
            image_grid_thw=torch.tensor([image.grid for image in encoded.images]),
        )
        assert torch.equal(encoded.position_ids_AL, positions[:, 0])
        assert encoded.next_position == len(encoded) + int(delta)


def test_rollout_records_the_plain_forwards_scores(model, folder, prompts):
    plain = AutoModelForImageTextToText.from_pretrained(folder).eval()
    encoded = [model.encoder.encode(prompt) for prompt in prompts]
    found = dict(sample_responses(model, encoded, 2, Sampling(max_tokens=8)))
    assert sorted(found) == [0, 1, 2]
    for index, responses in found.items():
        for response in responses:
            assert not set(response.token_ids_T.tolist()) & set(model.banned_ids)
            logprobs_TV = plain_logprobs(plain, encoded[index], response.token_ids_T)
            expected_T = logprobs_TV.gather(-1, response.token_ids_T[:, None]).squeeze(-1)
            torch.testing.assert_close(response.logprobs_T, expected_T, atol=3e-5, rtol=0)
            entropy_T = -(logprobs_TV.exp() * logprobs_TV).sum(-1)
            torch.testing.assert_close(response.entropy_T, entropy_T, atol=1e-4, rtol=1e-5)


def test_scores_under_both_images_are_the_plain_forwards(model, folder, prompts, family):
    plain = AutoModelForImageTextToText.from_pretrained(folder).eval()
    # Where the patches of a flat sequence are is known to a family's own file alone.
    corruptor = Corruptor(model.encoder, Corruption(raw=family == "glm4v"), seed=0)
    generator = torch.Generator().manual_seed(1)
    units = [
        PromptWithResponses(
            model.encoder.encode(prompt), [torch.randint(0, 500, (n,), generator=generator) for n in lengths]
        )
        for prompt, lengths in zip(prompts, ([5, 2], [3], [1, 6]), strict=True)
    ]
    damaged = [corruptor.corrupt(unit.prompt, 1) for unit in units]
    features = model.features([unit.prompt for unit in units])
    corrupted = model.features(damaged, "corrupted")
    layouts = ("tree", "repeated") if model.family.shares_prefixes else ("repeated",)
    with torch.no_grad():
        found = [model.score(units, features, layout=one, corrupted_features=corrupted) for one in layouts]
    assert can_continue(model) == model.family.shares_prefixes
    row = 0
    for unit, twin in zip(units, damaged, strict=True):
        for y in unit.responses:
            p_TV, q_TV = (plain_logprobs(plain, prompt, y) for prompt in (unit.prompt, twin))
            expected_T, twin_T = (x.gather(-1, y[:, None]).squeeze(-1) for x in (p_TV, q_TV))
            divergence_T = (p_TV.exp() * (p_TV - q_TV)).sum(-1)
            for scores in found:
                part = SimpleNamespace(
                    **{k: v[row, : len(y)] for k, v in vars(scores).items() if v is not None}
                )
                torch.testing.assert_close(part.logprobs_BT, expected_T, atol=3e-5, rtol=0)
                torch.testing.assert_close(part.corrupted_logprobs_BT, twin_T, atol=3e-5, rtol=0)
                torch.testing.assert_close(part.divergence_BT, divergence_T, atol=5e-5, rtol=0)
            row += 1
    assert found[0].divergence_BT.max() > 1e-3
    if can_continue(model):
        prefilled, hidden_PD = model.prefill([unit.prompt for unit in units])
        prompt_B = torch.tensor([0, 0, 1, 2, 2])
        continued = score_continued(
            model, prefilled, hidden_PD, prompt_B, [y for unit in units for y in unit.responses]
        )
        torch.testing.assert_close(continued.logprobs_BT, found[0].logprobs_BT, atol=3e-5, rtol=0)
        torch.testing.assert_close(continued.entropy_BT, found[0].entropy_BT, atol=1e-4, rtol=1e-5)


def test_corruption_can_be_looked_at(model, picture, family):
    """Both ways to corrupt an image, and the picture of what the model saw."""
    prompt = Prompt("p", "<image>Read.", "1", (picture(112, 112),))
    encoded = model.encoder.encode(prompt)
    raw = Corruptor(model.encoder, Corruption("grey", raw=True), seed=0).corrupt(encoded, 1)
    assert raw.images[0].grid == encoded.images[0].grid
    if family == "glm4v":
        return
    for grey in (raw, Corruptor(model.encoder, Corruption("grey"), seed=0).corrupt(encoded, 1)):
        assert (np.asarray(model.family.picture(grey.images[0])) == 128).all()
    image = encoded.images[0]
    canvas = model.family.canvas(image)
    lower = model.family.repaint(image, canvas.per_pixel(canvas.centre_N2[:, 0] > 0.5), 0.0)
    before, after = (np.asarray(model.family.picture(one)) for one in (image, lower))
    half = len(before) // 2
    assert (after[half:] == 0).all()
    assert (after[:half] == before[:half]).all()


def test_a_pivot_step_trains_and_the_saved_folder_is_the_model(
    folder, make_trainer, remember_responses, tmp_path, prompts, family
):
    trainer = make_trainer(folder, *(["corruption.raw=true"] if family == "glm4v" else []))
    policy = trainer.engine.policy
    remember_responses(trainer)
    before = {name: p.detach().clone() for name, p in policy.trainable_parameters().items()}
    outcome = trainer.step()
    trainer.judge.close()
    assert outcome.update is not None
    assert outcome.update.num_updates
    assert "calibration" in outcome.update.terms
    assert any(group.replayed and group.anchor for group in outcome.groups)
    still = {n for n, p in policy.trainable_parameters().items() if torch.equal(p, before[n])}
    assert still == unused_by_hugging_face(folder, policy.encoder.encode(prompts[2]))
    save_policy(policy, tmp_path / "saved")
    plain = AutoModelForImageTextToText.from_pretrained(tmp_path / "saved").eval()
    again = load_policy(str(tmp_path / "saved"))
    for prompt in prompts:
        encoded = again.encoder.encode(prompt)
        assert encoded.input_ids_L.tolist() == policy.encoder.encode(prompt).input_ids_L.tolist()
        y = torch.tensor([5, 6, 7])
        expected = plain_logprobs(policy.model, encoded, y)
        assert torch.equal(expected, plain_logprobs(again.model, encoded, y))
        torch.testing.assert_close(plain_logprobs(plain, encoded, y), expected, atol=1e-5, rtol=0)


def unused_by_hugging_face(folder, encoded):
    """Weights that no gradient reaches in its own forward, such as a norm behind the layer that is used."""
    model = AutoModelForImageTextToText.from_pretrained(folder)
    ids = encoded.input_ids_L[None]
    model(input_ids=ids, **model_inputs(model, encoded, ids)).logits.square().sum().backward()
    return {name for name, p in model.named_parameters() if p.grad is None}


def test_adapters_frozen_towers_and_sizes(folder, prompts, tmp_path, family):
    frozen = load_policy(str(folder), ModelOptions(freeze_vision=True))
    number = {True: 0, False: 0}
    for parameter in frozen.model.parameters():
        number[parameter.requires_grad] += parameter.numel()
    sizes = find_architecture(str(folder))
    assert (sizes.parameters, sizes.vision_parameters) == (sum(number.values()), number[False])
    assert number[False] > 0
    assert all(p.requires_grad for p in frozen.family.text_model(frozen.model).parameters())
    adapted = load_policy(str(folder), ModelOptions(lora_rank=2))
    generator = torch.Generator().manual_seed(0)
    for name, parameter in adapted.trainable_parameters().items():
        assert ".lora_" in name
        parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    save_policy(adapted, tmp_path / "merged")
    merged = load_policy(str(tmp_path / "merged"))
    assert merged.num_parameters == frozen.num_parameters
    y = torch.tensor([5, 6, 7])
    for prompt in prompts:
        encoded = adapted.encoder.encode(prompt)
        expected = plain_logprobs(adapted.model, encoded, y)
        torch.testing.assert_close(plain_logprobs(merged.model, encoded, y), expected, atol=1e-4, rtol=0)
        assert not torch.allclose(plain_logprobs(frozen.model, encoded, y), expected, atol=1e-2)


def test_the_saved_folder_has_a_processor_that_makes_the_same_prompt(model, tmp_path, prompts, family):
    """`AutoProcessor` needs torchvision; `make test-vllm` has it."""
    pytest.importorskip("torchvision")
    from transformers import AutoProcessor

    if family == REAL:
        pytest.skip("the real tokenizer's own chat template takes text alone")
    if family == "smolvlm":
        pytest.importorskip("num2words")
    save_policy(model, tmp_path / "saved")
    processor = AutoProcessor.from_pretrained(tmp_path / "saved")
    for prompt in prompts:
        out = processor.apply_chat_template(
            conversation(prompt),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        assert out["input_ids"][0].tolist() == model.encoder.encode(prompt).input_ids_L.tolist()


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", REAL, *VLLM])
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


@pytest.mark.parametrize("family", VLLM)
def test_vllm_samples_in_training(folder, make_trainer, family):
    pytest.importorskip("vllm")
    trainer = make_trainer(folder, "sampling.engine=vllm")
    try:
        found = [step_metrics(trainer.step(), trainer.method, trainer.sources.buffer) for _ in range(3)]
    finally:
        trainer.engine.close()
        trainer.judge.close()
    assert sum(row["optim/updates"] for row in found[:-1]), "so that the last step samples at new weights"
    for row in found:
        assert row["rollout/mismatch_kl"] < 1e-4
        assert row["rollout/mismatch_max_ratio"] < 1.001


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
