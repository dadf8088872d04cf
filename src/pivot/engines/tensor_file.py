"""Nested states, such as an optimizer's, in one safetensors file, exactly and without pickle.

Tensors are the file's tensors; the nesting, with everything that is not a tensor, is JSON in its header. Each container
is tagged: JSON alone would turn a tuple into a list and the key 0 into "0".
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pivot.durable import replacing
from pivot.errors import UserError

_HEADER = "pivot-state"


def save_tensors(path: Path, state: Any) -> None:
    """Write nested dicts, lists, tuples, tensors, numbers, strings, booleans and None.

    A tensor that occurs twice is stored once and is one tensor after loading. Tensors are loaded contiguous, on the CPU
    and without gradient; keys are strings or integers. Anything else is a TypeError that names its place.
    """
    found = _Tensors()
    tree = _encode(state, (), found)
    with replacing(path, SafetensorError) as temporary:
        save_file(found.by_name, temporary, metadata={_HEADER: json.dumps(tree, allow_nan=False)})


def load_tensors(path: Path) -> Any:
    """What `save_tensors` wrote; a missing or damaged file is a UserError that names it."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            # Copies: a memory map would keep a checkpoint that will be deleted in use.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as damage:
        raise UserError(f"{path} cannot be read: {damage}.") from damage
    if _HEADER not in header:
        raise UserError(f"{path} is not a file of saved states: its header lacks {_HEADER!r}.")
    return _decode(json.loads(header[_HEADER]), tensors)


@dataclass
class _Tensors:
    """The tensors found so far."""

    by_name: dict[str, torch.Tensor] = field(default_factory=dict)
    names: dict[tuple, str] = field(default_factory=dict)
    """By memory: the same bytes in the same shape are the same tensor."""
    storages: set[int] = field(default_factory=set)

    def add(self, tensor: torch.Tensor, place: tuple) -> str:
        """Returns its name in the file."""
        memory = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() > 0 and memory in self.names:
            return self.names[memory]
        name = _name(place) if _name(place) not in self.by_name else f"{_name(place)}#{len(self.by_name)}"
        tensor = tensor.detach().to("cpu").contiguous()
        if tensor.untyped_storage().data_ptr() in self.storages:
            # Another view of memory that is already there: safetensors wants each tensor to own its bytes.
            tensor = tensor.clone()
        self.storages.add(tensor.untyped_storage().data_ptr())
        self.by_name[name] = tensor
        self.names[memory] = name
        return name


def _encode(value: Any, place: tuple, found: _Tensors) -> Any:
    """The JSON of `value`; its tensors go to `found`."""
    if isinstance(value, torch.Tensor):
        return {"tensor": found.add(value, place)}
    if isinstance(value, dict):
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(
                    f"cannot save the key {key!r} at {_name(place)}: keys are strings or integers"
                )
        return {"dict": [[key, _encode(part, (*place, key), found)] for key, part in value.items()]}
    if type(value) in (list, tuple):
        parts = [_encode(part, (*place, index), found) for index, part in enumerate(value)]
        return {type(value).__name__: parts}
    if type(value) is float and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"cannot save a {type(value).__name__} at {_name(place)}")


def _name(place: tuple) -> str:
    return "/".join(map(str, place)) or "value"


def _decode(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _decode(part, tensors) for key, part in content}
    if kind == "float":
        return float(content)
    parts = [_decode(part, tensors) for part in content]
    return tuple(parts) if kind == "tuple" else parts
