"""QLoRA: the language model's projections in 4 bits, frozen; low-rank adapters are trained on top (bitsandbytes)."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from pivot.errors import UserError
from pivot.models.family import find_family


def quantize_projections(model: Any, device: torch.device) -> None:
    """Replace every linear layer that gets an adapter by its NF4 form, one after the other, in place."""
    try:
        import bitsandbytes as bnb

        nn: Any = bnb.nn  # its annotations are incomplete
    except ImportError as cause:
        raise UserError(
            "model.quantize needs bitsandbytes; install it with: pip install 'pivot-rl[quantized]'"
        ) from cause
    targets = re.compile(find_family(model.config.model_type).adapter_targets())
    for name, module in list(model.named_modules()):
        if targets.fullmatch(name) and isinstance(module, torch.nn.Linear):
            weight = nn.Params4bit(module.weight.data, requires_grad=False, quant_type="nf4")
            narrow = nn.Linear4bit(
                module.in_features,
                module.out_features,
                bias=module.bias is not None,
                compute_dtype=module.weight.dtype,
                quant_type="nf4",
                device="meta",
            )
            narrow.bias = module.bias
            # On CPUs that have it, a kernel for passes without gradients computes in bfloat16, whatever the dtype.
            narrow.support_avx512bf16_for_cpu = False
            narrow.weight = weight.to(device)  # quantizes it
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, narrow)
    model.is_loaded_in_4bit = True  # peft asks for it


def is_quantized(module: Any) -> bool:
    """Whether a linear layer holds a 4-bit weight."""
    return type(module).__name__ == "Linear4bit"


def dequantized(module: Any) -> Tensor:
    """The weight that a quantized layer computes with."""
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(module.weight.data, module.weight.quant_state)
