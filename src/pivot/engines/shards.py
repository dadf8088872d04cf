"""Weights and optimizer of a sharded model, as a PyTorch distributed checkpoint in its safetensors layout.

Every rank writes one file with its own shards, and the file's header says where in the whole tensor each one belongs.
DCP puts them together for any number of ranks. Nothing is pickled, and no rank waits for another.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint._hf_utils import CUSTOM_METADATA_KEY, SAVED_OFFSETS_KEY
from torch.distributed.tensor import DTensor

from pivot.durable import replacing
from pivot.errors import UserError

FOLDER = "shards"
"""In a checkpoint's folder."""
STEP = "step"
"""Adam's count of updates: one number per weight, not sharded."""
READERS = 4
"""Files that one rank reads at once."""
State = dict[str, Tensor]
"""`model/NAME` -> a weight, `optimizer/KEY/NAME` -> e.g. its `exp_avg`."""


def file_name(rank: int) -> str:
    return f"shard-{rank:05d}.safetensors"


def trained_weights(module: nn.Module) -> dict[str, nn.Parameter]:
    """What a checkpoint holds; frozen weights are those of the model that training started from."""
    return {name: weight for name, weight in module.named_parameters() if weight.requires_grad}


def snapshot(
    module: nn.Module, optimizer: torch.optim.Optimizer, rank: int
) -> tuple[State, dict[str, list[int]]]:
    """(copies of this rank's shards on the CPU, where each begins in the whole tensor).

    What several ranks hold alike comes from the first of them alone.
    """
    weights = trained_weights(module)
    state: State = {f"model/{name}": weight for name, weight in weights.items()}
    for name, weight in weights.items():
        for key, value in optimizer.state.get(weight, {}).items():
            state[f"optimizer/{key}/{name}"] = value
    copies: State = {}
    offsets: dict[str, list[int]] = {}
    for name, value in state.items():
        local = value.to_local() if isinstance(value, DTensor) else value
        if local.numel() and _is_own(value, rank):
            copies[name] = local.detach().to("cpu", copy=True).reshape(local.shape or (1,)).contiguous()
            offsets[name] = _offsets(value)
    return copies, offsets


def write(path: Path, copies: State, offsets: dict[str, list[int]]) -> None:
    """One rank's file, whole or not at all."""
    places = {name: {SAVED_OFFSETS_KEY: offset} for name, offset in offsets.items()}
    with replacing(path, SafetensorError) as temporary:
        save_file(copies, temporary, metadata={CUSTOM_METADATA_KEY: json.dumps(places)})


def load(folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Fill this rank's shards from the files of all ranks that saved, however many there were."""
    reader = dcp.HuggingFaceStorageReader(str(folder), thread_count=READERS)
    saved: dict[str, Any] = reader.read_metadata().state_dict_metadata
    weights = trained_weights(module)
    state: State = {f"model/{name}": weight.detach() for name, weight in weights.items()}
    values: dict[str, State] = {name: {} for name in weights}
    for entry, found in saved.items():
        kind, _, rest = entry.partition("/")
        key, _, name = rest.partition("/")
        if kind == "optimizer" and name in weights:
            like = torch.zeros(1) if key == STEP else torch.zeros_like(weights[name].detach())
            state[entry] = values[name][key] = like.to(found.properties.dtype)
    _check(folder, {entry: found.size for entry, found in saved.items()}, state)
    dcp.load(state, storage_reader=reader, no_dist=True)
    _fill(optimizer, weights, values)


def _fill(
    optimizer: torch.optim.Optimizer, weights: dict[str, nn.Parameter], values: dict[str, State]
) -> None:
    """Through the optimizer's own method, which puts every value on the device where it expects it."""
    names = {id(weight): name for name, weight in weights.items()}
    known = optimizer.state_dict()["param_groups"]
    trained = [weight for group in optimizer.param_groups for weight in group["params"]]
    numbers = [number for group in known for number in group["params"]]
    state: dict[int, State] = {}
    for number, weight in zip(numbers, trained, strict=True):
        found = values.get(names.get(id(weight), ""))
        if found:
            state[number] = {k: v.reshape(()) if k == STEP else v for k, v in found.items()}
    optimizer.load_state_dict({"state": state, "param_groups": known})


def _check(folder: Path, saved: dict[str, torch.Size], state: State) -> None:
    """Names and sizes of the whole tensors must be those of the model."""
    wrong = [name for name in {**saved, **state} if name not in saved or name not in state]
    wrong += [name for name in state if name in saved and saved[name] != state[name].shape]
    if wrong:
        raise UserError(
            f"{folder} does not fit the weights that the configuration trains: {len(wrong)} tensors are missing, "
            f"unknown or of another size, {wrong[0]} first; resume from another checkpoint."
        )


def _is_own(value: Tensor, rank: int) -> bool:
    """Whether this rank is the first that holds these elements."""
    if not isinstance(value, DTensor):
        return rank == 0
    coordinate = value.device_mesh.get_coordinate()
    assert coordinate is not None, "every rank is part of the model's mesh"
    return not any(c for c, placed in zip(coordinate, value.placements, strict=True) if placed.is_replicate())


def _offsets(value: Tensor) -> list[int]:
    if not isinstance(value, DTensor):
        return [0] * max(1, value.dim())
    (chunk,) = value.__create_chunk_list__()
    return list(chunk.offsets)
