"""What PEPO and PGPO see, by naive loops: likeness to the hidden states of the image, and a hidden image."""

import pytest
import torch
from torch.nn.functional import cosine_similarity

from pivot.engines.base import ScoreRequest
from pivot.engines.packing import Packing
from pivot.engines.scoring import Scorer
from pivot.models.corruption import Corruption, Corruptor
from pivot.models.loading import load_policy
from pivot.models.rows import PromptWithResponses, repeated_rows
from pivot.tiny import procedural
from pivot.types import Prompt

FAMILIES = ("tiny", "smolvlm", "qwen3_vl")
LENGTHS = ([5, 17, 1], [3], [9, 2])


@pytest.fixture(params=FAMILIES)
def model(request, family_folder):
    """A model of its own: one is packed as trees, one goes through Hugging Face's rows, one adds features to layers."""
    return load_policy("tiny" if request.param == "tiny" else str(family_folder(request.param)))


@pytest.fixture
def units(model, picture):
    """One image, two, none; siblings with a common beginning."""
    prompts = [
        procedural.make("angle", "train", 0),
        Prompt("two", "<image>Compare <image>.", "1", (picture(56, 112), picture(84, 56, "blue"))),
        Prompt("none", "How much is 2 + 2?", "4"),
    ]
    generator = torch.Generator().manual_seed(0)
    units = [
        PromptWithResponses(
            model.encoder.encode(prompt), [torch.randint(0, 250, (n,), generator=generator) for n in lengths]
        )
        for prompt, lengths in zip(prompts, LENGTHS, strict=True)
    ]
    units[0].responses[1][:3] = units[0].responses[0][:3]
    return units


def layouts(model):
    return ("tree", "repeated") if model.family.shares_prefixes else ("repeated",)


def one_row(model, unit, y, mask=None):
    """Inputs and outputs of every layer for [prompt | y]: [layers][L, D]."""
    rows = repeated_rows([PromptWithResponses(unit.prompt, [y])], model.pad_id)
    inputs = model.embed(rows.input_ids_RL, model.features([unit.prompt]))
    seen = []
    hooks = [
        layer.register_forward_hook(
            lambda _, __, out: seen.append((out[0] if isinstance(out, tuple) else out)[0])
        )
        for layer in model.family.text_layers(model.model)
    ]
    last = model.hidden(inputs, rows.position_ids_ARL, mask)
    for hook in hooks:
        hook.remove()
    return rows.input_ids_RL[0], seen, last[0]


@torch.no_grad()
def test_similarity_is_the_mean_cosine_over_layers_and_image_tokens(model, units):
    features = model.features([unit.prompt for unit in units])
    for layout in layouts(model):
        found = model.score(units, features, layout=layout, with_similarity=True).similarity_BT
        singles = [(unit, y) for unit in units for y in unit.responses]
        for row, (unit, y) in enumerate(singles):
            ids, layers, _ = one_row(model, unit, y)
            images = (ids == model.family.image_token_id).nonzero()[:, 0].tolist()
            for t in range(0, len(y), 4):
                cosines = [
                    float(cosine_similarity(layer[len(unit.prompt) + t], layer[n], dim=0))
                    for layer in layers
                    for n in images
                ]
                expected = sum(cosines) / len(cosines) if cosines else 0.0
                assert float(found[row, t]) == pytest.approx(expected, abs=2e-5), (layout, row, t)
            assert found[row, len(y) :].eq(0).all()
    assert found.abs().max() > 0.01


@torch.no_grad()
def test_a_hidden_image_is_one_that_nothing_attends_to(model, units):
    """Against the full row with the image's columns masked; both views of a request agree, whatever the packing."""
    for layout in layouts(model):
        scorer = Scorer(model, Corruptor(model.encoder, Corruption(hidden=True), 0), Packing(layout, 300))
        both = scorer.score(ScoreRequest(units, 1, "both"))
        alone = scorer.score(ScoreRequest(units, 1, "corrupted"))
        torch.testing.assert_close(both.corrupted_logprobs_BT, alone.logprobs_BT, atol=2e-5, rtol=0)
        row = 0
        for unit in units:
            for y in unit.responses:
                ids = torch.cat([unit.prompt.input_ids_L, y])
                seen = (ids != model.family.image_token_id) | torch.eye(len(ids), dtype=torch.bool)
                mask = (seen & torch.ones_like(seen).tril())[None, None]
                _, _, last = one_row(model, unit, y, mask)
                logits = last[len(unit.prompt) - 1 : -1] @ model.head_weight_VD.T
                expected = logits.log_softmax(-1).gather(-1, y[:, None])[:, 0]
                torch.testing.assert_close(alone.logprobs_BT[row, : len(y)], expected, atol=3e-5, rtol=0)
                row += 1
    assert (both.corrupted_logprobs_BT - both.logprobs_BT).abs().max() > 0.01
