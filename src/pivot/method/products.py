"""x W^T of float32 matrices on a CPU: by oneDNN where it is faster than torch's default library (MKL).

On processors that are not Intel's, MKL leaves 512-bit vectors unused, and everywhere it is slow at multiplying a few
rows with a large weight, as decoding does. `python -m benchmarks.products` compares both.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LARGE = 2**20
"""Elements of a weight that oneDNN multiplies with any number of rows."""
WORTHWHILE = 2**21
"""Multiplications that repay a call of oneDNN where it has 512-bit vectors."""
BLOCK = 2**22
"""Elements of a product that is added to another matrix at once."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b as `F.linear`, with gradients. Sums are added in another order, so that float32 rounds differently."""
    if not is_faster(x, weight):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return _Product.apply(x, weight, bias)
    return _by_onednn(x, weight, bias)


def is_faster(x: Tensor, weight: Tensor) -> bool:
    """Whether `product` leaves these to oneDNN."""
    if weight.device.type != "cpu" or not x.dtype == weight.dtype == torch.float32:
        return False
    if not x.numel() or torch.is_autocast_enabled("cpu") or not torch.backends.mkldnn.is_available():
        return False
    return weight.numel() >= LARGE or (x.numel() * weight.shape[0] >= WORTHWHILE and _has_wide_vectors())


def add_product_(total_AB: Tensor, x_NA: Tensor, y_NB: Tensor) -> None:
    """total += x^T y, in place; by oneDNN in blocks that stay in the processor's cache until they are added."""
    if not is_faster(x_NA.t(), y_NB.t()):
        total_AB.addmm_(x_NA.t(), y_NB)
        return
    size = max(1, BLOCK // y_NB.shape[1])
    for total, x in zip(total_AB.split(size), x_NA.split(size, dim=1), strict=True):
        total.add_(_by_onednn(x.t(), y_NB.t()))


@cache
def _has_wide_vectors() -> bool:
    """Whether torch and oneDNN may both use AVX-512; either can be confined to less."""
    confined = not os.environ.get("ONEDNN_MAX_CPU_ISA", "AVX512").upper().startswith("AVX512")
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and not confined


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(_dense(x), _dense(weight), bias, "none", [], "")


def _dense(x: Tensor) -> Tensor:
    """Rows or columns without gaps, as they lie in memory; a copy of any other view."""
    if x.is_contiguous() or (x.ndim == 2 and (_has_whole_rows(x) or _has_whole_rows(x.t()))):
        return x
    return x.contiguous()


def _has_whole_rows(x: Tensor) -> bool:
    return x.stride(1) == 1 and x.stride(0) >= x.shape[1]


class _Product(torch.autograd.Function):
    """`_by_onednn`, whose own operator has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # A frozen weight needs no inputs kept.
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        return _by_onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        return (
            product(grad, weight.t()) if needs_x else None,
            product(rows.t(), x.flatten(0, -2).t()) if needs_weight else None,
            rows.sum(0) if needs_bias else None,
        )
