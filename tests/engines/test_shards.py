"""The files of a sharded model: what is saved by some ranks is loaded by any number of them."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from pivot.engines import shards
from pivot.errors import UserError


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    """One rank, so that the loading side is a real sharded model."""
    meeting = tmp_path_factory.mktemp("group") / "meeting"
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


class Model(nn.Module):
    def __init__(self, mesh, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        whole = {"large": (5, 2), "small": (1,), "frozen": (2,)}
        for name, shape in whole.items():
            tensor = distribute_tensor(torch.randn(shape, generator=generator), mesh, [Shard(0)])
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=name != "frozen"))


def trained(mesh, seed: int, steps: int):
    model = Model(mesh, seed)
    optimizer = torch.optim.AdamW(shards.trained_weights(model).values(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        sum((weight.full_tensor() ** 2).sum() for weight in shards.trained_weights(model).values()).backward()
        optimizer.step()
    return model, optimizer


def split(folder, copies, offsets, rows_of) -> None:
    """The file of one rank as the files of several: rank r holds `rows_of[r]` of every tensor with as many rows."""
    start = 0
    for rank, rows in enumerate(rows_of):
        some = {name: t[start : start + rows].clone() for name, t in copies.items() if len(t) > start}
        some = {name: t for name, t in some.items() if len(t)}
        places = {name: [start + offsets[name][0], *offsets[name][1:]] for name in some}
        shards.write(folder / shards.file_name(rank), some, places)
        start += rows


@pytest.mark.parametrize("rows_of", [(5,), (3, 2), (2, 2, 1)], ids=str)
def test_any_number_of_files_gives_the_same_weights_and_optimizer(mesh, tmp_path, rows_of):
    model, optimizer = trained(mesh, 0, steps=3)
    copies, offsets = shards.snapshot(model, optimizer, 0)
    assert set(copies) == {
        *("model/large", "model/small"),
        *(
            f"optimizer/{key}/{name}"
            for key in ("exp_avg", "exp_avg_sq", "step")
            for name in ("large", "small")
        ),
    }
    split(tmp_path, copies, offsets, rows_of)
    other, fresh = trained(mesh, 1, steps=0)
    frozen = other.frozen.full_tensor().clone()
    shards.load(tmp_path, other, fresh)
    assert torch.equal(other.large.full_tensor(), model.large.full_tensor())
    assert torch.equal(other.frozen.full_tensor(), frozen), "frozen weights are the base model's"
    for name in ("large", "small"):
        one, two = optimizer.state[getattr(model, name)], fresh.state[getattr(other, name)]
        assert one.keys() == two.keys()
        assert two["step"].shape == ()
        assert float(two["step"]) == 3
        assert torch.equal(one["exp_avg_sq"].full_tensor(), two["exp_avg_sq"].full_tensor())


def test_training_goes_on_as_if_it_had_not_been_saved(mesh, tmp_path):
    model, optimizer = trained(mesh, 0, steps=2)
    shards.write(tmp_path / shards.file_name(0), *shards.snapshot(model, optimizer, 0))
    other, fresh = trained(mesh, 1, steps=0)
    shards.load(tmp_path, other, fresh)
    for m, o in ((model, optimizer), (other, fresh)):
        o.zero_grad()
        (m.large.full_tensor() ** 3).sum().backward()
        o.step()
    assert torch.equal(other.large.full_tensor(), model.large.full_tensor())


def test_a_snapshot_is_a_copy_and_says_where_it_belongs(mesh, tmp_path):
    model, optimizer = trained(mesh, 0, steps=1)
    copies, offsets = shards.snapshot(model, optimizer, 0)
    before = copies["model/large"].clone()
    with torch.no_grad():
        model.large.to_local().zero_()
    assert torch.equal(copies["model/large"], before)
    assert offsets["model/large"] == [0, 0]
    path = tmp_path / shards.file_name(7)
    shards.write(path, copies, offsets)
    assert path.name == "shard-00007.safetensors"
    assert torch.equal(load_file(path)["model/large"], before)
    size = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + size])
    assert json.loads(header["__metadata__"]["DCP_SHARDING_INFO"])["model/large"] == {"saved_offsets": [0, 0]}


def test_what_replicas_share_comes_from_the_first_rank(mesh):
    model, optimizer = trained(mesh, 0, steps=1)
    assert not any(name.startswith("optimizer/step") for name in shards.snapshot(model, optimizer, 1)[0])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda copies: copies.pop("model/small"), "model/small"),
        (lambda copies: copies.update({"model/other": torch.zeros(2)}), "model/other"),
        (lambda copies: copies.update({"model/large": torch.zeros(4, 2)}), "model/large"),
    ],
    ids=["missing", "unknown", "another size"],
)
def test_another_models_shards_are_refused_in_one_sentence(mesh, tmp_path, change, named):
    model, optimizer = trained(mesh, 0, steps=1)
    copies, offsets = shards.snapshot(model, optimizer, 0)
    change(copies)
    shards.write(
        tmp_path / shards.file_name(0), copies, {n: offsets.get(n, [0] * t.dim()) for n, t in copies.items()}
    )
    weights = model.large.full_tensor().clone()
    with pytest.raises(UserError, match=f"1 tensors are missing, unknown or of another size, {named} first"):
        shards.load(tmp_path, model, optimizer)
    assert torch.equal(model.large.full_tensor(), weights)
