import copy

import torch

from pivot.engines.optimizer import MasterAdamW

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
