"""Large products on a CPU: the numbers of `F.linear`, gradients where they are asked for, and who uses them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pivot.models import products
from pivot.models.loading import load_policy
from pivot.models.products import LARGE, prepare_products, product
from pivot.tiny import procedural

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))

    @property
    def of_onednn(self):
        return sum("mkldnn._linear_pointwise" in name for name in self.names)


@pytest.fixture
def weight():
    return torch.randn(LARGE // 512, 512, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(1, 512), (20, 512), (3, 7, 512)])
@pytest.mark.parametrize("biased", [False, True])
def test_the_numbers_are_those_of_linear(weight, shape, biased):
    x, bias = torch.randn(shape), torch.randn(len(weight)) if biased else None
    with Operators() as seen:
        found = product(x, weight, bias)
    assert seen.of_onednn == 1
    torch.testing.assert_close(found, F.linear(x, weight, bias), atol=1e-4, rtol=1e-5)


def test_small_weights_are_left_to_torch_bit_for_bit(weight):
    x, small = torch.randn(20, 512), weight[:-1]
    with Operators() as seen:
        found = product(x, small)
    assert not seen.of_onednn
    assert torch.equal(found, F.linear(x, small))


def test_other_types_are_left_to_torch(weight):
    x = torch.randn(4, 512)
    with Operators() as seen:
        product(x.bfloat16(), weight.bfloat16())
        product(x.double(), weight.double())
    assert not seen.of_onednn


def test_gradients_flow_where_they_are_asked_for(weight):
    layer = nn.Linear(512, len(weight), bias=False)
    prepare_products(layer)
    x = torch.randn(20, 512, requires_grad=True)
    layer(x).square().sum().backward()
    expected = 2 * F.linear(x.detach(), layer.weight.detach()).T @ x.detach()
    torch.testing.assert_close(layer.weight.grad, expected, atol=1e-2, rtol=1e-4)
    with torch.no_grad(), Operators() as seen:
        layer(x)
    assert seen.of_onednn == 1


def test_a_models_large_layers_use_it_and_its_scores_stay(monkeypatch):
    """The tiny model's layers count as large here."""
    plain = load_policy("tiny")
    monkeypatch.setattr(products, "LARGE", 1)
    policy = load_policy("tiny")
    encoded = [policy.encoder.encode(prompt) for prompt in procedural.dataset("train", 2)]
    with torch.no_grad(), Operators() as seen:
        _, hidden_PD = policy.prefill(encoded)
    assert seen.of_onednn > 10
    monkeypatch.undo()
    with torch.no_grad(), Operators() as unseen:
        _, expected_PD = plain.prefill(encoded)
    assert not unseen.of_onednn
    torch.testing.assert_close(hidden_PD, expected_PD, atol=1e-4, rtol=1e-4)
