"""A GPU that is not there: tensors that claim to be on it have shapes, dtypes and a device, and no values.

Operations that mix it with the processor's tensors fail as on a GPU. So does reading a value: on a GPU that makes the
host wait. Needs a CUDA build of torch and no GPU; operators choose their CUDA form, so their number is that on a GPU.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

GPU = torch.device("cuda:0")


class PretendGpu(TorchFunctionMode):
    """What names the GPU as its device, or takes a tensor from there, runs without values; all else is real."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self._mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(_names_gpu(value) for value in tree_leaves((args, kwargs))):
            with self._mode:
                return func(*args, **kwargs)
        return func(*args, **kwargs)


def _names_gpu(value: object) -> bool:
    if isinstance(value, torch.device | str):
        return str(value).startswith("cuda")
    return isinstance(value, Tensor) and value.device.type == "cuda"


def on_gpu(mode: FakeTensorMode, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return FakeTensor(mode, torch.empty(shape, dtype=dtype, device="meta"), GPU)


def replace_tensors(model: nn.Module, fake: Callable[[Tensor], Tensor]) -> None:
    """All weights and buffers, in place; tied weights stay tied."""
    seen: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, p in module._parameters.items():
            if p is not None and id(p) not in seen:
                seen[id(p)] = nn.Parameter(fake(p.data), requires_grad=p.requires_grad)
            module._parameters[name] = p if p is None else seen[id(p)]
        for name, buffer in module._buffers.items():
            module._buffers[name] = buffer if buffer is None else fake(buffer)
