"""Products with large float32 weights on a CPU, where oneDNN is faster than torch's default library.

Most of all with the few rows of decoding: `python -m benchmarks.products` compares both.
"""

from __future__ import annotations

import types
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGE = 2**20
"""Elements of a weight; below, calling another library costs more than it saves."""


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b as `F.linear`. Sums are added in another order, so that float32 rounds differently."""
    if _is_faster(x, weight, bias):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def prepare_products(model: Any) -> None:
    """Use `product` in a model's large layers, in place."""
    if not torch.backends.mkldnn.is_available():
        return
    for module in model.modules():
        if type(module) is nn.Linear and module.weight.numel() >= LARGE:
            module.forward = types.MethodType(_forward, module)


def _forward(self: nn.Linear, x: Tensor) -> Tensor:
    return product(x, self.weight, self.bias)


def _is_faster(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """oneDNN's operator has no gradient."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        return False
    is_plain = weight.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    return is_plain and weight.numel() >= LARGE and torch.backends.mkldnn.is_available()
