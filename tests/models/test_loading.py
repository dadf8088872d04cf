"""How a model is loaded and saved, and the messages for those that cannot be loaded."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
import torch
from transformers import AutoModelForImageTextToText

from pivot import tiny
from pivot.errors import UserError
from pivot.models.loading import ModelOptions, load_policy, resolve_model, save_policy
from pivot.models.rows import PromptWithResponses
from pivot.tiny import procedural


def units_of(policy):
    generator = torch.Generator().manual_seed(0)
    return [
        PromptWithResponses(
            policy.encoder.encode(procedural.make(task, "train", 0)),
            [torch.randint(0, 250, (length,), generator=generator) for length in (7, 3)],
        )
        for task in ("angle", "bars")
    ]


def scores(policy):
    units = units_of(policy)
    return policy.score(units, policy.features([unit.prompt for unit in units]), layout="tree")


def gradients(policy):
    found = scores(policy)
    (found.logprobs_BT.sum() + 0.1 * found.entropy_BT.sum()).backward()
    return {name: p.grad for name, p in policy.trainable_parameters().items()}


def move_adapters(policy):
    """Adapters start at zero, where they change nothing."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.trainable_parameters().values():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


def test_adapters_alone_are_trained_and_start_as_nothing(policy):
    adapted = load_policy("tiny", ModelOptions(lora_rank=4))
    names = adapted.trainable_parameters().keys()
    assert names
    assert all(".lora_" in name and "language_model" in name for name in names)
    with torch.no_grad():
        torch.testing.assert_close(scores(adapted).logprobs_BT, scores(policy).logprobs_BT, atol=1e-6, rtol=0)
    assert all(g is not None for g in gradients(adapted).values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_saved_model_is_the_adapted_one_without_adapters(tmp_path, dtype):
    adapted = load_policy("tiny", ModelOptions(lora_rank=4, dtype=dtype))
    with torch.no_grad():
        before = scores(adapted).logprobs_BT
        move_adapters(adapted)
        moved = scores(adapted).logprobs_BT
        assert (moved - before).abs().max() > 0.1
        save_policy(adapted, tmp_path)
        merged = load_policy(str(tmp_path), ModelOptions(dtype=dtype))
        found = scores(merged).logprobs_BT
    # In bfloat16 the merged weights are rounded once more: 0.1 of log-probs down to -22.
    tolerance = 1e-4 if dtype == "float32" else 0.25
    torch.testing.assert_close(found, moved, atol=tolerance, rtol=0)
    assert not any("lora" in name for name in merged.model.state_dict())
    with torch.no_grad():
        assert torch.equal(scores(adapted).logprobs_BT, moved), "saving leaves the model as it was"


def test_quantized_projections_train_adapters_and_are_saved_as_they_compute(tmp_path, policy):
    pytest.importorskip("bitsandbytes")
    narrow = load_policy("tiny", ModelOptions(lora_rank=4, quantize="nf4"))
    assert all(".lora_" in name for name in narrow.trainable_parameters())
    with torch.no_grad():
        rounded = (scores(narrow).logprobs_BT - scores(policy).logprobs_BT).abs().max()
        assert 1e-3 < rounded < 5, "4 bits are not 32, but the model is the same"
        move_adapters(narrow)
        save_policy(narrow, tmp_path)
        saved = load_policy(str(tmp_path))
        torch.testing.assert_close(scores(saved).logprobs_BT, scores(narrow).logprobs_BT, atol=1e-3, rtol=0)
    assert all(g is not None for g in gradients(narrow).values())
    assert saved.model.state_dict().keys() == policy.model.state_dict().keys()


def test_a_frozen_vision_tower_gets_no_gradient():
    frozen = load_policy("tiny", ModelOptions(freeze_vision=True))
    found = gradients(frozen)
    assert found
    assert not any(name.startswith("model.visual") for name in found)
    assert all(p.grad is None for p in frozen.model.model.visual.parameters())


@pytest.mark.parametrize("options", [{"freeze_vision": True}, {"lora_rank": 4}])
def test_images_of_a_frozen_tower_are_encoded_once_and_without_a_graph(options):
    frozen = load_policy("tiny", ModelOptions(gradient_checkpointing=True, **options))
    prompts = [unit.prompt for unit in units_of(frozen)]
    with frozen.training():
        first, again = frozen.features(prompts), frozen.features(prompts)
    assert not any(tensor.requires_grad for images in first for image in images for tensor in image.tensors)
    assert all(a[0] is b[0] for a, b in zip(first, again, strict=True))


def test_gradient_checkpointing_changes_no_gradient(policy):
    plain = gradients(policy)
    frugal = load_policy("tiny", ModelOptions(gradient_checkpointing=True))
    assert frugal.model.is_gradient_checkpointing
    assert not frugal.model.training, "or decoding would lose its cache"
    with frugal.training():
        assert frugal.model.training
        recomputed = gradients(frugal)
    assert plain.keys() == recomputed.keys()
    for name, gradient in plain.items():
        difference = (gradient - recomputed[name]).norm() / gradient.norm().clamp(min=1e-8)
        assert difference < 1e-5, name


def test_bfloat16_scores_are_float32_and_close(policy):
    half = load_policy("tiny", ModelOptions(dtype="bfloat16"))
    assert {p.dtype for p in half.model.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        found, exact = scores(half), scores(policy)
    assert found.logprobs_BT.dtype == found.entropy_BT.dtype == torch.float32
    # 8 bits of mantissa: measured 0.7% of log-probs down to -22.
    difference = (found.logprobs_BT - exact.logprobs_BT).abs() / exact.logprobs_BT.abs().clamp(min=1)
    assert difference.max() < 0.03


def test_a_saved_folder_is_plain_hugging_face(policy, tmp_path):
    save_policy(policy, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "config.json", "generation_config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json",
        "tokenizer_config.json", "chat_template.jinja",
    }  # fmt: skip
    plain = AutoModelForImageTextToText.from_pretrained(tmp_path)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, policy.model.state_dict()[name]), name


def test_image_limits_reach_the_encoder_and_the_saved_folder(tmp_path, picture):
    small = load_policy("tiny", ModelOptions(min_pixels=28 * 28, max_pixels=56 * 56))
    assert small.family.encode_image(picture(112, 112).open()).grid == (1, 4, 4)
    save_policy(small, tmp_path)
    size = json.loads((tmp_path / "preprocessor_config.json").read_text())["size"]
    assert size == {"shortest_edge": 28 * 28, "longest_edge": 56 * 56}


def test_a_run_stands_for_its_newest_checkpoint(tmp_path):
    for step in (4, 12):
        shutil.copytree(tiny.checkpoint_path("easy"), tmp_path / "checkpoints" / f"step-{step}" / "model")
    (tmp_path / "checkpoints" / "step-20.aside").mkdir()
    newest = tmp_path / "checkpoints" / "step-12"
    assert resolve_model(str(tmp_path)) == resolve_model(str(newest)) == str(newest / "model")
    assert resolve_model("owner/name") == "owner/name"


def break_weights(folder):
    (folder / "model.safetensors").write_bytes(b"not a file of tensors")


def forget_the_processor(folder):
    (folder / "preprocessor_config.json").unlink()


def make_it_another_family(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))


