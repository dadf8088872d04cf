import copy
import sys

import pytest
import torch

from pivot.engines import optimizer as optimizer_module
from pivot.engines.optimizer import MasterAdamW
from pivot.engines.tensor_file import load_tensors, save_tensors
from pivot.errors import UserError

SETTINGS = {"lr": 1e-6, "weight_decay": 0.01}


def run(weight, optimizer, gradients):
    for gradient in gradients:
        weight.grad = gradient.to(weight.dtype)
        optimizer.step()
        optimizer.zero_grad()


def test_float32_is_plain_adamw():
    torch.manual_seed(0)
    start, gradients = torch.randn(50), torch.randn(10, 50)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    run(ours, MasterAdamW([ours], **SETTINGS), gradients)
    run(theirs, torch.optim.AdamW([theirs], **SETTINGS), gradients)
    assert torch.equal(ours, theirs)


def test_bfloat16_weights_follow_the_float32_ones():
    torch.manual_seed(0)
    start = (torch.randn(2000) * 0.02).bfloat16()
    gradients = torch.randn(1, 2000).expand(200, -1).bfloat16()
    exact = torch.nn.Parameter(start.float())
    run(exact, MasterAdamW([exact], **SETTINGS), gradients)
    narrow = torch.nn.Parameter(start.clone())
    run(narrow, MasterAdamW([narrow], **SETTINGS), gradients)
    assert torch.equal(narrow, exact.bfloat16())
    naive = torch.nn.Parameter(start.clone())
    run(naive, torch.optim.AdamW([naive], **SETTINGS), gradients)
    assert (naive == start).float().mean() > 0.5, "without masters most weights never move"
    assert (narrow == start).float().mean() < 0.4


def test_state_in_the_middle_changes_nothing():
    torch.manual_seed(0)
    start, gradients = torch.randn(100).bfloat16(), torch.randn(8, 100)
    whole = torch.nn.Parameter(start.clone())
    optimizer = MasterAdamW([whole], **SETTINGS)
    run(whole, optimizer, gradients[:4])
    half = torch.nn.Parameter(whole.detach().clone())
    resumed = MasterAdamW([half], **SETTINGS)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(whole, optimizer, gradients[4:])
    run(half, resumed, gradients[4:])
    assert torch.equal(whole, half)
    assert torch.equal(optimizer.state_dict()["masters"]["0"], resumed.state_dict()["masters"]["0"])


def weights_of_many_sizes():
    torch.manual_seed(0)
    return [torch.nn.Parameter((torch.randn(n) * 0.02).bfloat16()) for n in (3, 4096, 17, 5000, 64)]


def run_all(weights, optimizer, steps=3):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for weight in weights[1:]:  # one without a gradient
            weight.grad = torch.randn(weight.shape, generator=generator).bfloat16()
        optimizer.step()
    return [weight.detach().clone() for weight in weights]


@pytest.mark.parametrize("offload", [False, True])
def test_buckets_and_offloading_change_no_bit(monkeypatch, offload):
    whole = weights_of_many_sizes()
    expected = run_all(whole, MasterAdamW(whole, **SETTINGS))
    monkeypatch.setattr(optimizer_module, "BUCKET_BYTES", 4 * 4096)
    parts = weights_of_many_sizes()
    optimizer = MasterAdamW(parts, offload=offload, **SETTINGS)
    assert optimizer._buckets == [[0], [1], [2], [3], [4]]
    for ours, theirs in zip(run_all(parts, optimizer), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_a_float32_model_can_be_offloaded_too():
    plain, moved = (torch.nn.Parameter(torch.ones(50)) for _ in range(2))
    gradients = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    run(plain, MasterAdamW([plain], **SETTINGS), gradients)
    run(moved, MasterAdamW([moved], offload=True, **SETTINGS), gradients)
    assert torch.equal(plain, moved)


def test_gradients_are_freed_on_the_way(monkeypatch):
    """When a bucket is stepped, the gradients of those before it and its own narrow ones are gone."""
    monkeypatch.setattr(optimizer_module, "BUCKET_BYTES", 1)
    weights = weights_of_many_sizes()
    optimizer = MasterAdamW(weights, **SETTINGS)
    alive, step = [], optimizer._adam.step
    monkeypatch.setattr(
        optimizer._adam,
        "step",
        lambda: (alive.append(sum(m.grad is not None for m in optimizer._masters)), step()),
    )
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert alive == [1] * 5
    assert all(weight.grad is None for weight in weights)


@pytest.mark.parametrize("kind", ["adamw", "adamw_8bit"])
@pytest.mark.parametrize("offload", [False, True])
def test_a_saved_state_continues_bit_for_bit(tmp_path, kind, offload):
    if kind == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    settings = {**SETTINGS, "lr": 1e-3, "kind": kind, "offload": offload}
    whole = weights_of_many_sizes()
    optimizer = MasterAdamW(whole, **settings)
    run_all(whole, optimizer)
    save_tensors(tmp_path / "optimizer.safetensors", optimizer.state_dict())
    again = [torch.nn.Parameter(weight.detach().clone()) for weight in whole]
    resumed = MasterAdamW(again, **settings)
    resumed.load_state_dict(load_tensors(tmp_path / "optimizer.safetensors"))
    for ours, theirs in zip(run_all(again, resumed), run_all(whole, optimizer), strict=True):
        assert torch.equal(ours, theirs)


def test_8_bit_moments_are_small_and_close():
    pytest.importorskip("bitsandbytes")
    exact, narrow = weights_of_many_sizes(), weights_of_many_sizes()
    optimizer = MasterAdamW(narrow, kind="adamw_8bit", **{**SETTINGS, "lr": 1e-3})
    start = [weight.detach().float() for weight in exact]
    expected = run_all(exact, MasterAdamW(exact, **{**SETTINGS, "lr": 1e-3}))
    found = run_all(narrow, optimizer)
    moments = [
        value for state in optimizer._adam.state.values() for name, value in state.items() if name == "state1"
    ]
    assert {m.dtype for m in moments if m.numel() >= 4096} == {torch.uint8}
    for before, ours, theirs in list(zip(start, found, expected, strict=True))[1:]:
        moved = (theirs.float() - before).norm()
        assert (ours.float() - theirs.float()).norm() < 0.1 * moved


def test_a_missing_library_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(UserError, match=r"pip install 'pivot-rl\[quantized\]'"):
        MasterAdamW([torch.nn.Parameter(torch.ones(2))], kind="adamw_8bit", **SETTINGS)
