"""Weights that are missing, unknown, of another shape or not finite are named."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pivot import tiny
from pivot.engines.local import ADAPTERS, OPTIMIZER, LocalEngine
from pivot.engines.tensor_file import load_tensors, save_tensors
from pivot.errors import UserError
from pivot.models.loading import check_folder, load_policy
from pivot.models.weights import find_nonfinite

UP, DOWN = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"
CHANGES = {
    "missing": (lambda w: w.pop(UP), r"1 weight missing from its files \(.*layers.0.mlp.up_proj.weight\)"),
    "many": (lambda w: [w.pop(name) for name in list(w)[1:]], r"67 weights missing .* and 64 more"),
    "unknown": (lambda w: w.update(extra=torch.zeros(2)), r"1 weight unknown to its architecture \(extra\)"),
    "shape": (
        lambda w: w.update({UP: w[UP][:-1].clone()}),
        r"up_proj.weight is \[383, 128\] instead of \[384, 128\]",
    ),
    "nan": (lambda w: w[UP][3, 5:].fill_(float("nan")), r"1 weight not finite \(.*up_proj.weight\)"),
    "infinity": (
        lambda w: [w[n].fill_(-torch.inf) for n in (UP, DOWN)],
        r"2 weights not finite \(.*down_proj",
    ),
}


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(shutil.copytree(tiny.checkpoint_path("easy"), tmp_path / "model"))


@pytest.mark.parametrize("kind", CHANGES)
def test_damaged_weights_are_named(folder, kind):
    change, words = CHANGES[kind]
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for load in (load_policy, check_folder):
        with pytest.raises(UserError, match=rf"^the model '{folder}' is damaged: .*{words}"):
            load(str(folder))


@pytest.mark.parametrize(
    ("dtype", "called"), [(torch.int8, "I8"), (torch.uint8, "U8"), (torch.float8_e4m3fn, "F8_E4M3")]
)
def test_weights_in_eight_bits_are_refused(folder, dtype, called):
    """Their scales are not among a model's weights, so that they would load as other numbers without a word."""
    weights = load_file(folder / "model.safetensors")
    weights[UP] = (100 * weights[UP]).to(dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for load in (load_policy, check_folder):
        with pytest.raises(
            UserError, match=rf"stores 1 weight in a type .*, {UP} as {called}; give the model"
        ):
            load(str(folder))


def test_a_tied_head_may_be_absent_or_there(folder):
    weights = load_file(folder / "model.safetensors")
    assert not any("lm_head" in name for name in weights)
    load_policy(str(folder))
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    load_policy(str(folder))
    check_folder(str(folder))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_single_bad_value_is_found_in_every_type(dtype):
    good, whole = torch.randn(7, 1001, dtype=dtype), torch.arange(4)
    for value in (float("nan"), float("inf"), -float("inf")):
        bad = good.clone()
        bad[3, 500] = value
        found = find_nonfinite([("good", good), ("bad", bad), ("whole", whole), ("empty", good[:0])])
        assert found == ["bad"]


@pytest.mark.parametrize("file", [ADAPTERS, OPTIMIZER])
def test_adapters_and_optimizer_are_checked(tmp_path, small_config, file):
    engine = LocalEngine.open(small_config("dapo", "model.lora_rank=2"))
    for parameter in engine.optimizer.parameters:
        parameter.grad = torch.ones_like(parameter)
    engine.optimizer.step()
    engine.save(tmp_path)
    engine.load(tmp_path, {})
    state = load_tensors(tmp_path / file)
    tensors = state if file == ADAPTERS else state["adam"]["state"][0]
    name, value = next((n, v) for n, v in tensors.items() if v.dim() == 2)
    for change, words in (
        (torch.full_like(value, torch.nan), "1 weight not finite"),
        (value[:-1].clone(), "1 weight of another shape"),
        (None, "1 weight missing"),
    ):
        tensors.pop(name, None)
        tensors |= {} if change is None else {name: change}
        save_tensors(tmp_path / file, state)
        with pytest.raises(UserError, match=rf"{file} is damaged: {words}"):
            engine.load(tmp_path, {})
