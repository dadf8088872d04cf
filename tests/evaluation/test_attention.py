"""Attention mass on image tokens: Hugging Face's eager weights are the reference."""

import numpy as np
import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pivot.errors import UserError
from pivot.evaluation.attention import ImageAttention, measure, response_mass
from pivot.models.rows import PromptWithResponses
from pivot.sampling import Sampling
from pivot.tiny import procedural
from pivot.types import Prompt


@pytest.fixture
def units(policy, picture):
    """One image, two of different sizes, none; responses of 1 to 23 tokens."""
    prompts = {
        "one": procedural.make("angle", "train", 0),
        "two": Prompt("two", "<image>Compare <image>.", "1", (picture(56, 112), picture(84, 56, "blue"))),
        "none": Prompt("none", "How much is 2 + 2?", "4"),
    }
    generator = torch.Generator().manual_seed(0)
    return {
        name: PromptWithResponses(
            policy.encoder.encode(prompt),
            [torch.randint(0, 250, (length,), generator=generator) for length in (7, 1, 23)],
        )
        for name, prompt in prompts.items()
    }


@torch.no_grad()
def eager_mass(policy, prompt, response, keys=None):
    """The definition, from whole attention matrices: [layers]; `keys` are all image tokens if not given."""
    ids = torch.cat([prompt.input_ids_L, response])[None]
    is_image = ids[0] == policy.family.image_token_id
    visual = {}
    if prompt.images:
        visual = {
            "pixel_values": torch.cat([image.pixels for image in prompt.images]),
            "image_grid_thw": torch.tensor([image.grid for image in prompt.images]),
            "mm_token_type_ids": is_image.int()[None],
        }
    policy.model.model.rope_deltas = None
    config = policy.model.model.language_model.config
    before, config._attn_implementation = config._attn_implementation, "eager"
    out = policy.model(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True, **visual)
    config._attn_implementation = before
    return torch.stack(
        [
            weights[0, :, len(prompt) :, is_image if keys is None else keys].sum(-1).mean()
            for weights in out.attentions
        ]
    ).double()


@pytest.mark.parametrize("name", ["one", "two"])
def test_mass_is_that_of_eager_attention(policy, units, name):
    unit = units[name]
    found = response_mass(policy, unit)
    expected = torch.stack([eager_mass(policy, unit.prompt, y) for y in unit.responses])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert (found > 0.01).any()


def test_chunk_size_changes_nothing(policy, units):
    whole = response_mass(policy, units["two"])
    for chunk in (1, 5, 22):
        found = response_mass(policy, units["two"], chunk_queries=chunk)
        torch.testing.assert_close(found, whole, atol=1e-7, rtol=0)


def test_both_images_count(policy, units):
    prompt, response = units["two"].prompt, units["two"].responses[2]
    places = (prompt.input_ids_L == policy.family.image_token_id).nonzero().flatten()
    first = int((places.diff() > 1).nonzero()) + 1
    shares = [eager_mass(policy, prompt, response, part) for part in (places[:first], places[first:])]
    found = response_mass(policy, PromptWithResponses(prompt, [response]))[0]
    assert all((share > 1e-3).all() for share in shares)
    torch.testing.assert_close(found, shares[0] + shares[1], atol=1e-5, rtol=0)


def test_without_an_image_there_is_no_mass(policy, units):
    assert response_mass(policy, units["none"]).eq(0).all()


def test_no_tensor_holds_all_queries_at_once(policy, units, monkeypatch):
    """Softmax is taken of [key heads, heads a key head, chunk, L], never of more queries."""
    sizes = []
    softmax = torch.Tensor.softmax
    monkeypatch.setattr(
        torch.Tensor, "softmax", lambda x, *a, **k: sizes.append(tuple(x.shape)) or softmax(x, *a, **k)
    )
    response_mass(
        policy, PromptWithResponses(units["one"].prompt, units["one"].responses[2:]), chunk_queries=4
    )
    length = len(units["one"].prompt) + 23
    config = policy.model.config.text_config
    assert len(sizes) == 6 * config.num_hidden_layers
    assert {size[-1] for size in sizes} == {length}
    assert max(size[-2] for size in sizes) == 4
    assert all(size[0] * size[1] == config.num_attention_heads for size in sizes)


def test_the_model_is_left_as_it_was(policy, units, monkeypatch):
    config = policy.model.model.language_model.config
    before, known = config._attn_implementation, set(ALL_ATTENTION_FUNCTIONS)
    response_mass(policy, units["one"])
    assert (config._attn_implementation, set(ALL_ATTENTION_FUNCTIONS)) == (before, known)

    def broken(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(policy, "hidden", broken)
    with pytest.raises(RuntimeError, match="broken"):
        response_mass(policy, units["one"])
    assert (config._attn_implementation, set(ALL_ATTENTION_FUNCTIONS)) == (before, known)


def test_measure_averages_each_prompts_own_responses(policy):
    prompts = procedural.dataset("test", 3)
    sampling = Sampling(max_tokens=12)
    found = measure(policy, prompts, "tiny", num_samples=2, sampling=sampling, seed=4)
    again = measure(policy, prompts[::-1], "tiny", num_samples=2, sampling=sampling, seed=4)
    assert found.prompt_ids == tuple(prompt.id for prompt in prompts)
    assert found.mass_PN.shape == (3, policy.model.config.text_config.num_hidden_layers)
    np.testing.assert_allclose(found.mass_PN, again.mass_PN[::-1], atol=1e-6)
    assert ((found.mass_PN > 0) & (found.mass_PN < 1)).all()
    assert ((found.num_tokens_P >= 1) & (found.num_tokens_P <= 12)).all()


def test_measure_refuses_prompts_without_images(policy):
    with pytest.raises(UserError, match="needs prompts with images"):
        measure(policy, [Prompt("none", "How much is 2 + 2?", "4")], "tiny")


def test_the_interval_is_a_bootstrap_over_prompts():
    generator = np.random.default_rng(1)
    mass_PN = np.stack([generator.normal(0.3, 0.05, 400), np.full(400, 0.1)], axis=1)
    measured = ImageAttention("m", tuple(map(str, range(400))), mass_PN, np.ones(400))
    low, high = measured.interval()
    # The standard error of the mean is 0.05 / 20; 1.96 of them, to within the bootstrap's own noise.
    error = 1.96 * mass_PN[:, 0].std() / 20
    assert (measured.mean_N[0] - low[0], high[0] - measured.mean_N[0]) == pytest.approx(
        (error, error), rel=0.12
    )
    assert (low[1], high[1]) == pytest.approx((0.1, 0.1))
