"""`examples/pivot_loop.py` runs, learns, and is the method that `pivot train` trains with."""

import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pivot.experience import ExperienceBuffer
from pivot.method import Batch, allocate_advantage, count_totals, objective, preset
from pivot.models.corruption import Corruptor
from pivot.models.loading import load_policy
from pivot.rewards.verifier import Verifier
from pivot.tiny import procedural
from pivot.training.batch import build_batch

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
    """A step just before its update: prompts solved at times, two of them replayed with an anchor."""
    policy = load_policy("tiny")
    corruptor = Corruptor(policy.encoder, example.CORRUPTION, sizes.seed)
    buffer = ExperienceBuffer(responses_per_prompt=sizes.responses)
    prompts = procedural.dataset("train", 10)
    with Verifier() as verifier:
        first = example.roll_out(policy, prompts, {}, sizes, 1)
        example.verify(verifier, first)
        example.record(buffer, first, 1)
        replayed = [draw.prompt_id for draw in buffer.draw(2, step=2)]
        known = {prompt.id: prompt for prompt in prompts}
        anchors = {name: example.fix_anchor(policy, corruptor, known[name], buffer, 2) for name in replayed}
        groups = example.roll_out(policy, prompts, anchors, sizes, 2)
        example.verify(verifier, groups)
    kept = [group for group in groups if group.is_informative]
    units = example.as_units(policy, kept)
    scores = example.score(policy, corruptor, units, 2)
    rows = example.allocate(kept, units, scores)
    assert rows.anchor_logprob_B.isfinite().any(), "a replayed group survived the filter"
    assert rows.anchor_logprob_B.isnan().any(), "and so did a fresh one"
    return kept, scores, rows


def shifted(rows):
    """Log-probs as they are after some updates: ratios on both sides of both clips."""
    generator = torch.Generator().manual_seed(0)
    noise_BT = 0.4 * torch.randn(rows.mask_BT.shape, generator=generator)
    return (rows.old_logprobs_BT + noise_BT * rows.mask_BT).clamp(max=0).requires_grad_()


def allocated(kept, scores, rows):
    """The same rows by the trainer's function."""
    batch = Batch(
        mask_BT=scores.mask_BT,
        rewards_B=torch.tensor([group.accuracies for group in kept]).flatten(),
        format_B=torch.tensor([r.reward.format for group in kept for r in group.responses]),
        group_size=len(kept[0].responses),
        clean_logprobs_BT=scores.logprobs_BT,
        entropy_BT=scores.entropy_BT,
        old_logprobs_BT=rows.old_logprobs_BT,
        corrupted_logprobs_BT=scores.corrupted_logprobs_BT,
        anchor_logprob_B=rows.anchor_logprob_B,
    )
    return allocate_advantage(preset("pivot"), batch)


def test_advantages_are_those_of_the_pivot_preset(step):
    kept, scores, rows = step
    batch, diagnostics = allocated(kept, scores, rows)
    torch.testing.assert_close(rows.advantage_BT, batch.advantage_BT, **TOLERANCE)
    torch.testing.assert_close(rows.group_advantage_B, batch.group_advantage_B, **TOLERANCE)
    torch.testing.assert_close(rows.support_BT, diagnostics.support_BT, **TOLERANCE)
    assert (rows.advantage_BT != rows.group_advantage_B[:, None])[rows.mask_BT].any(), "the image has a say"


def test_loss_and_gradient_are_those_of_the_pivot_preset(example, step):
    kept, scores, rows = step
    ours, theirs = shifted(rows), shifted(rows)
    loss = example.pivot_loss(ours, rows)
    batch = allocated(kept, scores, rows)[0].with_forward(theirs)
    method = preset("pivot")
    expected = objective(method, batch, count_totals(method, batch))[0]
    torch.testing.assert_close(loss, expected, **TOLERANCE)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, **TOLERANCE)


def test_rows_are_those_of_the_trainer(step):
    kept, _, rows = step
    batch = build_batch(kept, minibatch_groups=len(kept))
    width = rows.mask_BT.shape[1]
    assert torch.equal(batch.mask_BT[:, :width], rows.mask_BT)
    assert torch.equal(batch.correct_B, rows.correct_B)
    torch.testing.assert_close(batch.anchor_logprob_B, rows.anchor_logprob_B, equal_nan=True, **TOLERANCE)
    # The trainer keeps what decoding saw; a whole forward pass differs from it by rounding.
    torch.testing.assert_close(batch.old_logprobs_BT[:, :width], rows.old_logprobs_BT, atol=3e-5, rtol=0)


def test_a_minibatch_holds_its_groups_rows_alone(step):
    _, _, rows = step
    groups = torch.arange(0, len(rows.units), 2)
    part = rows.of_groups(groups)
    row = 0
    for g in groups.tolist():
        for i, y in enumerate(rows.units[g].responses):
            source = g * len(rows.units[g].responses) + i
            torch.testing.assert_close(
                part.advantage_BT[row, : len(y)], rows.advantage_BT[source, : len(y)], **TOLERANCE
            )
            assert int(part.mask_BT[row].sum()) == len(y)
            row += 1
    assert row == len(part.mask_BT)


def test_it_trains(example, sizes):
    before = {name: p.clone() for name, p in load_policy("tiny").model.named_parameters()}
    lines = []
    policy, buffer = example.train(sizes, lines.append)
    assert [line.step for line in lines] == [1, 2, 3]
    assert lines[0].replay_share == 0
    assert lines[-1].replay_share > 0
    learnt = [line for line in lines if not math.isnan(line.loss)]
    assert learnt, "some step had an informative group"
    for line in learnt:
        assert all(math.isfinite(v) for v in (line.loss, line.support_right, line.support_wrong))
    after = dict(policy.model.named_parameters())
    assert all(p.isfinite().all() for p in after.values())
    assert any(not torch.equal(before[name], p) for name, p in after.items() if "visual" in name)
    assert any(not torch.equal(before[name], p) for name, p in after.items() if "language_model" in name)
    assert len(buffer) == lines[-1].buffer_size > 0


def test_the_file_is_a_short_read_and_says_how_it_is_called():
    assert len(PATH.read_text().splitlines()) < 300
    shown = subprocess.run([sys.executable, PATH, "--help"], capture_output=True, text=True, check=True)
    assert "--steps" in shown.stdout
