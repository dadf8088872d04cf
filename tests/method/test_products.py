"""Products on a CPU: the numbers and gradients of `F.linear`, whichever library makes them, and which one does."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from pivot.method import products
from pivot.method.products import LARGE, WORTHWHILE, add_product_, product

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")


class Operators(TorchDispatchMode):
    """Counts the products that oneDNN makes."""

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


def by_either(monkeypatch, made):
    """What `made` returns without oneDNN and with nothing else."""
    found = []
    for size in (2**40, 1):
        monkeypatch.setattr(products, "LARGE", size)
        monkeypatch.setattr(products, "WORTHWHILE", 2**60)
        found.append(made())
    return found


@pytest.mark.parametrize("shape", [(1, 512), (20, 512), (3, 7, 512)])
@pytest.mark.parametrize("biased", [False, True])
def test_the_numbers_are_those_of_linear(weight, shape, biased):
    x, bias = torch.randn(shape), torch.randn(len(weight)) if biased else None
    with Operators() as seen:
        found = product(x, weight, bias)
    assert seen.of_onednn == 1
    torch.testing.assert_close(found, F.linear(x, weight, bias), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("shape", [(40, 24), (2, 5, 24)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_gradients_are_those_of_linear(monkeypatch, shape, biased, frozen):
    def gradients():
        torch.manual_seed(0)
        x = torch.randn(shape, requires_grad=True)
        weight = torch.randn(16, 24, requires_grad=not frozen)
        bias = torch.randn(16, requires_grad=True) if biased else None
        product(x, weight, bias).square().sum().backward()
        return [t.grad for t in (x, weight, bias) if t is not None and t.requires_grad]

    for ours, expected in zip(*by_either(monkeypatch, gradients), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-3, rtol=1e-5)


def test_views_and_gradients_of_every_layout_are_read_right(monkeypatch):
    """A sum hands down a gradient whose elements are one number; slices have gaps between their rows."""

    def gradients():
        torch.manual_seed(0)
        wide, weights = torch.randn(30, 60, requires_grad=True), torch.randn(50, 48, requires_grad=True)
        x, weight = wide[3:, 10:34], weights[::2, ::2]
        views = [x, wide.t()[:30, :24], wide.t()[30:, 3:27], wide[::3, 2:26], wide.t()[::2, 5:29]]
        found = [product(view, other) for view in views for other in (weight, weights[:, 4:28])]
        torch.stack([y.sum() for y in found]).sum().backward()
        return [*found, wide.grad, weights.grad]

    for ours, expected in zip(*by_either(monkeypatch, gradients), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-5)


def test_a_product_is_added_in_blocks(monkeypatch):
    monkeypatch.setattr(products, "BLOCK", 7 * 24)

    def added():
        torch.manual_seed(0)
        total, x, y = torch.randn(40, 24), torch.randn(30, 50)[:, 5:45], torch.randn(30, 24)
        add_product_(total, x, y)
        return [total]

    with Operators() as seen:
        (ours,), (expected,) = by_either(monkeypatch, added)
    assert seen.of_onednn == 6
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-5)


def test_small_products_are_left_to_torch_bit_for_bit():
    x, small = torch.randn(20, 64), torch.randn(WORTHWHILE // (20 * 64) - 1, 64)
    with Operators() as seen:
        found = product(x, small)
    assert not seen.of_onednn
    assert torch.equal(found, F.linear(x, small))


@pytest.mark.parametrize(("capability", "confined_to", "expected"), [
    ("AVX512", None, 1), ("AVX512", "AVX512_CORE_BF16", 1), ("AVX512", "AVX2", 0), ("AVX2", None, 0),
])  # fmt: skip
def test_many_rows_repay_it_where_vectors_are_wide(monkeypatch, capability, confined_to, expected):
    """Golden runs are confined to AVX2, so that every machine rounds alike."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    if confined_to:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", confined_to)
    products._has_wide_vectors.cache_clear()
    x, weight = torch.randn(WORTHWHILE // (64 * 64), 64), torch.randn(64, 64)
    with Operators() as seen:
        found = product(x, weight)
    products._has_wide_vectors.cache_clear()
    assert seen.of_onednn == expected
    torch.testing.assert_close(found, F.linear(x, weight), atol=1e-4, rtol=1e-5)


def test_other_types_and_no_rows_are_left_to_torch(weight):
    x = torch.randn(4, 512)
    with Operators() as seen:
        product(x.bfloat16(), weight.bfloat16())
        product(x.double(), weight.double())
        with torch.autocast("cpu"):
            assert product(x, weight).dtype == torch.bfloat16
        assert product(x[:0], weight).shape == (0, len(weight))
    assert not seen.of_onednn
