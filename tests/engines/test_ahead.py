"""Scoring during decoding: the same numbers, whether a core is free or not."""

import threading

import pytest
import torch

from pivot.engines import ahead
from pivot.engines.local import LocalEngine
from pivot.models.policy import Policy
from pivot.training import build
from pivot.training.clock import PhaseClock
from pivot.training.prompts import training_prompts

SETTINGS = ("method.warmup_share=0", "train.lr=1e-3", "rollout.max_tries=2", "rollout.max_tokens=64")


def outcomes(config, num_steps=3):
    engine, judge = LocalEngine.open(config), build.build_judge(config)
    trainer = build.build_trainer(config, engine, training_prompts(config).by_id, judge, PhaseClock())
    found = [trainer.step() for _ in range(num_steps)]
    judge.close()
    return trainer, found


@pytest.fixture
def config(small_config):
    return small_config("pivot", *SETTINGS)


def test_a_second_thread_changes_no_bit(config, monkeypatch):
    runs, workers = [], []
    work = ahead.ScoreAhead._work
    monkeypatch.setattr(
        ahead.ScoreAhead, "_work", lambda *a: (workers.append(threading.current_thread()), work(*a))[1]
    )
    for free in (True, False):
        monkeypatch.setattr(ahead, "has_free_core", lambda free=free: free)
        workers.clear()
        trainer, found = outcomes(config)
        assert workers
        assert all((worker is not threading.main_thread()) == free for worker in workers)
        runs.append((trainer, found))
    (threaded, ours), (plain, theirs) = runs
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.batch.advantage_BT, b.batch.advantage_BT)
        assert a.update.grad_norms == b.update.grad_norms
        assert a.anchors == b.anchors
    for name, weight in threaded.engine.policy.trainable_parameters().items():
        assert torch.equal(weight, plain.engine.policy.trainable_parameters()[name])
    assert any(group.anchor for group in ours[-1].selection.kept), "replay and anchors were part of it"


def test_threads_never_race_for_an_image(config, monkeypatch):
    """Which images are encoded together decides their last bits, so it must not depend on which thread is first."""
    monkeypatch.setattr(ahead, "has_free_core", lambda: True)
    encoded, features = [], Policy.features

    def noted(policy, prompts, view="clean"):
        missing = [p for p in prompts if not policy.knows_features(p, view)]
        if view == "clean" and missing and not torch.is_grad_enabled():
            encoded.append(threading.current_thread())
        return features(policy, prompts, view)

    monkeypatch.setattr(Policy, "features", noted)
    _, found = outcomes(config)
    assert any(group.anchor for group in found[-1].selection.kept)
    assert set(encoded) == {threading.main_thread()}


def test_without_it_numbers_differ_by_rounding_alone(config, small_config):
    """Candidates of dropped groups are scored too, so rows are packed otherwise; the choice of anchors is the same."""
    off = small_config("pivot", *SETTINGS, "train.overlap=false")
    (_, ours), (_, theirs) = outcomes(config, 2), outcomes(off, 2)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.batch.advantage_BT, b.batch.advantage_BT, atol=1e-3, rtol=1e-3)
        assert [g.anchor and g.anchor.token_ids_T.tolist() for g in a.selection.kept] == [
            g.anchor and g.anchor.token_ids_T.tolist() for g in b.selection.kept
        ]


def test_every_response_is_scored_once(config, monkeypatch):
    """Kept groups of the first round are scored during the second; the step's own pass finds them done."""
    seen = []
    whole = LocalEngine.open(config)
    score = whole.scorer.score

    def counting(request):
        seen.extend((request.view, unit.prompt.prompt.id) for unit in request.units)
        return score(request)

    monkeypatch.setattr(whole.scorer, "score", counting)
    whole._ahead = ahead.ScoreAhead(counting)
    judge = build.build_judge(config)
    trainer = build.build_trainer(config, whole, training_prompts(config).by_id, judge, PhaseClock())
    found = trainer.step()
    judge.close()
    corrupted = [name for view, name in seen if view == "corrupted"]
    assert found.selection.rounds > 1
    assert sorted(corrupted) == sorted(group.prompt.id for group in found.selection.kept)


def test_a_failure_in_the_thread_ends_the_step(config, monkeypatch):
    def broken(*_):
        raise RuntimeError("no such image")

    monkeypatch.setattr(ahead, "has_free_core", lambda: True)
    monkeypatch.setattr(ahead.ScoreAhead, "_work", broken)
    with pytest.raises(RuntimeError, match="no such image"):
        outcomes(config, 2)
