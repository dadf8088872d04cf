"""An exported run loads as lmms-eval and VLMEvalKit load it (docs/other_evaluators.md)."""

import pytest
import torch
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from pivot.models.loading import load_policy, save_policy


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "model"
    save_policy(load_policy("tiny"), folder)
    return folder


def test_model_and_tokenizer_load_by_their_classes(exported):
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(exported, dtype="bfloat16").eval()
    tokenizer = AutoTokenizer.from_pretrained(exported)
    ids = tokenizer("Find x.", return_tensors="pt").input_ids
    with torch.no_grad():
        new = model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    assert ids.shape[1] < new.shape[1] <= ids.shape[1] + 3
    assert list(exported.glob("*.bin")) == [], "safetensors alone"


def test_the_processor_makes_prompts_from_chat_messages(exported, picture):
    """Messages as lmms-eval's `qwen2_5_vl` and VLMEvalKit's `Qwen2VLChat` build them."""
    pytest.importorskip("torchvision", reason="AutoProcessor needs torchvision")
    from transformers import AutoProcessor

    low, high = 28 * 28, 84 * 84
    processor = AutoProcessor.from_pretrained(exported, min_pixels=low, max_pixels=high)
    content = [{"type": "image", "image": picture().open()}, {"type": "text", "text": "How many boxes?"}]
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": content},
    ]
    text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    inputs = processor(text=[text], images=[picture().open()], padding=True, return_tensors="pt")
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(exported, dtype="float32").eval()
    with torch.no_grad():
        new = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    answer = processor.batch_decode(new[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    assert len(answer) == 1
    ours = load_policy(str(exported)).encoder
    from pivot.types import Prompt

    prompt = Prompt("x", "<image>How many boxes?", "1", (picture(),))
    encoded = ours.encode(prompt).input_ids_L
    image_id = model.config.image_token_id
    assert int((inputs.input_ids == image_id).sum()) == int((encoded == image_id).sum()), (
        "the same image tokens"
    )
