"""`examples/pivot_loop.py` runs, learns, and is the method that `pivot train` trains with."""

import importlib.util
import inspect
import math
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from pivot.experience import ExperienceBuffer
from pivot.method import allocate_advantage, count_totals, objective, preset
from pivot.models.corruption import Corruptor
from pivot.models.loading import load_policy
from pivot.rewards.verifier import Verifier
from pivot.tiny import procedural
from pivot.training.batch import build_batch
from pivot.training.trainer import Trainer

PATH = Path(__file__).parent.parent / "examples" / "pivot_loop.py"
TOLERANCE = {"atol": 1e-6, "rtol": 1e-6}


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("pivot_loop", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["pivot_loop"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["pivot_loop"]


@pytest.fixture(scope="module")
def sizes(example):
    return example.Sizes(steps=3, prompts=6, responses=4, max_tokens=48, problems=12)


@pytest.fixture(scope="module")
def step(example, sizes):
    """A step just before its update: prompts solved at times, some of them replayed with an anchor."""
    policy = load_policy("tiny")
    corruptor = Corruptor(policy.encoder, example.CORRUPTION, sizes.seed)
    buffer = ExperienceBuffer(responses_per_prompt=sizes.responses)
    prompts = procedural.dataset("train", 10)
    with Verifier() as verifier:
        first = example.sample(policy, prompts, sizes, 1)
        example.reward(verifier, first)
        example.record(buffer, first, 1)
        candidates = {draw.prompt_id: buffer.candidates(draw.prompt_id) for draw in buffer.draw(2, step=2)}
        groups = example.sample(policy, prompts, sizes, 2)
        example.reward(verifier, groups)
    kept = [group for group in groups if group.is_informative]
    example.choose_anchors(policy, corruptor, kept, candidates, 2)
    rows = example.as_rows(policy, kept)
    batch = example.as_batch(kept, example.score(policy, corruptor, rows, 2))
    assert batch.anchor_logprob_B.isfinite().any(), "a replayed group survived the filter"
    assert batch.anchor_logprob_B.isnan().any(), "and so did a fresh one"
    for group in kept:
        stored = [c.token_ids.tolist() for c in candidates.get(group.prompt.id, ())]
        assert (group.anchor.token_ids_T.tolist() in stored) if stored else group.anchor is None
    return kept, rows, batch


def shifted(batch):
    """Log-probs as they are after some updates: ratios on both sides of both clips."""
    generator = torch.Generator().manual_seed(0)
    noise_BT = 0.4 * torch.randn(batch.mask_BT.shape, generator=generator)
    return (batch.old_logprobs_BT + noise_BT * batch.mask_BT).clamp(max=0).requires_grad_()


def test_advantages_are_those_of_the_pivot_preset(example, step):
    _, _, batch = step
    ours, support_BT = example.allocate(batch)
    theirs, diagnostics = allocate_advantage(preset("pivot"), batch)
    torch.testing.assert_close(ours.advantage_BT, theirs.advantage_BT, **TOLERANCE)
    torch.testing.assert_close(ours.group_advantage_B, theirs.group_advantage_B, **TOLERANCE)
    torch.testing.assert_close(support_BT, diagnostics.support_BT, **TOLERANCE)
    assert (ours.advantage_BT != ours.group_advantage_B[:, None])[ours.mask_BT].any(), "the image has a say"


def test_loss_and_gradient_are_those_of_the_pivot_preset(example, step):
    _, _, batch = step
    ours, theirs = shifted(batch), shifted(batch)
    loss = example.pivot_loss(example.allocate(batch)[0].with_forward(ours))
    method = preset("pivot")
    allocated = allocate_advantage(method, batch)[0].with_forward(theirs)
    expected = objective(method, allocated, count_totals(method, allocated))[0]
    torch.testing.assert_close(loss, expected, **TOLERANCE)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, **TOLERANCE)


def test_rows_are_those_of_the_trainer(step):
    kept, _, ours = step
    theirs = build_batch(kept, minibatch_groups=len(kept))
    width = ours.mask_BT.shape[1]
    assert torch.equal(theirs.mask_BT[:, :width], ours.mask_BT)
    assert torch.equal(theirs.correct_B, ours.correct_B)
    assert torch.equal(theirs.format_B, ours.format_B)
    torch.testing.assert_close(theirs.anchor_logprob_B, ours.anchor_logprob_B, equal_nan=True, **TOLERANCE)
    # The trainer keeps what decoding saw; a whole forward pass differs from it by rounding.
    torch.testing.assert_close(theirs.old_logprobs_BT[:, :width], ours.old_logprobs_BT, atol=3e-5, rtol=0)


WALK = ("sample", "reward", "record", "choose_anchors", "score", "allocate", "update")
TRAINERS_WALK = (
    "_sample",
    "_reward",
    "_record",
    "_anchor",
    "_score",
    "allocate_advantage",
    "_update",
)


def test_a_step_takes_the_same_walk_as_the_trainer(example, sizes):
    for function, names in ((example.train, WALK), (Trainer.step, TRAINERS_WALK)):
        source = inspect.getsource(function)
        places = [re.search(rf"\b{name}\(", source).start() for name in names]
        assert places == sorted(places), function.__qualname__
        assert places[3] > source.index("kept"), "anchors are chosen after the filter"
    assert inspect.getsource(example.train).index(".candidates(") < inspect.getsource(example.train).index(
        "sample("
    )


def test_it_trains(example, sizes):
    before = {name: p.clone() for name, p in load_policy("tiny").model.named_parameters()}
    lines = []
    policy, buffer = example.train(sizes, lines.append)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[0]["replayed"] == 0
    assert lines[-1]["replayed"] > 0
    learnt = [line for line in lines if "loss" in line]
    assert learnt, "some step had an informative group"
    for line in learnt:
        assert all(math.isfinite(line[name]) for name in ("loss", "c_right", "c_wrong"))
    after = dict(policy.model.named_parameters())
    assert all(p.isfinite().all() for p in after.values())
    assert any(not torch.equal(before[name], p) for name, p in after.items() if "visual" in name)
    assert any(not torch.equal(before[name], p) for name, p in after.items() if "language_model" in name)
    assert len(buffer) == lines[-1]["buffer"] > 0


def test_the_file_is_a_short_read_and_says_how_it_is_called(monkeypatch, capsys):
    assert len(PATH.read_text().splitlines()) <= 250
    monkeypatch.setattr(sys, "argv", [str(PATH), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(PATH), run_name="__main__")
    assert ended.value.code == 0
    assert "--steps" in capsys.readouterr().out
