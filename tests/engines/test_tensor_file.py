"""Nested states come back exactly, and an optimizer goes on as if nothing had happened."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pivot.engines.tensor_file import load_tensors, save_tensors
from pivot.errors import UserError


def round_trip(tmp_path: Path, state: Any) -> Any:
    save_tensors(tmp_path / "state.safetensors", state)
    return load_tensors(tmp_path / "state.safetensors")


def assert_identical(first: Any, second: Any) -> None:
    """Equal in value, in type at every place, and in the order of keys."""
    assert type(first) is type(second)
    if isinstance(first, torch.Tensor):
        assert (first.dtype, first.shape) == (second.dtype, second.shape)
        assert (
            first.contiguous()
            .view(-1)
            .view(torch.uint8)
            .equal(second.contiguous().view(-1).view(torch.uint8))
        )
    elif isinstance(first, dict):
        assert list(first) == list(second)
        assert [type(key) for key in first] == [type(key) for key in second]
        for key in first:
            assert_identical(first[key], second[key])
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for left, right in zip(first, second, strict=True):
            assert_identical(left, right)
    elif isinstance(first, float) and math.isnan(first):
        assert math.isnan(second)
    else:
        assert first == second


def test_every_kind_of_value(tmp_path):
    state = {
        "scalars": [None, True, False, 3, -0.0, 0.1, math.inf, -math.inf, math.nan, "text é", 2**127 + 1],
        "betas": (0.9, 0.999),
        "empty": ({}, [], ()),
        0: {"0": torch.arange(3), 1: torch.tensor(2.5)},
        "a/b": torch.ones(1),
        "a": {"b": torch.zeros(1)},
        "kinds": [
            torch.randn(3, 2).to(torch.bfloat16),
            torch.randn(2, 3).t(),
            torch.empty(0, 4),
            torch.empty(0, 4),
            torch.tensor(True),
            torch.tensor([1, 255], dtype=torch.uint8),
            torch.tensor(math.nan, dtype=torch.float64),
        ],
    }
    assert_identical(round_trip(tmp_path, state), state)


@pytest.mark.parametrize("value", [None, 3, torch.tensor(1.5), [], {}])
def test_a_state_may_be_a_single_value(tmp_path, value):
    assert_identical(round_trip(tmp_path, value), value)


def test_a_tied_tensor_comes_back_tied(tmp_path):
    tied = torch.randn(4, 3)
    loaded = round_trip(
        tmp_path, {"embed": tied, "head": tied, "same memory": tied.view(4, 3), "other": tied.clone()}
    )
    assert loaded["embed"] is loaded["head"] is loaded["same memory"]
    assert loaded["other"] is not loaded["embed"]
    assert loaded["embed"].equal(tied)


def test_overlapping_views_keep_their_values(tmp_path):
    whole = torch.arange(10.0)
    state = {"whole": whole, "head": whole[:4], "tail": whole[6:], "square": whole[:4].view(2, 2)}
    assert_identical(round_trip(tmp_path, state), state)


def training(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3)).to(torch.bfloat16)
    groups = [
        {"params": model[0].parameters(), "lr": 1e-2, "weight_decay": 0.1},
        {"params": model[1].parameters(), "lr": 3e-3, "betas": (0.8, 0.99)},
    ]
    return model, torch.optim.AdamW(groups)


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> None:
    inputs = torch.randn(6, 5, generator=generator).to(torch.bfloat16)
    model(inputs).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_adamw_goes_on_bit_for_bit(tmp_path):
    generator = torch.Generator().manual_seed(3)
    model, optimizer = training(0)
    for _ in range(3):
        update(model, optimizer, generator)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "generator": generator.get_state(),
        "python": random.Random(4).getstate(),
        "numpy": np.random.Generator(np.random.PCG64(5)).bit_generator.state,
    }
    loaded = round_trip(tmp_path, {**state, "model": dict(state["model"])})
    assert_identical(loaded["optimizer"], optimizer.state_dict())
    assert_identical(loaded["python"], state["python"])
    assert_identical(loaded["numpy"], state["numpy"])

    other, other_optimizer = training(1)
    other_generator = torch.Generator()
    other.load_state_dict(loaded["model"])
    other_optimizer.load_state_dict(loaded["optimizer"])
    other_generator.set_state(loaded["generator"])
    for _ in range(3):
        update(model, optimizer, generator)
        update(other, other_optimizer, other_generator)
    assert_identical(dict(other.state_dict()), dict(model.state_dict()))
    assert_identical(other_optimizer.state_dict(), optimizer.state_dict())


def test_loaded_tensors_do_not_hang_on_the_file(tmp_path):
    path = tmp_path / "state.safetensors"
    save_tensors(path, {"w": torch.arange(1000.0)})
    loaded = load_tensors(path)
    data = bytearray(path.read_bytes())
    data[-4000:] = bytes(4000)
    path.write_bytes(data)
    assert loaded["w"].equal(torch.arange(1000.0))


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": [0, {"b": object()}]}, "a/1/b"),
        ({"a": {(1, 2): 3}}, "a"),
        ({"n": np.float32(1)}, "n"),
        ({None: 1}, "value"),
    ],
)
def test_what_cannot_be_saved_is_named_by_its_place(tmp_path, state, place):
    with pytest.raises(TypeError, match=rf"cannot save .* at {place}(:|$)"):
        save_tensors(tmp_path / "state.safetensors", state)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_or_foreign_file_is_named(tmp_path):
    path = tmp_path / "state.safetensors"
    with pytest.raises(UserError, match=r"state.safetensors cannot be read"):
        load_tensors(path)
    path.write_bytes(b"\x80\x04 a pickle would start like this")
    with pytest.raises(UserError, match=r"state.safetensors cannot be read"):
        load_tensors(path)
    from safetensors.torch import save_file

    save_file({"w": torch.ones(1)}, path)
    with pytest.raises(UserError, match="not a file of saved states"):
        load_tensors(path)
