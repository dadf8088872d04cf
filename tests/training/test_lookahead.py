"""Scoring beside the rollout: the same numbers, whoever has a core to spare."""

import threading

import pytest
import torch

from pivot.training import build, lookahead
from pivot.training.clock import PhaseClock
from pivot.training.prompts import training_prompts


def outcomes(config, num_steps=3):
    policy, judge = build.load_model(config), build.build_judge(config)
    trainer = build.build_trainer(config, policy, training_prompts(config).by_id, judge, PhaseClock())
    found = [trainer.step() for _ in range(num_steps)]
    judge.close()
    return trainer, found


@pytest.fixture
def config(small_config):
    return small_config("pivot", "method.warmup_share=0", "train.lr=1e-3")


def test_a_thread_beside_changes_no_bit(config, monkeypatch):
    runs, workers = [], []
    rate = lookahead.Lookahead._rate
    monkeypatch.setattr(
        lookahead.Lookahead, "_rate", lambda *a: (workers.append(threading.current_thread()), rate(*a))[1]
    )
    for free in (True, False):
        monkeypatch.setattr(lookahead, "has_free_core", lambda free=free: free)
        workers.clear()
        trainer, found = outcomes(config)
        assert all((worker is not threading.main_thread()) == free for worker in workers)
        runs.append((trainer, found))
    (threaded, ours), (plain, theirs) = runs
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.batch.tensors.advantage_BT, b.batch.tensors.advantage_BT)
        assert a.update.grad_norms == b.update.grad_norms
        assert a.anchors == b.anchors
    for name, weight in threaded.policy.trainable_parameters().items():
        assert torch.equal(weight, plain.policy.trainable_parameters()[name])
    assert any(group.anchor for group in ours[-1].selection.kept), "replay and anchors were part of it"


def test_without_it_numbers_differ_by_rounding_alone(config, small_config):
    """Candidates of dropped groups are scored too, so rows are packed otherwise; the choice of anchors is the same."""
    off = small_config("pivot", "method.warmup_share=0", "train.lr=1e-3", "train.overlap=false")
    (_, ours), (_, theirs) = outcomes(config, 2), outcomes(off, 2)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            a.batch.tensors.advantage_BT, b.batch.tensors.advantage_BT, atol=1e-3, rtol=1e-3
        )
        assert [g.anchor and g.anchor.token_ids_T.tolist() for g in a.selection.kept] == [
            g.anchor and g.anchor.token_ids_T.tolist() for g in b.selection.kept
        ]


def test_every_response_is_scored_once(config, monkeypatch):
    """Kept groups of the first round are scored beside the second; the step's own pass finds them done."""
    seen = []
    whole = lookahead.Lookahead._corrupt

    def counting(self, groups, encoded, step):
        seen.extend(g.prompt.id for g in groups if g.prompt.id not in self._corrupted)
        whole(self, groups, encoded, step)

    monkeypatch.setattr(lookahead.Lookahead, "_corrupt", counting)
    _, (first,) = outcomes(config, 1)
    assert sorted(seen) == sorted(group.prompt.id for group in first.selection.kept)


def test_a_failure_beside_the_rollout_ends_the_step(config, monkeypatch):
    def broken(*_):
        raise RuntimeError("no such image")

    monkeypatch.setattr(lookahead, "has_free_core", lambda: True)
    monkeypatch.setattr(lookahead.Lookahead, "_rate", broken)
    with pytest.raises(RuntimeError, match="no such image"):
        outcomes(config, 1)
