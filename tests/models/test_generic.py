"""Models that no file of the package knows: what the generic family asks of them, each in one sentence."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from pivot.errors import UserError
from pivot.models.corruption import Corruption, Corruptor
from pivot.models.generic import GenericFamily
from pivot.models.loading import ModelOptions, check_shardable, load_policy
from pivot.models.rows import PromptWithResponses
from pivot.types import Prompt


@pytest.fixture
def folder(family_folder, tmp_path):
    """A copy that a test may damage."""
    for file in family_folder("aya_vision").iterdir():
        (tmp_path / file.name).symlink_to(file)
    return tmp_path


def rewrite(path, text):
    path.unlink()
    path.write_text(text)


def test_a_model_without_a_chat_template(folder):
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="the model has no chat template; add a chat_template"):
        load_policy(str(folder))


def test_a_chat_template_that_prints_no_image(folder):
    template = (folder / "chat_template.jinja").read_text()
    assert "<image>" in template
    rewrite(folder / "chat_template.jinja", template.replace("<image>", ""))
    with pytest.raises(UserError, match="prints no <image> where a message has an image"):
        load_policy(str(folder))


def test_the_chat_template_of_the_processor_counts(folder):
    """Some models have it in chat_template.json."""
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "Begin. " + template}))
    assert load_policy(str(folder)).family.frame(True)[0].startswith("Begin. ")


def test_image_limits_are_not_known(folder):
    with pytest.raises(UserError, match="have no meaning for this family"):
        load_policy(str(folder), ModelOptions(max_pixels=1000))


def test_patches_are_known_where_pixels_are_tiles_alone(family_folder, picture):
    policy = load_policy(str(family_folder("glm4v")))
    encoded = policy.encoder.encode(Prompt("p", "<image>?", "2", (picture(),)))
    with pytest.raises(UserError, match=r"where the patches of glm4v models are; set corruption.raw=true"):
        Corruptor(policy.encoder, Corruption("patch"), 0).corrupt(encoded, 1)


def test_engines_that_shard_weights_refuse_it(folder, family_folder):
    check_shardable(str(family_folder("internvl")))
    with pytest.raises(UserError, match=r"aya_vision models .* use --engine local"):
        check_shardable(str(folder))


def test_scaled_logits_are_exact_and_changed_ones_refused(folder):
    """Cohere's and Granite's heads scale their logits; a soft cap is no scale."""
    policy = load_policy(str(folder))
    assert isinstance(policy.family, GenericFamily)
    head = policy.model.get_output_embeddings()
    y = torch.tensor([5, 6, 7])
    unit = PromptWithResponses(policy.encoder.encode(Prompt("p", "1 + 1?", "2")), [y])
    handle = head.register_forward_hook(lambda module, inputs, logits: 0.25 * logits)
    policy.family.check_forward(policy.model)
    ids = torch.cat([unit.prompt.input_ids_L, y])[None]
    with torch.no_grad():
        found = policy.score([unit], [[]], layout="repeated").logprobs_BT[0]
        plain_TV = policy.model(input_ids=ids).logits[0, -4:-1].log_softmax(-1)
    torch.testing.assert_close(found, plain_TV.gather(-1, y[:, None])[:, 0], atol=3e-5, rtol=0)
    handle.remove()
    head.register_forward_hook(lambda module, inputs, logits: logits.tanh())
    with pytest.raises(UserError, match="aya_vision models change their logits after the head"):
        policy.family.check_forward(policy.model)


def test_a_model_that_sees_later_tokens_is_refused(folder):
    policy = load_policy(str(folder))
    layer = policy.family.text_model(policy.model).layers[0]
    layer.register_forward_hook(lambda module, inputs, hidden: hidden + hidden.mean(1, keepdim=True))
    with pytest.raises(UserError, match="aya_vision models are not causal"):
        policy.family.check_forward(policy.model)


def test_a_model_whose_text_has_an_encoder_is_refused():
    config = AutoConfig.for_model("florence2", image_token_id=5)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    with pytest.raises(UserError, match="florence2 models have an encoder for text"):
        GenericFamily(model, None, None)
