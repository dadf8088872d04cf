"""PEPO and PGPO against naive loops and numbers computed by hand."""

import math
from dataclasses import replace

import pytest
import torch

from pivot.method import (
    PRESETS,
    Batch,
    allocate_advantage,
    count_totals,
    dependency_score,
    gated_weights,
    objective,
    perception_weights,
    preset,
)

MASK = torch.ones(1, 3)


def naive_pgpo(clean: list[float], hidden: list[float], tau: float, beta: float) -> list[float]:
    scores = []
    for p, q in zip(clean, hidden, strict=True):
        ratio = math.exp(max(-20.0, min(20.0, q - p)))
        scores.append(math.log(1 + (ratio - 1) - math.log(ratio)))
    low, high = min(scores), max(scores)
    normalised = [(s - low) / (high - low + 1e-8) for s in scores]
    weights = [i / (tau + 1e-8) if i < tau else 1 + beta * (i - tau) / (1 - tau + 1e-8) for i in normalised]
    return [w * len(weights) / sum(weights) if sum(weights) else 1.0 for w in weights]


def naive_pepo(similarity: list[float], entropy: list[float], alpha: float) -> list[float]:
    def normalised(values: list[float]) -> list[float]:
        low, high = min(values), max(values)
        return [(v - low) / (high - low + 1e-8) for v in values]

    summed = [v + h for v, h in zip(normalised(similarity), normalised(entropy), strict=True)]
    mean = sum(summed) / len(summed)
    exps = [math.exp((1 + alpha * math.tanh(g - mean)) * v) for g, v in zip(summed, similarity, strict=True)]
    return [len(exps) * e / sum(exps) for e in exps]


def batch_of(ragged, seed: int) -> Batch:
    rows = ragged(seed)
    similarity_BT = torch.tanh(rows.advantage_BT)
    num_rows = len(rows.mask_BT)
    return Batch(
        mask_BT=rows.mask_BT,
        rewards_B=rows.correct_B.double(),
        format_B=torch.zeros(num_rows, dtype=torch.float64),
        group_size=num_rows,
        clean_logprobs_BT=rows.clean_BT,
        entropy_BT=rows.entropy_BT,
        old_logprobs_BT=rows.old_BT,
        corrupted_logprobs_BT=rows.corrupted_BT,
        similarity_BT=similarity_BT,
        new_logprobs_BT=rows.clean_BT.clone().requires_grad_(),
    )


def test_pgpo_by_hand() -> None:
    # log(1 + S) = 0, log 2, log 4: I = 0, 1/2, 1. With tau = 0.4 and beta = 2: 0, 1 + 2 * 0.1 / 0.6 = 4/3, 3.
    score = dependency_score(torch.tensor([[0.0, 1.0, 3.0]], dtype=torch.float64), MASK)
    assert score.tolist()[0] == pytest.approx([0, 0.5, 1], abs=1e-7)
    weights = gated_weights(score, MASK)
    assert weights.tolist()[0] == pytest.approx([0, 12 / 13, 27 / 13], abs=1e-6)
    # Below the threshold: I / tau.
    assert gated_weights(torch.tensor([[0.2, 0.3, 0.1]]), MASK).tolist()[0] == pytest.approx([1, 1.5, 0.5])