@pytest.mark.parametrize("damage", [break_weights, forget_the_processor, make_it_another_family])
def test_a_folder_that_cannot_be_loaded_is_one_sentence(tmp_path, damage):
    folder = tmp_path / "model"
    shutil.copytree(tiny.checkpoint_path("easy"), folder)
    damage(folder)
    with pytest.raises(UserError, match="cannot load the model") as caught:
        load_policy(str(folder))
    assert "\n" not in str(caught.value)


def test_an_unknown_name_and_an_empty_folder_say_what_to_give(tmp_path):
    with pytest.raises(UserError, match="hub id") as caught:
        load_policy("nobody/no-such-model")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="no checkpoints"):
        load_policy(str(tmp_path))
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no GPU"):
            load_policy("tiny", ModelOptions(device="cuda"))


@pytest.mark.parametrize("template", [None, "{{ messages | nothing }}", "{{ raise_exception('no system') }}"])
def test_a_chat_template_that_cannot_be_used_is_one_sentence(policy, tmp_path, template):
    save_policy(policy, tmp_path)
    (tmp_path / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(UserError, match=r"the model.* chat template") as caught:
        load_policy(str(tmp_path))
    assert "\n" not in str(caught.value)
    assert "; correct the template" in str(caught.value) or "add a chat_template.jinja" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("tinny", "there is no model 'tinny'. Did you mean 'tiny'?"),
        ("/no/such/folder", "the model folder /no/such/folder does not exist"),
        ("./a/b/c", "the model folder ./a/b/c does not exist"),
        ("nobody/no-such-model", "the hub cannot be reached"),
    ],
)
def test_a_model_that_does_not_exist_is_said_at_once(name, sentence):
    started = time.monotonic()
    with pytest.raises(UserError) as caught:
        load_policy(name)
    assert sentence in str(caught.value)
    assert time.monotonic() - started < 10


def test_a_hub_that_does_not_answer_is_left_quickly():
    code = "import time; from pivot import hub; t = time.monotonic(); print(hub.is_reachable(), time.monotonic() - t)"
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:1"}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    answer, seconds = done.stdout.split()
    assert answer == "False"
    assert float(seconds) < 20
