"""A model's linear layers use oneDNN where it pays; what follows stays as it was."""

import pytest
import torch
from torch import nn

from pivot.method import products
from pivot.models.loading import ModelOptions, load_policy
from pivot.models.products import prepare_products
from pivot.models.rows import PromptWithResponses
from pivot.tiny import procedural
from tests.method.test_products import Operators

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")


def test_a_layer_keeps_its_gradients():
    torch.manual_seed(0)
    layer = nn.Linear(512, products.LARGE // 512)
    x = torch.randn(20, 512)
    found = []
    for _ in range(2):
        layer.zero_grad()
        layer(x).square().mean().backward()
        found.append((layer.weight.grad, layer.bias.grad))
        prepare_products(layer)
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_models_scores_and_gradients_stay(monkeypatch, checkpointing):
    """The tiny model's layers count as large here."""
    found, calls = [], []
    for size in (2**40, 1):
        monkeypatch.setattr(products, "LARGE", size)
        monkeypatch.setattr(products, "WORTHWHILE", 2**60)
        policy = load_policy("tiny", ModelOptions(gradient_checkpointing=checkpointing))
        encoded = [policy.encoder.encode(prompt) for prompt in procedural.dataset("train", 2)]
        units = [
            PromptWithResponses(prompt, [torch.arange(20, 30), torch.arange(22, 40)]) for prompt in encoded
        ]
        with policy.training(), Operators() as seen:
            scores = policy.score(units, policy.features(encoded), layout="tree")
            scores.logprobs_BT.sum().backward()
        gradients = {name: p.grad for name, p in policy.trainable_parameters().items()}
        found.append((scores.logprobs_BT.detach(), gradients))
        calls.append(seen.of_onednn)
    assert calls[0] == 0
    assert calls[1] > 50
    torch.testing.assert_close(*(logprobs for logprobs, _ in found), atol=1e-4, rtol=1e-4)
    for name, expected in found[0][1].items():
        scale = expected.abs().max()
        torch.testing.assert_close(
            found[1][1][name] / scale, expected / scale, atol=1e-4, rtol=1e-4, msg=name
        )