def test_pepo_by_hand() -> None:
    # VS' = 0, 1/2, 1 and H' = 1, 1/2, 0 cancel out: g = 0 and w = 3 softmax(VS).
    similarity, entropy = torch.tensor([[0.0, math.log(2), math.log(4)]]), torch.tensor([[2.0, 1.0, 0.0]])
    assert perception_weights(similarity, entropy, MASK).tolist()[0] == pytest.approx([3 / 7, 6 / 7, 12 / 7])
    # H' = 0, 1, 0: g = VS' + H' - 5/6 = -5/6, 2/3, 1/6.
    gates = [1 + 0.5 * math.tanh(g) for g in (-5 / 6, 2 / 3, 1 / 6)]
    exps = [math.exp(gate * v) for gate, v in zip(gates, similarity.tolist()[0], strict=True)]
    found = perception_weights(similarity, torch.tensor([[0.0, 1.0, 0.0]]), MASK, gate=0.5)
    assert found.tolist()[0] == pytest.approx([3 * e / sum(exps) for e in exps], rel=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_weights_equal_the_naive_loops(ragged, seed: int) -> None:
    batch = batch_of(ragged, seed)
    pgpo, pepo = (PRESETS[name].visual.weights(batch) for name in ("pgpo", "pepo"))
    for row, length in enumerate(batch.mask_BT.sum(1).tolist()):
        assert pgpo[row, length:].eq(0).all()
        assert pepo[row, length:].eq(0).all()
        if length:
            columns = (
                batch.clean_logprobs_BT,
                batch.corrupted_logprobs_BT,
                batch.similarity_BT,
                batch.entropy_BT,
            )
            clean, hidden, similarity, entropy = (c[row, :length].tolist() for c in columns)
            assert pgpo[row, :length].tolist() == pytest.approx(naive_pgpo(clean, hidden, 0.4, 2.0))
            assert pepo[row, :length].tolist() == pytest.approx(naive_pepo(similarity, entropy, 0.05))


@pytest.mark.parametrize("name", ["pepo", "pgpo"])
def test_advantages_keep_their_sum_and_reach_the_gradient(ragged, name: str) -> None:
    """d loss / d log p = -A w / tokens at ratio 1, where nothing is clipped."""
    batch = replace(batch_of(ragged, 3), importance_weight_BT=None)
    batch = replace(batch, old_logprobs_BT=batch.clean_logprobs_BT)
    method = replace(preset(name), terms=())
    batch, _ = allocate_advantage(method, batch)
    length_B = batch.mask_BT.sum(1)
    assert torch.allclose(batch.advantage_BT.sum(1), batch.group_advantage_B * length_B)
    assert batch.advantage_BT.std(1).max() > 0.01
    loss, _ = objective(method, batch, count_totals(method, batch))
    (gradient,) = torch.autograd.grad(loss, batch.new_logprobs_BT)
    expected = torch.where(batch.mask_BT, -batch.advantage_BT / batch.mask_BT.sum(), 0.0)
    assert torch.allclose(gradient, expected)


@pytest.mark.parametrize("name", ["pepo", "pgpo"])
def test_the_split_into_batches_changes_nothing(ragged, name: str) -> None:
    batch = batch_of(ragged, 5)
    whole = PRESETS[name].visual.weights(batch)
    assert len(whole) > 2
    for row in range(len(whole)):
        alone = PRESETS[name].visual.weights(batch.select(torch.tensor([row])))
        assert torch.allclose(alone[0], whole[row, : alone.shape[1]], rtol=1e-12)


def test_pepos_weights_come_in_over_the_run(ragged) -> None:
    batch = batch_of(ragged, 3)
    ones_B, part = torch.ones(len(batch.mask_BT), dtype=torch.float64), PRESETS["pepo"].visual
    start, half, end = (part(replace(batch, progress=p), ones_B)[0] for p in (0.0, 0.5, 1.0))
    assert start.eq(1).all()
    assert torch.allclose(half, (start + end) / 2)
    assert torch.equal(end[batch.mask_BT], part.weights(batch)[batch.mask_BT])
    constant = preset("pepo").with_settings(pepo_schedule="constant").visual
    assert torch.equal(constant(replace(batch, progress=0.0), ones_B)[0], end)


def test_tokens_that_are_alike_weigh_alike() -> None:
    """A question without an image, a response of one token, an empty one."""
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]).bool()
    same = torch.full((3, 3), -0.5)
    expected = mask.float()
    assert torch.equal(gated_weights(dependency_score(torch.zeros(3, 3), mask), mask), expected)
    assert torch.allclose(perception_weights(torch.zeros(3, 3), -same, mask), expected)


def test_a_switch_adds_them_to_any_method() -> None:
    assert preset("dapo").with_settings(token_weights="pepo").visual == PRESETS["pepo"].visual
    changed = preset("grpo").with_settings(token_weights="pgpo", pgpo_boost=1.0)
    assert (changed.settings()["token_weights"], changed.settings()["pgpo_boost"]) == ("pgpo", 1.0)
    assert changed.hides_image
    assert changed.with_settings(token_weights="none").visual is None
    assert (
        preset("pivot").with_settings(utility="none", token_weights="pgpo").visual == PRESETS["pgpo"].visual
    )
    with pytest.raises(
        ValueError, match="token_weights cannot be 'pgpo': the method has another visual part"
    ):
        preset("vppo").with_settings(token_weights="pgpo")
    with pytest.raises(
        ValueError, match=r"token_keep_share cannot be 0\.4: the method has another visual part"
    ):
        preset("pgpo").with_settings(token_keep_share=0.4)
    with pytest.raises(ValueError, match="pgpo_threshold must lie in"):
        preset("pgpo").with_settings(pgpo_threshold=1.5)
